"""What a person should look at now: decided from a run's reading and `now` alone."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from seedbed.services.tools.cli.run_state import RunStatus
from seedbed.services.tools.monitor.curves import Array
from seedbed.services.tools.monitor.folder import Death
from seedbed.services.tools.monitor.health import Health, ServiceHealth
from seedbed.services.tools.monitor.settings import hide_secrets
from seedbed.shared.figures import columns
from seedbed.shared.figures.declare import Column
from seedbed.shared.protocol.messages import RunState

NO_PROGRESS_S = 60.0
FAILED_S = 24 * 3600.0  # how long a failure is an alert
FLAPPING_DEATHS = 3
FLAPPING_S = 300.0
MAX_DROPPED_SHARE = 0.01  # of the recent steps
CONTAINER_LOGS = "in containers docker-compose logs"
SCARCE_BYTES = 2 * 2**30
SCARCE_SHARE = 0.05
FULL_BYTES = 256 * 2**20
FIGURES: Mapping[Column, Callable[[Array], np.float64]] = {  # columns, and what makes one figure of their recent rows
    columns.LAG_MAX: np.max,
    columns.DROPPED_SHARE: np.mean,
    columns.LOG_RHO_LAG0: np.median,
}


class Level(StrEnum):
    """How bad an alert is."""

    WARNING = "warning"
    ERROR = "error"


Found = Iterator[tuple[str, Level, str, str]]  # code, level, text and remedy of each alert


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing to look at: what is wrong, and what to do. `run` is empty if it concerns all of them."""

    code: str  # "no_progress", "lag", "disagreement", "non_finite", "failed", "disk", "flapping", "silent", …
    level: Level
    run: str
    text: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A run as alerts see it. None: not known."""

    name: str
    is_live: bool
    state: RunState | None
    stalled_s: float | None  # since a step was last acted or trained
    row_every_s: float  # how often its table gets a row
    figures: Mapping[Column, float | None]  # of the recent rows, of every column in FIGURES
    max_policy_lag: float | None
    crashes: Sequence[str]
    failure: RunStatus | None  # how the run failed, if it did
    deaths: Sequence[Death]
    services: Sequence[ServiceHealth]
    problems: Sequence[str]
    broken_lines: int


def judge_run(reading: Reading, now: float) -> list[Alert]:
    """What is wrong with a run, the worst first."""
    found = [*_non_finite(reading), *_failed(reading, now), *_unreadable(reading)]
    if reading.is_live:
        found += [*_no_progress(reading), *_disagreement(reading), *_lag(reading)]
        found += [*_flapping(reading, now), *_silent(reading)]
    alerts = [Alert(code=c, level=level, run=reading.name, text=t, remedy=r) for c, level, t, r in found]
    return sorted(alerts, key=lambda alert: alert.level is not Level.ERROR)


def judge_disk(free_bytes: int, total_bytes: int) -> list[Alert]:
    """Whether the disk that holds the runs is nearly full."""
    is_full = free_bytes < FULL_BYTES
    if not is_full and free_bytes >= min(SCARCE_BYTES, SCARCE_SHARE * total_bytes):
        return []
    level = Level.ERROR if is_full else Level.WARNING
    text = f"the disk of the run folders has {free_bytes / 2**20:,.0f} MiB left, {free_bytes / total_bytes:.1%}"
    remedy = "delete old runs or their checkpoints/: a learner that cannot save trains on unsaved"
    return [Alert(code="disk", level=level, run="", text=text, remedy=remedy)]


def _non_finite(reading: Reading) -> Found:
    if reading.crashes:
        saved = f"crash/{reading.crashes[-1]}"
        text = f"{len(reading.crashes)} update(s) had a loss or gradient that was not finite; the newest is {saved}"
        remedy = "lower algorithm.learning_rate or algorithm.grad_clip, and look for extreme rewards or observations"
        yield "non_finite", Level.ERROR, text, remedy


def _failed(reading: Reading, now: float) -> Found:
    """A failure that somebody may not know of yet; the list of runs shows older ones, too."""
    if reading.failure is not None and not reading.is_live and now - (reading.failure.at or 0.0) <= FAILED_S:
        text = hide_secrets(f"failed: {reading.failure.cause or 'no cause was told'}")
        yield (
            "failed",
            Level.ERROR,
            text,
            "its last message and logs are below; fix the cause, then --resume goes on",
        )


def _disagreement(reading: Reading) -> Found:
    log_rho = reading.figures[columns.LOG_RHO_LAG0]
    if log_rho is not None and log_rho > columns.MAX_LOG_RHO_LAG0:
        text = (
            f"learner and inference disagree on the same weights: |log ρ| at lag 0 is {log_rho:.2g}, "
            f"and should be 0 up to rounding, at most {columns.MAX_LOG_RHO_LAG0:g}"
        )
        remedy = (
            "the network must give the same output for the same input: look for randomness, or state outside of the "
            "core; if it has none, set learner.precision and inference's to fp32 and compare"
        )
        yield "disagreement", Level.ERROR, text, remedy


def _unreadable(reading: Reading) -> Found:
    for problem in reading.problems:
        yield "unreadable", Level.WARNING, f"cannot read {problem}", "restore the file, or delete it"
    if reading.broken_lines:
        text = f"metrics.csv: {reading.broken_lines} line(s) are no rows and were left out"
        yield "unreadable", Level.WARNING, text, "only the curves miss them; check the disk"


def _no_progress(reading: Reading) -> Found:
    limit_s = max(NO_PROGRESS_S, 3 * reading.row_every_s)
    if reading.state is not RunState.FINISHING and reading.stalled_s is not None and reading.stalled_s >= limit_s:
        remedy = f"see which service is not up, then logs/ in the run folder; {CONTAINER_LOGS}"
        minutes = reading.stalled_s // 60  # not seconds: the page reads an alert out whenever its text changes
        text = f"no step was acted or trained for {minutes:.0f} min"
        yield "no_progress", Level.ERROR, text, remedy


def _lag(reading: Reading) -> Found:
    remedy, bound = "fewer lanes, a larger learner.batch, or a higher learner.max_policy_lag", reading.max_policy_lag
    dropped, lag = reading.figures[columns.DROPPED_SHARE], reading.figures[columns.LAG_MAX]
    if dropped is not None and dropped > MAX_DROPPED_SHARE:
        yield "lag", Level.WARNING, f"{dropped:.1%} of the steps are too old to train on", remedy
    elif lag is not None and bound is not None and lag > bound:
        text = f"policy lag reaches {lag:.0f} updates, over its bound of {bound:.0f}"
        yield "lag", Level.WARNING, text, remedy


def _flapping(reading: Reading, now: float) -> Found:
    deaths = [death for death in reading.deaths if now - death.at < FLAPPING_S]
    last = {death.service: death for death in deaths}
    for name, count in sorted(Counter(death.service for death in deaths).items()):
        if count >= FLAPPING_DEATHS:
            exit_of_last = last[name].exit or "unknown"
            text = f"{name} died {count} times in {FLAPPING_S / 60:.0f} minutes, the last: {exit_of_last}"
            remedy = f"see logs/{name}.stderr and logs/{name}.jsonl in the run folder; {CONTAINER_LOGS}"
            yield "flapping", Level.ERROR, text, remedy


def _silent(reading: Reading) -> Found:
    names = [item.name for item in reading.services if item.health in (Health.SILENT, Health.GONE)]
    if names:
        remedy = "a launcher or a container engine starts them again; without one, start them by hand. Their log says "
        remedy += f"why: logs/ in the run folder, {CONTAINER_LOGS}"
        yield "silent", Level.WARNING, f"{', '.join(names)}: ended, or not answering", remedy
