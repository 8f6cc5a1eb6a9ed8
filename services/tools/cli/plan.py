"""Which processes a run consists of: commands, addresses, threads and niceness, decided before anything starts."""

import json
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from seedbed.services.tools.cli.experiment import Experiment, LaunchSettings
from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.runs import SNAPSHOT
from seedbed.services.tools.cli.service_folder import minded, open_service, service_variables
from seedbed.shared.runtime.config import LaunchConfig
from seedbed.shared.runtime.health import CAUSE_VARIABLE

LEARNER, RANK = "learner", "rank"  # roles: the chief of the learner ranks, and each other one
MODULES = {RANK: "learner"}  # of roles that are not named like the service
NICE = {"learner": 0, "rank": 0, "inference": 2, "actor": 10}  # the learner first: everyone waits for it in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One service process as the launcher starts it."""

    name: str
    role: str  # "learner", "rank", "inference" or "actor"
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # over the launcher's own
    folder: Path | None = None  # that it runs in; none: the launcher's
    is_minded: bool = False  # the command is a minder's
    leaves_cause: bool = False  # it says why it ended, where it chose to end

    def cause_file(self, run_dir: Path) -> Path:
        """Where it says why it ended, if it `leaves_cause`."""
        return run_dir / "services" / f"{self.name}.cause"

    def status_file(self, run_dir: Path) -> Path:
        """Where the service says that it is ready, and its addresses."""
        return run_dir / "services" / f"{self.name}.json"

    def log_file(self, run_dir: Path) -> Path:
        """The service's own log, one JSON object a line."""
        return run_dir / "logs" / f"{self.name}.jsonl"

    def error_file(self, run_dir: Path) -> Path:
        """Where its standard error goes: interpreter failures and tracebacks too."""
        return run_dir / "logs" / f"{self.name}.stderr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the services of one run bind: the learner, its further ranks, and each inference; where ranks meet."""

    learner: str
    inference: tuple[str, ...]
    ranks: tuple[str, ...] = ()
    meeting: str = ""  # tcp://host:port, with several ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Compute threads of one process of each role."""

    learner: int
    inference: int


def split_threads(launch: LaunchConfig, cores: int) -> Threads:
    """Divide the cores: half to the learner, a quarter to inference, the rest is left to the environments.

    Figures that the experiment gives are kept. One thread is the least, so few cores are shared by time instead.

    Args:
      cores: of this machine.
    """
    cores = launch.cores or cores
    return Threads(
        learner=launch.learner_threads or max(1, cores // 2 // launch.learners),
        inference=launch.inference_threads or max(1, cores // 4 // launch.inference),
    )


def limit_threads(environment: MutableMapping[str, str], role: str) -> None:
    """Give a service that is started alone as many threads as in a run here, before torch or NumPy is loaded."""
    threads = split_threads(LaunchConfig(), usable_cores())
    count = {LEARNER: threads.learner, "inference": threads.inference}.get(role, 1)
    environment.setdefault("OMP_NUM_THREADS", str(count))


def plan_run(experiment: Experiment, addresses: Addresses, cores: int) -> list[Process]:
    """The processes of a run, in the order in which they start."""
    settings = experiment.settings
    threads = split_threads(settings.launch, cores)
    planned = []
    for rank, address in enumerate((addresses.learner, *addresses.ranks)):
        role, name = (RANK, f"{LEARNER}-{rank}") if rank else (LEARNER, LEARNER)
        process = _process(experiment, name, role, threads.learner, [word("learner.bind", address)])
        if addresses.ranks:
            process = replace(process, environment={**process.environment, **rank_variables(rank, addresses)})
        planned.append(process)
    for index, address in enumerate(addresses.inference):
        name = f"inference-{index}"
        words = [
            word("inference.bind", address),
            word("inference.upstream", [addresses.learner]),
            word("inference.name", name),
        ]
        if "gpu" not in experiment.sections.get("inference", {}):
            words.append(word("inference.gpu", 1 + len(addresses.ranks) + index))  # the ranks take the first ones
        if settings.run.deterministic and settings.launch.actors:
            words.append(word("inference.lockstep_groups", settings.launch.actors * len(settings.actor_lanes(""))))
        planned.append(_process(experiment, name, "inference", threads.inference, words))
    for index, (name, mode, task) in enumerate(plan_actors(settings)):
        first = index % len(addresses.inference)
        upstream = [*addresses.inference[first:], *addresses.inference[:first]]
        if settings.env_of(task).service:
            planned.append(_foreign(settings, name, mode, task, upstream))
            continue
        words = [word("actor.upstream", upstream), word("actor.name", name), word("actor.mode", mode)]
        words += [word("actor.task", task)] if task else []
        planned.append(_process(experiment, name, "actor", 1, words))
    return planned


def rank_variables(rank: int, addresses: Addresses) -> dict[str, str]:
    """Return the environment of a learner rank, as torchrun would set it."""
    host, _, port = addresses.meeting.removeprefix("tcp://").rpartition(":")
    size = 1 + len(addresses.ranks)
    sizes = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    return {"RANK": str(rank), **sizes, "MASTER_ADDR": host, "MASTER_PORT": port}


def plan_actors(settings: LaunchSettings) -> list[tuple[str, str, str]]:
    """(name, mode, task) of every actor: those that train first; with tasks, some for each of them."""
    launch = settings.launch
    counts = {name: launch.actors if task.actors is None else task.actors for name, task in settings.tasks.items()}
    wanted = [("actor", "train", task, count) for task, count in (counts or {"": launch.actors}).items()]
    wanted += [("eval", "eval", task, launch.eval_actors) for task in counts or ("",)]
    return [
        (f"{role}-{task}-{index}" if task else f"{role}-{index}", mode, task)
        for role, mode, task, count in wanted
        for index in range(count)
    ]


def _process(experiment: Experiment, name: str, role: str, threads: int, words: Sequence[str]) -> Process:
    """One service on the run's snapshot, with what only the launcher can know as words."""
    run_dir, chosen = experiment.run_dir, experiment.sections.get("runtime", {})
    process = Process(name=name, role=role, command=())
    runtime = {
        "name": name,
        "status_file": str(process.status_file(run_dir)),
        "log_file": str(process.log_file(run_dir)),
        "threads": threads,
        "nice": NICE[role],
    }
    own = [word(f"runtime.{key}", value) for key, value in runtime.items() if key not in chosen]
    threads = int(chosen.get("threads", 0)) or threads
    # -P: no folder of the user's hides a package of ours
    command = [
        sys.executable,
        "-P",
        "-m",
        f"seedbed.{MODULES.get(role, role)}_svc",
        str(run_dir / SNAPSHOT),
        *words,
        *own,
    ]
    if role == "actor":  # its environments may have started simulators
        command = minded(command, niceness=0, tells_all=False)
    return Process(
        name=name,
        role=role,
        command=tuple(command),
        is_minded=role == "actor",
        leaves_cause=True,
        environment={
            CAUSE_VARIABLE: str(process.cause_file(run_dir)),
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # a spinning thread would take its core from another service
        },
    )


def _foreign(settings: LaunchSettings, name: str, mode: str, task: str, upstream: Sequence[str]) -> Process:
    """The program that an environment's service.toml names, told what it needs by variables."""
    env = settings.env_of(task)
    service = open_service(env)
    lanes = settings.actor_lanes(task) if mode == "train" else [settings.eval.lanes]
    variables = service_variables(
        upstream, mode=mode, groups=len(lanes), lanes=lanes[0], name=name, env=env, differences=settings.eval.env,
        task=task, keys=settings.runtime.keys,
    )  # fmt: skip
    return Process(
        name=name,
        role="actor",
        command=service.minded_command(niceness=NICE["actor"]),
        is_minded=True,
        environment={**variables, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
        folder=service.folder,
    )


def word(key: str, value: object) -> str:
    """`section.key=value` with the value as TOML (JSON is, for strings, numbers and lists of them)."""
    return f"{key}={json.dumps(value)}"
