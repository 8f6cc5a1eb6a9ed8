"""A first-in, first-out source: lanes are copied into preallocated batches, each used once.

If an unroll does not fit, its remaining lanes go first into the next batch. Every task has its own queue, and
`FairShare` decides from which queue the next lanes come. Batch arrays are those of the record, time first; a value for
a whole tick is repeated for each lane, [R-1, B].
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from seedbed.learner_svc.sources.fair_share import FairShare
from seedbed.learner_svc.sources.source import UNNAMED, FilledBatch, K, Origin, Source
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.ledger import SINGLE_TASK
from seedbed.shared.protocol.recording import Per, RecordSpec


@dataclass(slots=True)
class _Waiting(Generic[K]):
    """An unroll whose lanes from `next_lane` on are not copied yet."""

    key: K
    lanes: int
    next_lane: int
    arrays: list[Array]

    @property
    def left(self) -> int:
        """The number of lanes that are not copied yet."""
        return self.lanes - self.next_lane


class QueueSource(Source[K]):
    """Batches of B lane-unrolls, each used once. Owned by the learner's loop.

    A batch belongs to the caller of `take` until `release`. Memory: `num_buffers` batches, and the waiting unrolls,
    which credit bounds. `K` identifies an unroll. `weights` are those of the tasks, summing to 1.
    """

    def __init__(
        self, record: RecordSpec, *, batch: int, num_buffers: int = 2, weights: Mapping[str, float] = SINGLE_TASK,
        is_pinned: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(record, batch=batch, num_buffers=num_buffers, is_pinned=is_pinned)
        self._filling: FilledBatch[K] | None = None
        self._num_filled = 0  # filled lanes of `_filling`
        self._waiting: dict[str, deque[_Waiting[K]]] = {task: deque() for task in weights}
        self._shares = FairShare(weights, catch_up_lanes=batch)

    def offer(
        self, key: K, lanes: int, frame: bytes, *, skip: int = 0, task: str = "", origin: Origin = UNNAMED
    ) -> None:
        """Take a task's unroll of `lanes` lanes, of which the first `skip` are not used. Call `check` first."""
        self._waiting[task].append(_Waiting(key, lanes, skip, self._layouts.of(lanes).views([frame])))

    def fill(self) -> list[K]:
        """Copy as many lanes as fit; return the unrolls whose last lane was copied, whose frames are freed."""
        copied = [key for queue in self._waiting.values() for key in _pop_used(queue)]
        while (waiting := self._waiting_by_task()) and (filling := self._open()) is not None:
            for task, count in self._shares.share_out(waiting, self._batch - self._num_filled).items():
                self._copy_lanes(filling, self._waiting[task], count)
                filling.tasks.append((task, count))
                copied += _pop_used(self._waiting[task])
            if self._num_filled == self._batch:
                self._full.append(filling)
                self._filling = None
        return copied

    def _waiting_by_task(self) -> dict[str, int]:
        """Return how many lanes of each task wait to be copied, of tasks that have any."""
        counts = {task: sum(item.left for item in queue) for task, queue in self._waiting.items()}
        return {task: count for task, count in counts.items() if count}

    def _copy_lanes(self, filling: FilledBatch[K], queue: deque[_Waiting[K]], lanes: int) -> None:
        """Copy this many lanes from the head of a queue into a batch that has room for them."""
        for item in queue:
            count = min(item.left, lanes)
            if count:
                self._copy(filling, item, count)
                filling.parts.append((item.key, count))
                item.next_lane += count
                self._num_filled += count
                lanes -= count
            if not lanes:
                return

    def release(self, batch: FilledBatch[K], priorities_B: Array | None = None) -> None:
        """Take a batch back after it was trained on; its arrays are overwritten. Priorities are ignored."""
        self._free.append(batch.index)
        self._used += batch.parts

    def _open(self) -> FilledBatch[K] | None:
        """Return the batch being filled, or a new one if a buffer is free; else None."""
        if self._filling is None and self._free:
            index = self._free.popleft()
            self._filling = FilledBatch(index, self._buffers[index])
            self._num_filled = 0
        return self._filling

    def _copy(self, filling: FilledBatch[K], item: _Waiting[K], count: int) -> None:
        to = slice(self._num_filled, self._num_filled + count)
        source = slice(item.next_lane, item.next_lane + count)
        for field_, target, values in zip(self.record.fields, filling.arrays, item.arrays, strict=True):
            match field_.per:
                case Per.ROW | Per.TRANSITION:
                    target[:, to] = values[:, source]
                case Per.TICK:
                    target[:, to] = values[:, None]
                case Per.LANE:
                    target[to] = values[source]


def _pop_used(queue: deque[_Waiting[K]]) -> list[K]:
    """Remove and return the unrolls at the head of a queue that have no lane left."""
    used = []
    while queue and not queue[0].left:
        used.append(queue.popleft().key)
    return used
