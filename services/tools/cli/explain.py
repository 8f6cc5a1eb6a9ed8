"""Names a run's bottleneck from its metrics.csv and the knob to turn; decided from numbers alone.

A lane's cycle is waiting for its batch, the forward pass, and everything else: its environment's step, the way there
and back, and being held while the learner is behind. Who is busy all the time is the bottleneck; if nobody is, the
longest part of the cycle is.
"""

import csv
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from seedbed.services.tools.cli.runs import finite
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference
from seedbed.shared.figures.declare import Column

BUSY = 0.8  # a share of time above this leaves no room
SLACK = 0.5  # below this there is plenty
MIN_ROWS = 3
STUCK_LOOP_MS = 20.0
MAX_RANKS_WAIT = 0.2  # of a learner rank's time, for the others


class Bottleneck(StrEnum):
    """The part of a run that limits its speed."""

    LEARNER = "learner"
    INFERENCE = "inference"
    BATCH_WAIT = "batch wait"
    NETWORK = "network"
    ENVIRONMENT = "environment"
    CORES = "cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSignals:
    """What one of several learner ranks does with its time, shares of it."""

    name: str  # "0" is the chief
    batch_wait_share: float  # it has no batch
    ranks_wait_share: float  # it has a batch and waits for other ranks
    lanes_per_s: float  # trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """A run's figures, means over the last half of its training. None: not measured."""

    trained_steps_per_s: float
    acted_steps_per_s: float
    update_busy_share: float | None  # of the update thread
    batch_wait_ms: float | None  # of the learner, for each update
    batch_fill: float | None  # lanes of a forward pass
    lanes: float | None
    inference_services: float = 1.0
    queue_wait_ms: float | None
    forward_ms: float | None
    inference_lag_ms: float | None  # how late the loop's timers were
    env_busy_share: float | None = None  # of the actors' environment threads
    lag_mean: float | None = None
    lag_max: float | None = None
    max_policy_lag: float | None = None
    dropped_share: float = 0.0  # of acted steps that were too old to train on
    actor_restarts: float = 0.0
    awaited_groups: float = 0.0  # at the end, of a deterministic run: that all others wait for
    remarked: Mapping[str, float] = field(default_factory=dict)  # column that may have a remark → mean
    cores: int | None = None
    ranks: tuple[RankSignals, ...] = ()  # with several learner ranks

    @property
    def inference_busy_share(self) -> float | None:
        """Share of the time in which a compute thread runs forward passes: passes per second times their length."""
        if not self.batch_fill or self.forward_ms is None:
            return None
        passes_per_s = self.acted_steps_per_s / self.batch_fill / max(1.0, self.inference_services)
        return min(1.0, passes_per_s * self.forward_ms / 1e3)

    @property
    def cycle_ms(self) -> float | None:
        """Time between two steps of one lane."""
        return 1e3 * self.lanes / self.acted_steps_per_s if self.lanes and self.acted_steps_per_s else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The bottleneck, why it is that, what to turn, and what else was noticed."""

    bottleneck: Bottleneck
    evidence: str
    knobs: tuple[str, ...]
    remarks: tuple[str, ...] = ()


def diagnose(signals: Signals) -> Diagnosis:
    """The bottleneck that the signals point to, with what to change and other remarks."""
    bottleneck, evidence = _decide(signals)
    return Diagnosis(
        bottleneck=bottleneck, evidence=evidence, knobs=KNOBS[bottleneck], remarks=tuple(_remarks(signals))
    )


def _decide(signals: Signals) -> tuple[Bottleneck, str]:
    """The bottleneck and the figure that shows it."""
    learner = signals.update_busy_share or 0.0
    inference = signals.inference_busy_share or 0.0
    env = signals.env_busy_share or 0.0
    busiest = max(learner, inference, env)
    if busiest < BUSY and signals.cores and learner + inference + env > 0.9 * signals.cores:
        return Bottleneck.CORES, (
            f"learner, inference and environments want {learner + inference + env:.1f} cores of {signals.cores}"
        )
    if busiest >= BUSY and busiest == learner:
        return Bottleneck.LEARNER, f"updates take {learner:.0%} of the time"
    if busiest >= BUSY and busiest == inference:
        return Bottleneck.INFERENCE, f"forward passes take {inference:.0%} of the compute thread's time"
    if busiest >= BUSY:
        return Bottleneck.ENVIRONMENT, f"the actors' environment threads step {env:.0%} of the time"
    return _longest_part(signals)


def _longest_part(signals: Signals) -> tuple[Bottleneck, str]:
    """Nobody is busy all the time: the longest part of a lane's cycle."""
    cycle_ms, wait_ms, forward_ms = signals.cycle_ms, signals.queue_wait_ms or 0.0, signals.forward_ms or 0.0
    if cycle_ms is None:
        return Bottleneck.ENVIRONMENT, "no lane was measured: too few environments dialled in"
    if (signals.inference_lag_ms or 0.0) > STUCK_LOOP_MS:
        return Bottleneck.NETWORK, f"inference's loop reacts {signals.inference_lag_ms:.0f} ms late"
    rest_ms = max(0.0, cycle_ms - wait_ms - forward_ms)
    if wait_ms > max(rest_ms, forward_ms):
        return Bottleneck.BATCH_WAIT, f"a lane waits {wait_ms:.2f} ms for its batch, of a cycle of {cycle_ms:.2f} ms"
    if forward_ms > rest_ms:
        return Bottleneck.INFERENCE, f"a forward pass takes {forward_ms:.2f} ms, of a cycle of {cycle_ms:.2f} ms"
    text = f"{rest_ms:.2f} ms of a lane's cycle of {cycle_ms:.2f} ms are outside inference"
    if signals.env_busy_share is not None and signals.env_busy_share < SLACK:
        return Bottleneck.NETWORK, f"{text}, and environments step only {signals.env_busy_share:.0%} of the time"
    return Bottleneck.ENVIRONMENT, text


MEANS: Mapping[str, Column] = {  # signals that are a column's mean
    "update_busy_share": columns.UPDATE_BUSY_SHARE,
    "batch_wait_ms": columns.BATCH_WAIT,
    "batch_fill": inference.BATCH_FILL.column,
    "lanes": inference.NUM_LANES.column,
    "queue_wait_ms": inference.QUEUE_WAIT.column,
    "forward_ms": inference.FORWARD.column,
    "inference_lag_ms": inference.LOOP_LAG.column,
    "env_busy_share": inference.ENV_BUSY.column,
    "lag_mean": columns.LAG_MEAN,
}
REMARKED = {column.name: column for column in columns.COLUMNS if column.remark is not None}
COLUMNS = tuple(  # that are read here
    column.name
    for column in (
        columns.SECONDS, columns.TRAINED_STEPS_PER_S, columns.ENV_STEPS_PER_S, columns.TRAINED_STEPS,
        columns.ENV_STEPS, columns.DROPPED_STEPS,
        columns.INFERENCE_SERVICES, columns.LAG_MAX, inference.NUM_ACTOR_RESTARTS.column,
        inference.NUM_AWAITED_GROUPS.column, *MEANS.values(), *REMARKED.values(),
    )
)  # fmt: skip

KNOBS: Mapping[Bottleneck, tuple[str, ...]] = {
    Bottleneck.LEARNER: (
        "launch.learner_threads: more, if cores are free",
        "learner.batch: larger batches use a processor better; watch the lag",
        "learner.precision=auto and a CUDA device, if the machine has one",
        "policy.network or policy.hidden: smaller",
    ),
    Bottleneck.INFERENCE: (
        "actor.lanes: more lanes for each forward pass cost little",
        "launch.inference_threads: more, or launch.inference: another replica",
        "inference.device: an accelerator",
    ),
    Bottleneck.BATCH_WAIT: (
        "actor.groups: 2 or more, so that one group steps while another waits",
        "inference.idle_deadline_ms: lower",
        "launch.inference: another replica",
    ),
    Bottleneck.NETWORK: (
        "actor.lanes: more lanes in each message",
        "run actors and inference nearer to each other, or fewer services on a machine",
        "runtime.uvloop: compare both with seedbed bench transport",
    ),
    Bottleneck.ENVIRONMENT: (
        "launch.actors: one for each free core, here or on other machines",
        "actor.lanes: more, if the environment has a vector form",
        "env.backend: compare the back-ends of this environment",
    ),
    Bottleneck.CORES: (
        "launch.actors: run actors on other machines (seedbed actor), they need no torch",
        "learner.device, inference.device: an accelerator frees cores",
        "policy.network or policy.hidden: smaller",
    ),
}


def _remarks(signals: Signals) -> list[str]:
    """What else a person should know."""
    remarks = []
    if signals.awaited_groups:
        remarks.append(
            f"the deterministic run waits for {signals.awaited_groups:.0f} training groups, and all others with it: "
            f"inference's log names them (groups_awaited)"
        )
    if signals.dropped_share > 0.01:
        remarks.append(
            f"{signals.dropped_share:.1%} of the acted steps were too old to train on: fewer lanes, a larger "
            f"learner.batch, or a higher learner.max_policy_lag"
        )
    elif signals.lag_max is not None and signals.max_policy_lag and signals.lag_max > 0.8 * signals.max_policy_lag:
        remarks.append(f"policy lag reaches {signals.lag_max:.0f} of at most {signals.max_policy_lag:.0f} updates")
    remarks += [text for name, mean in signals.remarked.items() if (text := _remark(REMARKED[name], mean))]
    if signals.ranks and max(rank.ranks_wait_share for rank in signals.ranks) > MAX_RANKS_WAIT:
        slowest = max(signals.ranks, key=lambda rank: rank.batch_wait_share)
        remarks.append(
            f"learner rank {slowest.name} has no batch for {slowest.batch_wait_share:.0%} of the time, and the others "
            f"wait for it: its machine or its inference services are slower than theirs"
        )
    if signals.actor_restarts:
        remarks.append(f"actors were restarted {signals.actor_restarts:.0f} times: see logs/")
    return remarks


def _remark(column: Column, mean: float) -> str:
    return column.remark.of(mean) if column.remark is not None else ""


def cores_of(run_dir: Path) -> int | None:
    """Cores of the machine that the learner ran on last; None if it did not say."""
    try:
        epochs = json.loads((run_dir / "versions.json").read_bytes())
        cores = list(epochs.values())[-1]["cores"]
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        return None
    return cores if isinstance(cores, int) and cores > 0 else None


def read_signals(run_dir: Path, *, max_policy_lag: float | None = None, cores: int | None = None) -> Signals:
    """The signals of a run.

    Raises: ConfigError if the run has not got far enough.
    """
    file = run_dir / "metrics.csv"
    try:
        with file.open(newline="") as stream:
            rows = list(csv.DictReader(stream))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; is this a run folder?") from error
    return summarise(rows, source=str(file), max_policy_lag=max_policy_lag, cores=cores)


def summarise(
    rows: Sequence[Mapping[str, str]], *, source: str, max_policy_lag: float | None = None, cores: int | None = None
) -> Signals:
    """Means over the last half of the rows from the first to the last in which steps were trained."""
    trained_at = [at for at, row in enumerate(rows) if (finite(row.get(columns.TRAINED_STEPS_PER_S.name)) or 0.0) > 0]
    if len(trained_at) < MIN_ROWS:
        problem = f"only {len(trained_at)} rows with training in it; let the run go on for some seconds"
        raise ConfigError(f"{source}: {problem}")
    awaited = finite(rows[-1].get(inference.NUM_AWAITED_GROUPS.column.name)) or 0.0  # then nothing is trained
    rows = rows[trained_at[0] : trained_at[-1] + 1]  # where an update takes long, rows without one lie between
    late = rows[len(rows) // 2 :]

    def values(column: Column, of: Sequence[Mapping[str, str]] = late) -> list[float]:
        return [value for row in of if (value := finite(row.get(column.name))) is not None]

    def mean(column: Column) -> float | None:
        found = values(column)
        return statistics.fmean(found) if found else None

    def of_rank(column: Column, rank: str) -> float:
        return mean(replace(column, name=column.of(rank))) or 0.0

    def last(column: Column) -> float:
        return next(reversed(values(column)), 0.0)

    def rate(per_s: Column, total: Column) -> float:
        """What a total rose by in a second; without it the mean of the rows' rates."""
        since = rows[max(0, len(rows) // 2 - 1) :]  # from the row before
        seconds, steps = values(columns.SECONDS, since), values(total, since)
        passed_s = seconds[-1] - seconds[0] if len(seconds) == len(steps) == len(since) else 0.0
        return (steps[-1] - steps[0]) / passed_s if passed_s > 0 else mean(per_s) or 0.0

    trained = rate(columns.TRAINED_STEPS_PER_S, columns.TRAINED_STEPS)
    acted = rate(columns.ENV_STEPS_PER_S, columns.ENV_STEPS)
    dropped = last(columns.DROPPED_STEPS)
    return Signals(
        trained_steps_per_s=trained,
        acted_steps_per_s=acted or trained,
        **{signal: mean(column) for signal, column in MEANS.items()},
        remarked={name: found for name, column in REMARKED.items() if (found := mean(column)) is not None},
        inference_services=mean(columns.INFERENCE_SERVICES) or 1.0,
        lag_max=max(values(columns.LAG_MAX), default=None),
        max_policy_lag=max_policy_lag,
        dropped_share=dropped / max(1.0, dropped + last(columns.TRAINED_STEPS)),
        actor_restarts=last(inference.NUM_ACTOR_RESTARTS.column),
        awaited_groups=awaited,
        cores=cores,
        ranks=tuple(
            RankSignals(
                name=rank,
                batch_wait_share=of_rank(columns.RANK_BATCH_WAIT, rank),
                ranks_wait_share=of_rank(columns.RANK_RANKS_WAIT, rank),
                lanes_per_s=of_rank(columns.RANK_TRAINED_LANES, rank),
            )
            for rank in columns.RANK_BATCH_WAIT.members(late[-1])
            if finite(late[-1][columns.RANK_BATCH_WAIT.of(rank)]) is not None  # a resumed run may have fewer
        ),
    )
