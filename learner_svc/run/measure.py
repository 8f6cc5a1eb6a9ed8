"""Statistics of episodes: of the last training episodes, and of an evaluation."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seedbed.shared.figures import columns
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.statistics import GIVEN, Means, evaluation_column

RETURN_WINDOW = 100  # number of finished episodes in the training return


@dataclass(slots=True)
class Returns:
    """The last finished training episodes. `own`: the environment's statistics, NaN where an episode gave none."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))
    own: dict[str, deque[float]] = field(default_factory=dict)

    def adopt(self, names: Iterable[str]) -> None:
        """Set the names of the environment's own statistics; values restored from a checkpoint stay."""
        self.own = {name: self.own.get(name, deque(maxlen=RETURN_WINDOW)) for name in names}

    def add(self, statistics: Array) -> None:
        """Add ended episodes, f32 [N, K]: return, length, the environment's own statistics."""
        for column, kept in zip(statistics.T.tolist(), (self.returns, self.lengths, *self.own.values()), strict=False):
            kept.extend(column)

    @property
    def mean(self) -> float | None:
        """Mean return; None before the first episode."""
        return known_mean(self.returns)

    @property
    def means(self) -> Means:
        """The mean of every statistic by its name; None where nothing is known yet."""
        every = {"return": self.returns, "length": self.lengths, **self.own}
        return {name: known_mean(values) for name, values in every.items()}

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        own = {name: [None if math.isnan(value) else value for value in kept] for name, kept in self.own.items()}
        return {"returns": list(self.returns), "lengths": list(self.lengths), "own": own}

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Restore what `to_json` returned, before `adopt`."""
        self.returns.extend(meta["returns"])
        self.lengths.extend(meta["lengths"])
        self.adopt(meta.get("own", {}))
        for name, values in meta.get("own", {}).items():
            self.own[name].extend(math.nan if value is None else value for value in values)

    @property
    def is_full(self) -> bool:
        """Whether enough episodes have ended for a meaningful mean."""
        return len(self.returns) == RETURN_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The result of one evaluation. With several tasks, deviation, median, minimum and maximum are over their means."""

    version: int  # packed
    episodes: int
    return_mean: float
    return_std: float
    return_median: float
    return_min: float
    return_max: float
    length_mean: float
    own: Means = field(default_factory=dict)  # means of the environment's statistics

    @property
    def means(self) -> Means:
        """The mean of every statistic by its name; None where nothing is known yet."""
        return {"return": self.return_mean, "length": self.length_mean, **self.own}


def measure(versions: Array, statistics: Array, names: Sequence[str] = GIVEN) -> EvaluationResult:
    """Return the result of an evaluation.

    Args:
      versions: packed, i64 [N], all equal.
      statistics: f32 [N, K], named by `names`, which begin with return and length.
    """
    returns, lengths = statistics[:, 0].astype(float), statistics[:, 1].astype(float)
    ordered = sorted(returns.tolist())
    return EvaluationResult(
        version=int(versions[0]),
        episodes=len(ordered),
        return_mean=float(returns.mean()),
        return_std=float(returns.std()),
        return_median=median(ordered),
        return_min=ordered[0],
        return_max=ordered[-1],
        length_mean=float(lengths.mean()),
        own={name: known_mean(column) for name, column in zip(names[2:], statistics.T[2:].tolist(), strict=False)},
    )


def own_columns(means: Means, column: Callable[[str], str], task: str = "") -> dict[str, float | None]:
    """Return the means of the environment's own statistics by column; the columns of a task end with its name."""
    suffix = f"/{task}" if task else ""
    return {column(name) + suffix: mean for name, mean in means.items() if name not in GIVEN}


def known_mean(values: Collection[float]) -> float | None:
    """Return the mean of the values that are not NaN; None if all are."""
    total = math.fsum(values)
    if math.isnan(total):
        return known_mean([value for value in values if not math.isnan(value)])
    return total / len(values) if values else None


def mean_over(parts: Sequence[Means]) -> Means:
    """Return the unweighted mean of several tasks' means; None for a statistic that one of them lacks."""
    joined: dict[str, float | None] = {}
    for name in parts[0] if parts else ():
        values = [part.get(name) for part in parts]
        known = [value for value in values if value is not None]
        joined[name] = math.fsum(known) / len(known) if len(known) == len(values) else None
    return joined


def median(ordered: list[float]) -> float:
    """Return the median of values in ascending order, at least one."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def evaluation_figures(result: EvaluationResult) -> dict[str, float | int | None]:
    """Return an evaluation's result as columns of metrics.csv."""
    return {
        columns.EVAL_RETURN_MEAN.name: result.return_mean,
        columns.EVAL_RETURN_STD.name: result.return_std,
        columns.EVAL_RETURN_MEDIAN.name: result.return_median,
        columns.EVAL_RETURN_MIN.name: result.return_min,
        columns.EVAL_RETURN_MAX.name: result.return_max,
        columns.EVAL_LENGTH_MEAN.name: result.length_mean,
        columns.EVAL_EPISODES.name: result.episodes,
        columns.EVAL_VERSION.name: result.version,
        **own_columns(result.means, evaluation_column),
    }
