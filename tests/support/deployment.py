"""Real services as processes on loopback, for system tests: start, kill, stop, go on, restart, watch.

Ports are reserved for a deployment's life and never fixed, so a restarted service comes back under its address. Waits
are for conditions with a deadline, seen in status files, /metrics, metrics.csv or a process's end; `wait_until` is the
only place that lets time pass.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import psutil
from prometheus_client.parser import text_string_to_metric_families

from seedbed.learner_svc.run.checkpoint import Checkpoint, load_latest
from seedbed.learner_svc.run.history import read_metrics
from seedbed.services.tools.cli.launcher import Reservation
from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.runtime.service import DIE_WITH_PARENT
from tests.support.preloaded import ForkedProcess, run_program

T = TypeVar("T")
PATIENCE = float(os.environ.get("SYSTEM_PATIENCE", "1"))  # more on a machine that is busy with other things
DEADLINE_S = 100.0 * PATIENCE  # of what happens within seconds, but for a machine that has much else to do
LOOK_EVERY_S = 0.02
UNROLL_LENGTH, BATCH = 8, 12

_straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # services are on this machine

WORDS: Mapping[str, Sequence[str]] = {
    "learner": (
        f"learner.unroll_length={UNROLL_LENGTH}", f"learner.batch={BATCH}", "learner.max_policy_lag=1000",
        "learner.checkpoint_every_s=0.5", "learner.metrics_every_s=0.2", "learner.tensorboard=false",
        "learner.precision=fp32", "learner.beat_s=0.3", "learner.lease_s=2.5", "policy.hidden=[16]",
        "eval.episodes=4", "eval.lanes=4",
    ),
    "inference": ("inference.beat_s=0.3", "inference.lease_s=2.5"),
    "actor": ("actor.groups=2", "actor.lanes=6", "actor.max_stall_s=2.5", "eval.episodes=4", "eval.lanes=4"),
}  # fmt: skip


def wait_until(condition: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """The first true value of `condition()`; AssertionError saying what did not happen."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(LOOK_EVERY_S)
    return value


class ServiceProcess:
    """`python -m <module>`, in lives one after the other, under one name and with the same words.

    It is forked from a process that has imported the services, unless it is of another version.
    """

    def __init__(self, module: str, name: str, folder: Path, words: Sequence[str]) -> None:
        self.module, self.name, self.words = module, name, list(words)
        self.status_file, self.log_file = folder / f"{name}.json", folder / f"{name}.jsonl"
        self.error_file = folder / f"{name}.stderr"
        self.source: Path | None = None  # where the packages of another version are
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def program(self) -> list[str]:
        """The module that is run, and what comes before its words."""
        return [self.module.removeprefix("seedbed.") if self.source else self.module]  # as that version calls it

    def start(self) -> "ServiceProcess":
        """A new life; returns at once."""
        assert not self.is_running
        self.status_file.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
        environment |= {"OMP_NUM_THREADS": "1", DIE_WITH_PARENT: str(os.getpid())}
        words = [
            *self.words, f"runtime.name={self.name}", f"runtime.status_file={self.status_file}",
            f"runtime.log_file={self.log_file}", "runtime.threads=1",
        ]  # fmt: skip
        if self.source is None:
            module, *first = self.program()
            self._process = ForkedProcess(
                run_program, module, [*first, *words], environment=environment, output=self.error_file
            )
            return self
        environment["PYTHONPATH"] = str(self.source)
        command = [sys.executable, "-P", "-W", "error::ResourceWarning", "-m", *self.program(), *words]
        with self.error_file.open("ab") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        return self

    @property
    def is_running(self) -> bool:
        """Whether its present life lasts."""
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> psutil.Process:
        """For memory and processor time."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def wait_ready(self, deadline_s: float = DEADLINE_S) -> "ServiceProcess":
        """Until it is bound and answering."""

        def is_ready() -> bool:
            assert self.is_running, f"{self.name} ended: {self.errors()}"
            return bool(read_status(self.status_file))

        wait_until(is_ready, f"{self.name} is ready", deadline_s)
        return self

    def wait_ended(self, deadline_s: float = DEADLINE_S) -> int:
        """Its exit code, once it has one."""
        assert self._process is not None
        return self._process.wait(deadline_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the present life."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill -9, and reap."""
        self.signal(signal.SIGKILL)
        self.wait_ended()

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    @property
    def incarnation(self) -> int:
        """Of the present life, once ready."""
        return int(read_status(self.status_file)["incarnation"])

    def page(self) -> dict[str, float]:
        """Everything at /metrics, without prefix; empty while it does not answer."""
        address = read_status(self.status_file).get("metrics")
        page = read_page(str(address)) if address else None
        return {name.removeprefix("seedbed_"): value for name, value in (page or {}).items()}

    def metric(self, name: str) -> float:
        """One figure; NaN while it does not answer."""
        return self.page().get(name, float("nan"))

    def by_label(self, name: str) -> dict[str, float]:
        """A counter by the values of its only label; empty while it does not answer."""
        try:
            with _straight.open(f"http://{read_status(self.status_file)['metrics']}/metrics", timeout=2) as answer:
                families = list(text_string_to_metric_families(answer.read().decode()))
        except (OSError, KeyError):
            return {}
        samples = [sample for family in families for sample in family.samples if sample.name == f"seedbed_{name}"]
        return {next(iter(sample.labels.values())): sample.value for sample in samples}

    def rss_mb(self) -> float:
        """Resident memory, MB."""
        return float(self.process.memory_info().rss) / 1e6

    def events(self, name: str) -> list[dict[str, Any]]:
        """Log lines of this event, of all lives."""
        with contextlib.suppress(FileNotFoundError):
            lines = self.log_file.read_text().split("\n")[:-1]
            return [line for line in map(json.loads, lines) if line["event"] == name]
        return []

    def errors(self) -> str:
        """What it wrote to stderr."""
        with contextlib.suppress(FileNotFoundError):
            return self.error_file.read_text()
        return ""


class Deployment:
    """A learner, an inference and any number of actors on one run folder. A context manager that leaves no process."""

    def __init__(self, folder: Path, *words: str, env: Sequence[str] = ("env.id=CartPole-v1",)) -> None:
        """`words` go to the service whose section they name; [env], [eval] and [run] to all that read them."""
        self.folder = folder
        self.run_dir = folder / "run"
        self._reservations = [Reservation(), Reservation()]
        self.learner_address, self.inference_address = (item.address for item in self._reservations)
        self._words, self._env = words, list(env)
        self.actors: list[ServiceProcess] = []
        self.learner = self._service(
            "learner", "learner", f"learner.bind={self.learner_address}", f"run.dir={self.run_dir}"
        )
        self.inference = self.add_inference("inference", self.learner_address, self.inference_address)

    def add_inference(self, name: str, upstream: str, bind: str = "tcp://127.0.0.1:0") -> ServiceProcess:
        """One more inference, not started."""
        return self._service(
            "inference", name, f"inference.bind={bind}", f"inference.upstream={upstream}", f"inference.name={name}"
        )

    def add_actor(self, name: str, *words: str, upstream: str = "") -> ServiceProcess:
        """One more actor, not started."""
        address = upstream or self.inference_address
        actor = self._service("actor", name, f"actor.name={name}", f"actor.upstream={address}", *words)
        self.actors.append(actor)
        return actor

    def add_service(self, name: str, module: str, *words: str) -> ServiceProcess:
        """One more environment service with a program of its own (`serve(make)`), not started."""
        chosen = [word for word in self._words if word.startswith(("actor.", "runtime."))]
        address = f"actor.upstream={self.inference_address}"
        service = ServiceProcess(
            module, name, self.folder, [*WORDS["actor"], *chosen, f"actor.name={name}", address, *words]
        )
        self.actors.append(service)
        return service

    def _service(self, role: str, name: str, *words: str) -> ServiceProcess:
        sections = {"learner": ("learner", "policy", "algorithm", "eval", "run"), "inference": ("inference",)}
        known = (*sections.get(role, ("actor", "eval", "run")), "runtime")
        chosen = [word for word in self._words if word.split(".")[0] in known]
        env = [] if role == "inference" else self._env
        return ServiceProcess(f"seedbed.{role}_svc", name, self.folder, [*env, *WORDS[role], *chosen, *words])

    @property
    def services(self) -> list[ServiceProcess]:
        """All of them."""
        return [self.learner, self.inference, *self.actors]

    def start(self, deadline_s: float = DEADLINE_S) -> "Deployment":
        """Start all that do not run, at once, and wait until they are ready."""
        for service in self.services:
            if not service.is_running:
                service.start()
        for service in self.services:
            service.wait_ready(deadline_s)
        return self

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *_: object) -> None:
        for service in self.services:
            service.close()
        for reservation in self._reservations:
            reservation.close()

    # What can be seen

    def trained_steps(self) -> float:
        """Of the run; NaN while the learner does not answer."""
        return self.learner.metric("learner_trained_steps_total")

    def wait_trained(self, steps: float = 500, deadline_s: float = DEADLINE_S) -> float:
        """Until so many more steps are trained than now (or than the learner's first answer); the counter then."""
        start = wait_until(lambda: known(self.trained_steps()), "the learner answers", deadline_s)
        return wait_until(
            lambda: at_least(self.trained_steps(), start + steps), f"{steps:.0f} more steps are trained", deadline_s
        )

    def wait_lanes(self, lanes: int, deadline_s: float = DEADLINE_S) -> None:
        """Until inference has exactly so many slots in use."""
        seen: list[float] = []

        def are_there() -> bool:
            seen[:] = [self.inference.metric("lanes")]
            return seen[0] == lanes

        try:
            wait_until(are_there, "", deadline_s)
        except AssertionError:
            raise AssertionError(f"{seen[0]:.0f} lanes in use after {deadline_s:.0f} s, not {lanes}") from None

    def rows(self) -> list[dict[str, str]]:
        """Of metrics.csv."""
        return read_metrics(self.run_dir / "metrics.csv")

    def checkpoint(self) -> Checkpoint | None:
        """The newest."""
        return load_latest(self.run_dir / "checkpoints", kinds=("latest",))

    def summary(self) -> dict[str, Any]:
        """Of the run."""
        return dict(json.loads((self.run_dir / "summary.json").read_text()))


def known(value: float) -> float | None:
    """None for NaN, and something true for a number, zero too."""
    return None if value != value else value or 1e-9


def at_least(value: float, limit: float) -> float | None:
    """The value if it is that large."""
    return value if value >= limit else None


def applied_lanes(checkpoint: Checkpoint, lanes: int) -> int:
    """Lane-unrolls that a checkpoint's account says were used, dropped or lost, if every UNROLL had `lanes` lanes."""
    return sum(
        record["next_seq"] * lanes
        + sum(count for _, count in record["applied"])
        + sum(count for _, count in record["partial"])
        for record in checkpoint.meta["producers"]
    )


@contextlib.contextmanager
def stopped(service: ServiceProcess) -> Iterator[None]:
    """A process that stands still."""
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


def living(folder: Path) -> list[psutil.Process]:
    """Processes whose command line names the folder, or that print into it."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and any(str(folder) in word for word in (*(process.info["cmdline"] or ()), _where_it_prints(process.pid)))
    ]


def _where_it_prints(process: int) -> str:
    """The file that is a process's standard error; empty where that cannot be seen."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process}/fd/2")
    return ""
