"""A host of its own on this machine, for tests of cluster software: namespaces of network, processes, mounts and names.

Such hosts reach each other over a bridge and not by loopback, and end with all that runs on them, mounts included, when
their first process is killed. They see this machine's files, as machines of a cluster see a shared file system.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.support.deployment import wait_until

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("ip", "nsenter", "setpriv", "unshare")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
START_S, COMMAND_S = 60.0, 120.0
NETWORK = "10.77.0"  # of the hosts' addresses, each with a number of its own
FIRST = "mount -t tmpfs none /run && sleep inf & wait"  # a shell: it reaps whoever has lost its parent


@cache
def why_not(*programs: str) -> str:
    """Why there can be no such host, or none with these programs; empty if there can."""
    if missing := [program for program in (*PROGRAMS, *programs) if shutil.which(program) is None]:
        return f"there is no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts of their own, and the daemons on them, need root"
    spaces = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"]
    made = subprocess.run(spaces, check=False, capture_output=True, text=True)
    return "" if made.returncode == 0 else f"no namespaces can be made here: {made.stderr.strip()}"


def run(
    words: Sequence[str],
    *,
    check: bool = True,
    timeout_s: float = COMMAND_S,
    variables: Mapping[str, str] = {},
) -> str:
    """What a command prints, both streams. Programs of this Python come first, and this tree's packages."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SLURM", "SEEDBED_", "KUBE"))}
    path = {"PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
        env={**kept, **path, **variables},
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class Bridge:
    """The network between hosts, in a namespace of its own, so that this machine's firewall is not on the way.

    A context manager.
    """

    name = "bridge"

    def __enter__(self) -> "Bridge":
        self._holder = subprocess.Popen([*DIE_WITH_PARENT, "unshare", "--net", "sleep", "inf"])
        wait_until(lambda: _net(self._holder.pid) != _net(os.getpid()), "the network has a namespace", START_S)
        self.ip("link", "add", self.name, "type", "bridge")
        self.ip("link", "set", self.name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.wait()

    def ip(self, *words: str, check: bool = True) -> None:
        """The command `ip` in its namespace."""
        run(["nsenter", f"--target={self._holder.pid}", "--net", "ip", *words], check=check)


def _net(pid: int) -> str:
    """The network namespace of a process."""
    return os.readlink(f"/proc/{pid}/ns/net")


class Host:
    """One machine, as namespaces of this one."""

    def __init__(self, name: str, number: int, hosts_file: Path) -> None:
        """`number`: of its address; `hosts_file`: its /etc/hosts."""
        self.name, self.address = name, f"{NETWORK}.{number}"
        self._hosts_file = hosts_file
        self._bridge: Bridge
        self._end: str  # of its cable, at the bridge
        self._holder: subprocess.Popen[bytes] | None = None

    def start(self, bridge: Bridge, *steps: str) -> None:
        """Boot it: a network, names, a /run of its own; then these commands of a shell, in order."""
        spaces = ["--net", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen([*DIE_WITH_PARENT, "unshare", *spaces, "bash", "-c", FIRST])
        wait_until(self.first, f"{self.name} has a first process", START_S)
        self._bridge, self._end = bridge, f"{self.name}-cable"
        bridge.ip("link", "add", self._end, "type", "veth", "peer", "name", "eth0", "netns", str(self.first()))
        bridge.ip("link", "set", self._end, "master", bridge.name, "up")
        boot = (
            f"hostname {self.name}", "ip link set lo up", f"ip address add {self.address}/24 dev eth0",
            "ip link set eth0 up", f"mount --bind {self._hosts_file} /etc/hosts",
        )  # fmt: skip
        self.run("sh", "-c", " && ".join((*boot, *steps)))

    def run(self, *words: str, check: bool = True, cwd: Path | None = None, variables: Mapping[str, str] = {}) -> str:
        """What a command on this host prints."""
        return run(self.command(*words, cwd=cwd), check=check, variables=variables)

    def command(self, *words: str, cwd: Path | None = None) -> list[str]:
        """The command that runs another on this host."""
        inside = ["--net", "--mount", "--pid", "--uts", f"--wd={cwd or Path.cwd()}"]
        return ["nsenter", f"--target={self.first()}", *inside, *words]

    def processes(self, pattern: str = "") -> dict[int, str]:
        """Id (this machine's) and command line of each process on it whose command line has the pattern.

        Those in containers on it, which have process namespaces of their own, are not among them.
        """
        found = {}
        space = os.readlink(f"/proc/{self.first()}/ns/pid")
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if line and os.readlink(entry / "ns" / "pid") == space and re.search(pattern, line):
                        found[int(entry.name)] = line
                except OSError:  # it has ended
                    continue
        return found

    def first(self) -> int:
        """This machine's id of the process whose end is the host's; 0 while there is none."""
        assert self._holder is not None
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def kill(self) -> None:
        """As if its power were cut: everything on it ends at once."""
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            self._holder = None
            self._bridge.ip("link", "delete", self._end, check=False)  # or it goes when the kernel has time


def kill(pid: int) -> None:
    """`kill -9`."""
    os.kill(pid, signal.SIGKILL)
