"""Policy lag: how many updates lie between a row's action and the update that would use it, and which rows are too old.

A packed policy_version is (epoch, step). Within the learner's own epoch lag is a difference of steps. Rows of an
earlier epoch have lag max(0, newest step seen - step); if they were acted by weights that this learner never had
(a step beyond the one it resumed from), they are of a lost epoch and dropped as such. Rows without a version are lost.
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
    """Lag of every transition of a batch, when its update starts. Host arrays [T, B]."""

    lag: Array  # i64, never negative
    fresh: Array  # bool: may be trained on
    lost: Array  # bool: acted by weights of a lost learner epoch


def policy_lag(version: Array, version_now: int, max_policy_lag: int, *, epoch_start_step: int = 0) -> Lag:
    """The lag of versions i64 [T, B] at an update that starts from `version_now`.

    Args:
      version: packed policy_version per transition; 0 for none.
      version_now: the learner's own packed version before this update.
      max_policy_lag: more updates than this make a row stale.
      epoch_start_step: the step from which this learner's epoch started (its checkpoint's).
    """
    epoch_now, step_now = unpack_version(version_now)
    lag = version_now - version
    if lag.size and int(lag.min()) >= 0 and int(lag.max()) <= step_now:  # all of this epoch: the usual case
        lost = version == 0
        return Lag(lag=lag, fresh=(lag <= max_policy_lag) & ~lost, lost=lost)
    step = version & ((1 << EPOCH_SHIFT) - 1)
    lag = np.maximum(0, step_now - step)
    lost = ((version >> EPOCH_SHIFT < epoch_now) & (step > epoch_start_step)) | (version == 0)
    return Lag(lag=lag, fresh=(lag <= max_policy_lag) & ~lost, lost=lost)


def lag_histogram(lag: Array, valid: Array) -> tuple[int, ...]:
    """Valid transitions per bucket of lag: 0, 1, 2–3, 4–7, … (powers of two), the last one open."""
    counted = np.minimum(lag[valid], 1 << (NUM_LAG_BUCKETS - 2))
    bucket = np.frexp(counted.astype(np.float64))[1]  # 0 → 0, 1 → 1, 2–3 → 2, 4–7 → 3, …
    return tuple(int(count) for count in np.bincount(bucket, minlength=NUM_LAG_BUCKETS))


def name_buckets(counts: Sequence[int]) -> dict[str, int]:
    """A histogram for people and JSON: "0", "1", "2-3", …, "256-" → transitions."""
    lows = (0, *(bound + 1 for bound in LAG_BOUNDS))
    highs = (*(str(bound) for bound in LAG_BOUNDS), "")
    names = [str(low) if str(low) == high else f"{low}-{high}" for low, high in zip(lows, highs, strict=True)]
    return dict(zip(names, counts, strict=True))
