"""Episodes → figures: the last ones in training, and those of an evaluation."""

import math
from collections import deque
from dataclasses import dataclass, field

from shared.protocol.layout import Array

RETURN_WINDOW = 100  # finished episodes in the training return


@dataclass(slots=True)
class Returns:
    """The last finished training episodes."""

    returns: deque[float] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))
    lengths: deque[float] = field(default_factory=lambda: deque(maxlen=RETURN_WINDOW))

    @property
    def mean(self) -> float | None:
        """Mean return, None before the first episode."""
        return math.fsum(self.returns) / len(self.returns) if self.returns else None

    @property
    def is_full(self) -> bool:
        """Whether so many episodes have ended that the mean means something."""
        return len(self.returns) == RETURN_WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """One policy version, measured. Of several tasks: spread, median, least and greatest are those of their means."""

    version: int  # packed
    episodes: int
    return_mean: float
    return_std: float
    return_median: float
    return_min: float
    return_max: float
    length_mean: float


def measure(versions: Array, statistics: Array) -> EvaluationResult:
    """Figures of packed versions i64 [N], all the same, and statistics f32 [N, K] (return, length, …)."""
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
    )


def median(ordered: list[float]) -> float:
    """Of values in ascending order, at least one."""
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
