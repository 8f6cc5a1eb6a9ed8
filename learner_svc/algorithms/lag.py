"""Policy lag: the number of updates between a row's action and its use, and which rows are too old.

A packed policy_version is (epoch, step). Within the learner's own epoch, lag is a difference of steps. Rows of an
earlier epoch have lag max(0, step now - step). If their step is beyond the one that this learner resumed from, their
weights were lost with an earlier learner, and the rows are dropped as lost; so are rows without a version, and rows of
a version that is still to come, which only another run can have acted with.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import EPOCH_SHIFT, unpack_version

NUM_LAG_BUCKETS = 10  # lag 0, 1, 2–3, 4–7, …, 128–255, 256 and more
LAG_BOUNDS = (0, *((1 << bucket) - 1 for bucket in range(1, NUM_LAG_BUCKETS - 1)))  # greatest lag of all but the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Policy lag of every transition of a batch at the start of its update. Host arrays [T, B]."""

    lag: Array  # i64, never negative
    fresh: Array  # bool: may be trained on
    lost: Array  # bool: acted by weights of a lost learner epoch, or by none of this run


def policy_lag(version: Array, version_now: int, max_policy_lag: int, *, epoch_start_step: int = 0) -> Lag:
    """Return the lag of transitions at an update that starts from `version_now`.

    Args:
      version: packed policy_version of each transition, i64 [T, B]; 0 for none.
      version_now: the learner's own packed version before this update.
      max_policy_lag: a larger lag makes a transition too old.
      epoch_start_step: the step of the checkpoint that this learner epoch started from.
    """
    epoch_now, step_now = unpack_version(version_now)
    lag = version_now - version
    if lag.size and int(lag.min()) >= 0 and int(lag.max()) <= step_now:  # the usual case: all rows are of this epoch
        lost = version == 0
        return Lag(lag=lag, fresh=(lag <= max_policy_lag) & ~lost, lost=lost)
    step = version & ((1 << EPOCH_SHIFT) - 1)
    lag = np.maximum(0, step_now - step)
    lost = ((version >> EPOCH_SHIFT < epoch_now) & (step > epoch_start_step)) | (version == 0) | (version > version_now)
    return Lag(lag=lag, fresh=(lag <= max_policy_lag) & ~lost, lost=lost)


def lag_histogram(lag: Array, valid: Array) -> tuple[int, ...]:
    """Count valid transitions by lag: 0, 1, 2–3, 4–7, … (powers of two); the last bucket is open."""
    counted = np.minimum(lag[valid], 1 << (NUM_LAG_BUCKETS - 2))
    bucket = np.frexp(counted.astype(np.float64))[1]  # 0 → 0, 1 → 1, 2–3 → 2, 4–7 → 3, …
    return tuple(int(count) for count in np.bincount(bucket, minlength=NUM_LAG_BUCKETS))


def name_buckets(counts: Sequence[int]) -> dict[str, int]:
    """Return a histogram with names for JSON: "0", "1", "2-3", …, "256-" → transitions."""
    lows = (0, *(bound + 1 for bound in LAG_BOUNDS))
    highs = (*(str(bound) for bound in LAG_BOUNDS), "")
    names = [str(low) if str(low) == high else f"{low}-{high}" for low, high in zip(lows, highs, strict=True)]
    return dict(zip(names, counts, strict=True))
