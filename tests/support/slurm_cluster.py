"""Real Slurm daemons on this machine, for `tests/slurm/`: a controller and several nodes; nothing stays."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.support import host
from tests.support.compose_stack import progress
from tests.support.deployment import PATIENCE, wait_until
from tests.support.host import ROOT, START_S, Host, run

SCRIPT = ROOT / "compose" / "slurm" / "train.sbatch"
RUN_S = 240.0 * PATIENCE
TWO_NODES = ("--nodes=2", "--ntasks=2", "--cpus-per-task=2")
ONE_TASK = ("--ntasks=1", "--cpus-per-task=2")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
MUNGED = (
    "munged --force --key-file={folder}/munge.key --socket=/run/munge/munge.socket.2 --pid-file=/run/munge/munged.pid "
    "--log-file=/run/munge/munged.log --seed-file=/run/munge/munged.seed"
)
NETWORK = "10.77.0"  # of the hosts' addresses
OURS = "seedbed|slurmstepd|srun"  # on a node, beside slurmd and munged
CONFIG = """\
ClusterName=seedbed-test
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/run/slurmd
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1
ReturnToService=2
SlurmdTimeout=20
NodeName={nodes} CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={nodes} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why Slurm's daemons cannot be started here; empty if they can."""
    return host.why_not("munged", "slurmctld", "slurmd", "sbatch")


class Cluster:
    """A controller and nodes called node1, node2, … A context manager that leaves no process and no network."""

    def __init__(self, folder: Path, nodes: int) -> None:
        """`folder`: for configuration, state and logs."""
        self.folder = folder
        self._config = f"SLURM_CONF={folder}/slurm.conf"
        self.head = Host("head")
        self.nodes = [Host(f"node{number}") for number in range(1, nodes + 1)]
        self._stack = ExitStack()

    def __enter__(self) -> "Cluster":
        hosts = (self.head, *self.nodes)
        (self.folder / "state").mkdir()
        names = (f"{NETWORK}.{number} {host.name}\n" for number, host in enumerate(hosts, start=1))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(names))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        nodes = f"node[1-{len(self.nodes)}]"
        (self.folder / "slurm.conf").write_text(CONFIG.format(folder=self.folder, nodes=nodes))
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/tty[0-1]\n")  # stand for GPUs; nothing opens them
        with ExitStack() as stack:
            for host in hosts:
                stack.callback(host.kill)
                self.boot(host)
            wait_until(lambda: self.states() == {"idle": len(self.nodes)}, "all nodes are idle", START_S)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def boot(self, host: Host) -> None:
        """Start a host of the cluster with its daemon, for the first time or again, and connect it to the others."""
        host.start()
        if host is self.head:  # it has the bridge to which all are connected
            network, daemon, number = "ip link add eth0 type bridge", "slurmctld", 1
        else:
            self._cable("delete", host.name, check=False)  # of its life before, if the kernel still has it
            self._cable("add", host.name, "type", "veth", "peer", "name", "eth0", "netns", str(host.first()))
            self._cable("set", host.name, "master", "eth0", "up")
            network, daemon, number = "true", "slurmd", self.nodes.index(host) + 2
        steps = (
            network, f"ip address add {NETWORK}.{number}/24 dev eth0", "ip link set eth0 up",
            f"mount --bind {self.folder}/hosts /etc/hosts", "mkdir /run/munge /run/slurmd",
            MUNGED.format(folder=self.folder), f"{self._config} {daemon}",
        )  # fmt: skip
        host.run("sh", "-c", " && ".join(steps))

    def _cable(self, *words: str, check: bool = True) -> None:
        """`ip link` in the network of the head, with this machine's process ids."""
        run(["nsenter", f"--target={self.head.first()}", "--net", "ip", "link", *words], check=check)

    def slurm(self, *words: str, check: bool = True, cwd: Path = ROOT) -> str:
        """What a command of Slurm's prints."""
        return self.head.run("env", self._config, *words, check=check, cwd=cwd)

    def clear(self) -> None:
        """Cancel all jobs, and wait until their processes are gone."""
        self.slurm("scancel", "--user=root")
        wait_until(lambda: not self.processes(OURS), "no process is left", RUN_S)

    def states(self) -> dict[str, int]:
        """How many nodes are in which state."""
        words = self.slurm("sinfo", "--noheader", "--format=%t %D", check=False).split()
        return {name: int(count) for name, count in zip(words[::2], words[1::2], strict=False) if count.isdecimal()}

    def processes(self, pattern: str = "") -> dict[int, str]:
        """Those of all nodes, as `Host.processes`."""
        return {pid: line for node in self.nodes for pid, line in node.processes(pattern).items()}

    def submit(
        self, folder: Path, experiment: str, *words: str, learners: Sequence[str] = TWO_NODES,
        inference: Sequence[str] = ONE_TASK, limit: Sequence[str] = (), variables: Mapping[str, str] = {},
    ) -> "Job":  # fmt: skip
        """`sbatch train.sbatch EXPERIMENT words…` in a folder: two learners, inference and two actors.

        `learners`, `inference`: options of their groups; `limit`: of all three groups; `variables`: of the environment.
        """
        options = [
            *learners, *limit, ":",
            *inference, *limit, ":",
            "--ntasks=2", "--cpus-per-task=1", *limit,
        ]  # fmt: skip
        given = (f"{name}={text}" for name, text in variables.items())
        sbatch = ("sbatch", "--parsable", *options, str(SCRIPT), experiment, *words)
        said = self.slurm("env", *given, *sbatch, cwd=folder)
        return Job(self, folder, experiment, int(said.split()[-1].partition(";")[0]))


class Job:
    """One that was submitted. `folder`: where."""

    def __init__(self, cluster: Cluster, folder: Path, experiment: str, number: int) -> None:
        self.cluster, self.number, self.folder = cluster, number, folder
        self.own = folder / f"slurm-{number}"  # logs, and keys while it runs
        self.run = folder / "runs" / f"{experiment}-{number}"  # the run's folder

    def _shown(self, what: str) -> str:
        """A field of `scontrol show job`, of the first group; empty if Slurm has forgotten the job."""
        said = self.cluster.slurm("scontrol", "show", "job", str(self.number), check=False)
        found = re.search(rf"\b{what}=(\S+)", said)
        return found[1] if found else ""

    def state(self) -> str:
        """Slurm's word for it, e.g. RUNNING."""
        return self._shown("JobState")

    def exit_status(self) -> int:
        """Of the batch script."""
        return int(self._shown("ExitCode").partition(":")[0])

    def said(self) -> str:
        """What the job has printed."""
        return _text(self.folder / f"slurm-{self.number}.out")

    def log(self, task: str) -> str:
        """What a task has printed, e.g. actor-0."""
        return _text(self.own / f"{task}.log")

    def wait(self, *states: str) -> str:
        """Until its state is one of these."""
        what = f"job {self.number} is {' or '.join(states)}"
        return wait_until(lambda: found if (found := self.state()) in states else "", what, RUN_S)

    def wait_trained(self, before: tuple[float, float] = (0.0, 0.0)) -> None:
        """Until more is trained than `before`, (epoch, steps)."""
        try:
            wait_until(lambda: self.trained() > before, "", RUN_S)
        except AssertionError:
            raise AssertionError(f"it does not train, and is {self.state()}: {self.said()}") from None

    def cancel(self) -> None:
        """`scancel`."""
        self.cluster.slurm("scancel", str(self.number), check=False)

    def stop(self) -> None:
        """As docs/slurm.md says: the script stops all services in order."""
        self.cluster.slurm("scancel", "--batch", "--signal=USR2", str(self.number))

    def trained(self) -> tuple[float, float]:
        """(epoch, trained steps) of the last row in which something was trained: a learner that is back counts on."""
        return progress(self.run)

    def summary(self) -> dict[str, Any]:
        """Of the run."""
        return dict(json.loads((self.run / "summary.json").read_text()))


def _text(file: Path) -> str:
    """Of a file, empty while there is none."""
    return file.read_text() if file.exists() else ""
