"""Names a run's bottleneck from the rows of its metrics.csv and the knob to turn; decided from numbers alone.

A lane's cycle is waiting for its batch, the forward pass, and everything else: its environment's step, the way there
and back, and being held while the learner is behind. Who is busy all the time is the bottleneck; if nobody is, the
longest part of the cycle is.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from seedbed.services.tools.cli.runs import finite
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference
from seedbed.shared.figures.declare import Column

BUSY = 0.8  # a share of time above this leaves no room
FULL = 0.9  # a machine's processor time in use above this leaves none for more services
SLACK = 0.5  # below this there is plenty
MIN_ROWS = 3
STUCK_LOOP_MS = 20.0
MAX_RANKS_WAIT = 0.2  # of a learner rank's time, for the others


def _newest(values: Sequence[float]) -> float:
    return values[-1]


REMARKS = {column: column.remark for column in columns.COLUMNS if column.remark is not None}
FIGURES: Mapping[Column, Callable[[Sequence[float]], float]] = {  # columns, and what makes one figure of their values
    **dict.fromkeys(
        (
            columns.UPDATE_BUSY_SHARE, columns.LAG_MEAN, columns.INFERENCE_SERVICES, inference.BATCH_FILL.column,
            inference.NUM_LANES.column, inference.QUEUE_WAIT.column, inference.FORWARD.column,
            inference.LOOP_LAG.column, inference.ENV_BUSY.column, columns.MACHINE_BUSY_SHARE, *REMARKS,
        ),
        statistics.fmean,
    ),
    columns.LAG_MAX: max,
    inference.NUM_ACTOR_RESTARTS.column: _newest,
    inference.NUM_AWAITED_GROUPS.column: _newest,  # at the end of the run
}  # fmt: skip
COLUMNS = tuple(  # that are read here
    column.name
    for column in (
        columns.SECONDS, columns.TRAINED_STEPS_PER_S, columns.ENV_STEPS_PER_S, columns.TRAINED_STEPS,
        columns.ENV_STEPS, columns.DROPPED_STEPS, *FIGURES,
    )
)  # fmt: skip


class Bottleneck(StrEnum):
    """The part of a run that limits its speed."""

    LEARNER = "learner"
    INFERENCE = "inference"
    BATCH_WAIT = "batch wait"
    NETWORK = "network"
    ENVIRONMENT = "environment"
    CORES = "cores"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """What a run did over the last half of its training."""

    trained_steps_per_s: float
    acted_steps_per_s: float
    figures: Mapping[Column, float | None]  # of every column in FIGURES, in its unit; None: not measured
    max_policy_lag: float | None = None
    dropped_share: float = 0.0  # of acted steps that were too old to train on
    ranks: Mapping[str, Mapping[Column, float]] = field(default_factory=dict)  # of several, "0" is the chief

    @property
    def num_replicas(self) -> float:
        """The number of inference services, 1 if it was not measured."""
        return max(1.0, self.figures[columns.INFERENCE_SERVICES] or 1.0)

    @property
    def inference_busy_share(self) -> float | None:
        """Share of the time in which a compute thread runs forward passes: passes per second times their length."""
        fill, forward_ms = self.figures[inference.BATCH_FILL.column], self.figures[inference.FORWARD.column]
        if not fill or forward_ms is None:
            return None
        return min(1.0, self.acted_steps_per_s / fill / self.num_replicas * forward_ms / 1e3)

    @property
    def cycle_ms(self) -> float | None:
        """Time between two steps of one lane."""
        lanes = self.figures[inference.NUM_LANES.column]
        return 1e3 * lanes / self.acted_steps_per_s if lanes and self.acted_steps_per_s else None


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
    updates = signals.figures[columns.UPDATE_BUSY_SHARE] or 0.0
    passes = signals.inference_busy_share or 0.0
    env = signals.figures[inference.ENV_BUSY.column] or 0.0
    busiest, machine = max(updates, passes, env), signals.figures[columns.MACHINE_BUSY_SHARE] or 0.0
    if busiest < BUSY and machine >= FULL:
        return Bottleneck.CORES, f"{machine:.0%} of the machine's processor time is in use, and nobody is always busy"
    if busiest >= BUSY and busiest == updates:
        return Bottleneck.LEARNER, f"updates take {updates:.0%} of the time"
    if busiest >= BUSY and busiest == passes:
        return Bottleneck.INFERENCE, f"forward passes take {passes:.0%} of the compute thread's time"
    if busiest >= BUSY:
        return Bottleneck.ENVIRONMENT, f"the actors' environment threads step {env:.0%} of the time"
    return _longest_part(signals)


def _longest_part(signals: Signals) -> tuple[Bottleneck, str]:
    """Nobody is busy all the time: the longest part of a lane's cycle."""
    figures, cycle_ms = signals.figures, signals.cycle_ms
    if cycle_ms is None:
        return Bottleneck.ENVIRONMENT, "no lane was measured: too few environments dialled in"
    late_ms = figures[inference.LOOP_LAG.column] or 0.0
    if late_ms > STUCK_LOOP_MS:
        return Bottleneck.NETWORK, f"inference's loop reacts {late_ms:.0f} ms late"
    wait_ms, forward_ms = figures[inference.QUEUE_WAIT.column] or 0.0, figures[inference.FORWARD.column] or 0.0
    rest_ms = max(0.0, cycle_ms - wait_ms - forward_ms)
    if wait_ms > max(rest_ms, forward_ms):
        return Bottleneck.BATCH_WAIT, f"a lane waits {wait_ms:.2f} ms for its batch, of a cycle of {cycle_ms:.2f} ms"
    if forward_ms > rest_ms:
        return Bottleneck.INFERENCE, f"a forward pass takes {forward_ms:.2f} ms, of a cycle of {cycle_ms:.2f} ms"
    text = f"{rest_ms:.2f} ms of a lane's cycle of {cycle_ms:.2f} ms are outside inference"
    env = figures[inference.ENV_BUSY.column]
    if env is not None and env < SLACK:
        return Bottleneck.NETWORK, f"{text}, and environments step only {env:.0%} of the time"
    return Bottleneck.ENVIRONMENT, text


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
    figures, lag, max_lag = signals.figures, signals.figures[columns.LAG_MAX], signals.max_policy_lag
    if awaited := figures[inference.NUM_AWAITED_GROUPS.column]:
        remarks.append(
            f"the deterministic run waits for {awaited:.0f} training groups, and all others with it: "
            f"inference's log names them (groups_awaited)"
        )
    if signals.dropped_share > 0.01:
        remarks.append(
            f"{signals.dropped_share:.1%} of the acted steps were too old to train on: fewer lanes, a larger "
            f"learner.batch, or a higher learner.max_policy_lag"
        )
    elif lag is not None and max_lag and lag > 0.8 * max_lag:
        remarks.append(f"policy lag reaches {lag:.0f} of at most {max_lag:.0f} updates")
    for column, remark in REMARKS.items():
        mean = figures[column]
        if mean is not None and (text := remark.of(mean)):
            remarks.append(text)
    ranks = signals.ranks
    if ranks and max(rank[columns.RANK_RANKS_WAIT] for rank in ranks.values()) > MAX_RANKS_WAIT:
        slowest = max(ranks, key=lambda name: ranks[name][columns.RANK_BATCH_WAIT])
        remarks.append(
            f"learner rank {slowest} has no batch for {ranks[slowest][columns.RANK_BATCH_WAIT]:.0%} of the time, and "
            f"the others wait for it: its machine or its inference services are slower than theirs"
        )
    if restarts := figures[inference.NUM_ACTOR_RESTARTS.column]:
        remarks.append(f"actors were restarted {restarts:.0f} times: see logs/")
    return remarks


def summarise(rows: Sequence[Mapping[str, str]], *, source: str, max_policy_lag: float | None = None) -> Signals:
    """Means over the last half of the rows from the first to the last in which steps were trained."""
    trained_at = [at for at, row in enumerate(rows) if (finite(row.get(columns.TRAINED_STEPS_PER_S.name)) or 0.0) > 0]
    if len(trained_at) < MIN_ROWS:
        problem = f"only {len(trained_at)} rows with training in it; let the run go on for some seconds"
        raise ConfigError(f"{source}: {problem}")
    awaited = finite(rows[-1].get(inference.NUM_AWAITED_GROUPS.column.name))  # then nothing is trained
    rows = rows[trained_at[0] : trained_at[-1] + 1]  # where an update takes long, rows without one lie between
    late = rows[len(rows) // 2 :]

    def values(name: str, of: Sequence[Mapping[str, str]] = late) -> list[float]:
        return [value for row in of if (value := finite(row.get(name))) is not None]

    def combine(name: str, how: Callable[[Sequence[float]], float] = statistics.fmean) -> float | None:
        found = values(name)
        return how(found) if found else None

    def rate(per_s: Column, total: Column) -> float:
        """What a total rose by in a second; without it the mean of the rows' rates."""
        since = rows[max(0, len(rows) // 2 - 1) :]  # from the row before
        seconds, steps = values(columns.SECONDS.name, since), values(total.name, since)
        passed_s = seconds[-1] - seconds[0] if len(seconds) == len(steps) == len(since) else 0.0
        return (steps[-1] - steps[0]) / passed_s if passed_s > 0 else combine(per_s.name) or 0.0

    trained = rate(columns.TRAINED_STEPS_PER_S, columns.TRAINED_STEPS)
    acted = rate(columns.ENV_STEPS_PER_S, columns.ENV_STEPS)
    dropped, kept = (combine(column.name, _newest) or 0.0 for column in (columns.DROPPED_STEPS, columns.TRAINED_STEPS))
    figures = {column: combine(column.name, how) for column, how in FIGURES.items()}
    return Signals(
        trained_steps_per_s=trained,
        acted_steps_per_s=acted or trained,
        figures=figures | {inference.NUM_AWAITED_GROUPS.column: awaited},
        max_policy_lag=max_policy_lag,
        dropped_share=dropped / max(1.0, dropped + kept),
        ranks={
            rank: {column: combine(column.of(rank)) or 0.0 for column in columns.RANK_COLUMNS}
            for rank in columns.RANK_BATCH_WAIT.members(late[-1])
            if finite(late[-1][columns.RANK_BATCH_WAIT.of(rank)]) is not None  # a resumed run may have fewer
        },
    )
