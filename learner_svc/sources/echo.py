"""Data echoing: every lane-unroll is trained on several times, in another batch each time.

Lanes come from a queue, as shares of tasks say, and wait in a buffer of fixed size. Batches are drawn from it at
random, without a lane twice, whenever it is full; a lane leaves it after its last use. So each is used exactly `echo`
times, and shuffled within what the buffer holds. Source: Choi et al. 2019, arXiv 1907.05550.
"""

from dataclasses import dataclass, field
from typing import Generic

import numpy as np

from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.learner_svc.sources.sequences import SequenceMemory
from seedbed.learner_svc.sources.source import UNNAMED, FilledBatch, K, Origin, Source, SourcePlan
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import RecordSpec


@dataclass(slots=True)
class _Progress(Generic[K]):
    """How far an unroll's lanes are used."""

    key: K
    lanes: int
    num_stored: int = 0
    num_acknowledged: int = 0  # the first ones
    _finished: set[int] = field(default_factory=set)  # behind these

    @property
    def is_done(self) -> bool:
        """Whether all its lanes are acknowledged."""
        return self.num_acknowledged == self.lanes

    def next_lane(self) -> int:
        """Return the number of the lane that is stored next."""
        self.num_stored += 1
        return self.num_stored - 1

    def finish(self, lane: int) -> int:
        """Note that a lane had its last use; return how many lanes can now be acknowledged."""
        self._finished.add(lane)
        before = self.num_acknowledged
        while self.num_acknowledged in self._finished:
            self._finished.remove(self.num_acknowledged)
            self.num_acknowledged += 1
        return self.num_acknowledged - before


class EchoSource(Source[K]):
    """Batches of B lane-unrolls, each used `plan.echo` times. Owned by the learner's loop.

    Memory: `plan.echo_batches` batches that are shuffled, one that is filled, `plan.num_buffers` that are trained on,
    and the unrolls that wait, which credit bounds.
    """

    def __init__(self, record: RecordSpec, plan: SourcePlan) -> None:
        super().__init__(record, batch=plan.batch, num_buffers=plan.num_buffers, is_pinned=plan.is_pinned)
        self._plan, self._queue = plan, QueueSource[K](record, batch=plan.batch, num_buffers=1, weights=plan.weights)
        capacity = plan.batch * max(plan.echo_batches, plan.num_buffers + 2)  # so that a batch can always be drawn
        self._memory = SequenceMemory(record, capacity, None)
        self._generator = np.random.default_rng([plan.seed, 0xEC40])
        self._uses_left = np.zeros(capacity, np.int64)
        self._in_flight = np.zeros(capacity, np.int64)  # batches that a place's lane is in and that are not released
        self._is_fresh = np.zeros(capacity, bool)  # its lane was in no batch yet
        self._lanes: dict[int, tuple[_Progress[K], int]] = {}  # by place: its unroll, and which lane of it
        self._unrolls: dict[K, _Progress[K]] = {}  # that are not done
        self._tasks = [""] * capacity
        self._drawn: dict[int, Array] = {}  # places, by buffer

    def offer(
        self, key: K, lanes: int, frame: bytes, *, skip: int = 0, task: str = "", origin: Origin = UNNAMED
    ) -> None:
        """Take a task's unroll of `lanes` lanes, of which the first `skip` are not used. Call `check` first."""
        self._unrolls[key] = _Progress(key, lanes - skip)
        self._queue.offer(key, lanes, frame, skip=skip, task=task)

    def fill(self) -> list[K]:
        """Store what there is room for and draw what can be drawn; the unrolls whose last lane was copied."""
        copied = self._queue.fill()
        while True:
            free = np.flatnonzero((self._uses_left == 0) & (self._in_flight == 0))
            if len(free) >= self._plan.batch:
                if (batch := self._queue.take()) is None:
                    return copied
                self._store(batch, free[: self._plan.batch])
                self._queue.release(batch)
                copied += self._queue.fill()
            elif self._free:
                self._draw()
            else:
                return copied

    def _store(self, batch: FilledBatch[K], places: Array) -> None:
        self._memory.store(places, batch.arrays)
        self._uses_left[places], self._is_fresh[places] = self._plan.echo, True
        unrolls = [self._unrolls[key] for key, count in batch.parts for _ in range(count)]
        tasks = [task for task, count in batch.tasks for _ in range(count)]
        for place, unroll, task in zip(places.tolist(), unrolls, tasks, strict=True):
            self._lanes[place], self._tasks[place] = (unroll, unroll.next_lane()), task

    def _draw(self) -> None:
        index = self._free.popleft()
        places = self._generator.permutation(np.flatnonzero(self._uses_left))[: self._plan.batch]
        self._memory.read(places, self._buffers[index], 0)
        names = places.tolist()
        batch = FilledBatch(
            index, self._buffers[index], parts=[(self._lanes[place][0].key, 1) for place in names],
            tasks=[(self._tasks[place], 1) for place in names], fresh_B=self._is_fresh[places].copy(),
        )  # fmt: skip
        self._full.append(batch)
        self._drawn[index] = places
        self._uses_left[places] -= 1
        self._in_flight[places] += 1
        self._is_fresh[places] = False

    def release(self, batch: FilledBatch[K], priorities_B: Array | None = None) -> None:
        """Take a batch back: lanes after their last use can be acknowledged. Priorities are ignored.

        They are acknowledged in their order, whatever the order of their last uses: what is acknowledged is how many of
        an unroll's first lanes are done. So a learner that starts again uses lanes behind these more often than `echo`
        times, and none less often.
        """
        places = self._drawn.pop(batch.index)
        self._free.append(batch.index)
        self._in_flight[places] -= 1
        done = places[(self._uses_left[places] == 0) & (self._in_flight[places] == 0)]
        for unroll, lane in (self._lanes[place] for place in done.tolist()):
            if count := unroll.finish(lane):
                self._used.append((unroll.key, count))
            if unroll.is_done:
                del self._unrolls[unroll.key]

    def describe(self) -> dict[str, int | str]:
        """How often lanes are used, and what they are shuffled within."""
        return {"echo": self._plan.echo, "shuffled_lanes": self._memory.capacity}
