"""What of a batch is trained on, and in which minibatches: decided and counted on the host, before the update.

Minibatches are of transitions where the algorithm looks at each alone and the policy has no LSTM: those of one lane
are alike, and a minibatch of a few lanes would say little about the batch. Else they are of whole lanes.

Shape suffixes: T transitions, B lane-unrolls, N lanes or transitions of a minibatch.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from seedbed.learner_svc.algorithms.lag import NUM_LAG_BUCKETS, Lag, lag_histogram, policy_lag
from seedbed.learner_svc.sources.batch import Batch, present_rows, valid_transitions
from seedbed.shared.protocol.layout import Array


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks of a batch's transitions on the host, each bool [T, B]."""

    valid: Array  # steps
    trained: Array  # valid, and fresh enough to train on
    current: Array  # trained, and acted by the present weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedBatch:
    """A batch, what of it is trained on, and what was counted: all that is known before the other ranks are asked."""

    batch: Batch
    numbers: list[float]  # what all ranks must know of it
    masks: Masks
    minibatches: list[Array | None]  # of all passes: lanes, or transitions t·B + b, i64 [N]; None: the whole batch
    dropped_steps_B: Array  # valid and not trained on, i64 [B]
    present: Array | None  # rows that observation statistics count, bool [R-1, B]; None: all
    task_B: Array | None
    seconds: float  # that it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Decides what of each batch is trained on. Holds nothing of a batch, so any thread may use it."""

    is_lag_bounded: bool = True  # False: the algorithm takes transitions of any age
    by_transition: bool = False  # minibatches are of transitions, in place of whole lanes
    passes: int = 1  # over each batch
    minibatches: int = 1  # even parts of each pass; at most one for each lane or transition
    seed: int = 0  # of the order in minibatches
    num_tasks: int = 0
    epoch_start_step: int = 0  # the step that this learner epoch resumed from

    def count(
        self, batch: Batch, *, step: int, max_policy_lag: int, version_now: int, task_B: Array | None = None,
        fresh_B: Array | None = None,
    ) -> CountedBatch:  # fmt: skip
        """Decide what of a batch is trained on, and count it.

        Args:
          batch: on the host.
          step: number of updates so far.
          max_policy_lag: transitions with a larger lag are masked, unless the algorithm is for any age.
          version_now: packed policy_version of the weights before this update.
          task_B: number of each lane's task, i64 [B]; None in a run without tasks.
          fresh_B: lanes that no update had before, bool [B]: observation statistics count these; None: all.
        """
        started = time.perf_counter()
        valid = valid_transitions(batch.flags.numpy())
        valid[: batch.record.overlap] = False  # burn-in: these transitions only bring the memory up to date
        lag = policy_lag(batch.version.numpy(), version_now, max_policy_lag, epoch_start_step=self.epoch_start_step)
        if not self.is_lag_bounded:
            lag = replace(lag, fresh=np.ones_like(lag.fresh), lost=np.zeros_like(lag.lost))
        trained = valid & lag.fresh
        masks = Masks(valid=valid, trained=trained, current=trained & (lag.lag == 0))
        minibatches = list(self._minibatches(trained.size if self.by_transition else trained.shape[1], step))
        steps = self._count_steps(masks, minibatches)
        numbers = _count(masks, lag, steps, _by_task(trained, task_B, self.num_tasks))
        return CountedBatch(
            batch=batch, numbers=numbers, masks=masks, minibatches=minibatches,
            dropped_steps_B=np.count_nonzero(valid & ~trained, axis=0), present=_uncounted_rows(batch, fresh_B),
            task_B=task_B, seconds=time.perf_counter() - started,
        )  # fmt: skip

    def _minibatches(self, number: int, step: int) -> Iterator[Array | None]:
        """Return the lanes or transitions of each optimiser step, of `number` in all."""
        order = np.random.Generator(np.random.Philox(key=(self.seed, step)))  # a resumed run repeats it
        parts = min(self.minibatches, number)
        for _ in range(self.passes):
            yield from np.array_split(order.permutation(number), parts) if parts > 1 else [None]

    def _count_steps(self, masks: Masks, minibatches: Sequence[Array | None]) -> list[tuple[int, int]]:
        """Count each optimiser step's trained transitions, and those of them acted by the present weights."""
        if self.by_transition:
            trained, current = masks.trained.ravel(), masks.current.ravel()
        else:
            trained, current = np.count_nonzero(masks.trained, axis=0), np.count_nonzero(masks.current, axis=0)
        return [
            (int((trained if chosen is None else trained[chosen]).sum()),
             int((current if chosen is None else current[chosen]).sum()) if number == 0 else 0)
            for number, chosen in enumerate(minibatches)
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Counts:
    """What is counted on the host before an update, over the batches of all ranks. Transitions where nothing else."""

    num_trained: int
    num_current: int
    num_valid: int
    num_lost: int
    dropped_unrolls: int
    size: int
    lag_mean: float  # over trained transitions
    lag_max: float
    lag_sum: int
    lag_histogram: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]  # of each optimiser step: trained, and acted by the present weights
    tasks: tuple[tuple[int, int], ...]  # of each task: lanes, and transitions trained on

    @classmethod
    def of(cls, counted: CountedBatch, told: Sequence[Array]) -> "Counts":
        """Add up the numbers of every rank's batch, f64 [N] each; `counted` is one of these batches."""
        totals = np.sum(told, axis=0).tolist()
        num_trained, num_current, num_valid, num_lost, dropped, size, lags, _, lag_sum, *rest = totals
        buckets, pairs = rest[:NUM_LAG_BUCKETS], [int(count) for count in rest[NUM_LAG_BUCKETS:]]
        both, num_steps = tuple(zip(pairs[::2], pairs[1::2], strict=True)), len(counted.minibatches)
        return cls(
            num_trained=int(num_trained), num_current=int(num_current), num_valid=int(num_valid),
            num_lost=int(num_lost), dropped_unrolls=int(dropped), size=int(size),
            lag_mean=lags / num_trained if num_trained else 0.0,
            lag_max=float(max(numbers[7] for numbers in told)), lag_sum=int(lag_sum),
            lag_histogram=tuple(map(int, buckets)), steps=both[:num_steps], tasks=both[num_steps:],
        )  # fmt: skip


def _count(masks: Masks, lag: Lag, steps: Sequence[tuple[int, int]], tasks: Sequence[tuple[int, int]]) -> list[float]:
    """Count one rank's batch, for `Counts.of`."""
    valid, trained = masks.valid, masks.trained
    trained_lags, counted = lag.lag[trained], valid & ~lag.lost  # lost weights have no meaningful lag
    return [
        float(np.count_nonzero(trained)),
        float(np.count_nonzero(masks.current)),
        float(np.count_nonzero(valid)),
        float(np.count_nonzero(valid & lag.lost)),
        float(np.count_nonzero(valid.any(axis=0) & ~trained.any(axis=0))),
        valid.size,
        trained_lags.sum(),
        trained_lags.max() if len(trained_lags) else 0.0,
        lag.lag[counted].sum(),
        *lag_histogram(lag.lag, counted),
        *(count for pair in (*steps, *tasks) for count in pair),
    ]


def _uncounted_rows(batch: Batch, fresh_B: Array | None) -> Array | None:
    """Rows 1… that have an agent and that no update had before, bool [R-1, B]; None if that is all of them."""
    present, overlap = present_rows(batch.flags.numpy()), batch.record.overlap
    if fresh_B is None and not overlap:
        return present
    counted = np.ones(batch.reward.shape, bool)[1:] if present is None else present
    counted[:overlap] = False
    return counted if fresh_B is None else counted & fresh_B


def _by_task(trained: Array, task_B: Array | None, num_tasks: int) -> list[tuple[int, int]]:
    """Return (lanes, trained transitions) of each task in a batch; none without tasks."""
    if task_B is None:
        return [(0, 0)] * num_tasks
    steps_B = np.count_nonzero(trained, axis=0)
    return [(int(np.count_nonzero(task_B == task)), int(steps_B[task_B == task].sum())) for task in range(num_tasks)]
