"""Steps per second of a whole run: the real launcher on a shipped experiment, stopped after the time is up."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from seedbed.actor_svc.envs import describe_backend
from seedbed.services.tools.cli.board import Board
from seedbed.services.tools.cli.experiment import Experiment, find_experiment, load_experiment
from seedbed.services.tools.cli.launcher import Ended, View
from seedbed.services.tools.cli.machine import stolen_s
from seedbed.services.tools.cli.supervisor import Supervisor
from seedbed.services.tools.cli.training import Stop, render_failure, run_experiment
from seedbed.shared.errors import SeedbedError
from seedbed.shared.figures import inference, learner

MAX_START_S = 120.0  # until the first trained step
ROLES = ("actor", "inference", "learner")


@dataclass(frozen=True, slots=True)
class Point:
    """The run's counters at one moment."""

    at: float
    trained: float
    acted: float
    stolen_s: float
    cpu_s: Mapping[str, float] = field(default_factory=dict)  # processor time by role: of actors, inference and learner


class Stopwatch:
    """A view that takes the counters down and stops the run `seconds` after its first trained step."""

    def __init__(self, board: Board, stop: Stop, seconds: float) -> None:
        self.points: list[Point] = []
        self._board, self._stop, self._seconds = board, stop, seconds
        self._created_at = time.monotonic()

    def happened(self, text: str) -> None:
        """A restart makes the figure worthless: it is told, not hidden."""
        if not self._stop.is_asked:
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Note a change; stop when the time is up."""
        if self._stop.is_asked:
            return
        trained, acted = self._board.total(learner.TRAINED_STEPS), self._board.total(inference.ACTED_STEPS)
        if trained and (not self.points or trained != self.points[-1].trained):
            cpu_s = {role: self._board.cpu_seconds(role) for role in ROLES}
            self.points.append(Point(now, trained, acted, stolen_s(), cpu_s))
        started_at = self.points[0].at if self.points else None
        is_late = started_at is None and now - self._created_at > MAX_START_S
        if is_late or (started_at is not None and now - started_at >= self._seconds):
            self._stop()


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A whole run that was stopped after some time."""

    experiment: Experiment
    points: Sequence[Point]
    ended: Ended


def load_endless(name: str, words: Sequence[str], run_dir: Path) -> Experiment:
    """Load an experiment whose run would never end by itself. Raises: ConfigError."""
    endless = ["run.steps=0", "run.seconds=0", "run.until_return=1e30", "launch.video=false", *words]
    return load_experiment(find_experiment(name), endless, run_dir=run_dir, resume=False)


def run_for(experiment: Experiment, seconds: float) -> TimedRun:
    """Train an experiment until `seconds` after its first trained step. Raises: SeedbedError if the run fails."""
    watches: list[Stopwatch] = []

    def make_view(board: Board, stop: Stop) -> View:
        watches.append(Stopwatch(board, stop, seconds))
        return watches[0]

    ended = run_experiment(experiment, make_view)
    if ended.outcome.service:
        Console(stderr=True).print(render_failure(ended, experiment.run_dir))
        raise SeedbedError(f"{experiment.settings.run.name}: the run failed")
    return TimedRun(experiment, watches[0].points, ended)


def measure(name: str, seconds: float, words: Sequence[str]) -> Iterator[dict[str, str | int | float]]:
    """Trained and acted steps per second over the last half, and what made them."""
    with tempfile.TemporaryDirectory(prefix="seedbed-bench-") as folder:
        run = run_for(load_endless(name, words, Path(folder) / "run"), seconds)
        yield _result(run.experiment, run.points, run.ended)


def last_half(points: Sequence[Point]) -> tuple[Point, Point]:
    """Return the points at which the last half of the time began and ended.

    Raises: SeedbedError if there is too little to measure.
    """
    if len(points) < 3:
        raise SeedbedError("nothing was trained in that time: give it more --seconds")
    middle = (points[0].at + points[-1].at) / 2
    return max((point for point in points if point.at <= middle), key=lambda point: point.at), points[-1]


def rates(points: Sequence[Point]) -> tuple[float, float, float]:
    """(trained, acted) steps per second over the last half of the time, and processors' worth that was stolen in it.

    Raises: SeedbedError if there is too little to measure.
    """
    first, last = last_half(points)
    span = last.at - first.at
    return (
        (last.trained - first.trained) / span,
        (last.acted - first.acted) / span,
        (last.stolen_s - first.stolen_s) / span,
    )


def _result(experiment: Experiment, points: Sequence[Point], ended: Ended) -> dict[str, str | int | float]:
    settings = experiment.settings
    trained, acted, stolen = rates(points)
    return {
        "env_id": settings.env.id,
        "backend": describe_backend(settings.env),
        "network": settings.policy.network,
        "actors": settings.launch.actors,
        "groups": settings.actor.groups,
        "lanes": settings.launch.actors * settings.actor.groups * settings.actor.lanes,
        "seconds": round(points[-1].at - points[0].at, 1),
        "restarts": sum(ended.restarts.values()),
        "trained_steps_per_s": round(trained, 1),
        "acted_steps_per_s": round(acted, 1),
        "stolen_cores": round(stolen, 3),  # by the host of a virtual machine
    }
