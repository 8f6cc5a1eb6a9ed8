"""Prioritised replay: sequences are kept, drawn in proportion to their priority, and trained on again and again.

- An unroll is acknowledged once its lanes are stored; when the room is full the oldest sequences give way.
- `ratio` sequences are drawn for each new one, no more and no fewer: too few new ones, and no batch is made; too many,
  and unrolls wait, so that credit runs out and the environments wait too.
- A batch has no sequence twice. Its lanes are weighed by (1 / P)^β, divided by the batch's largest, for what drawing by
  priority overrates.

Sources: Schaul et al. 2016, arXiv 1511.05952; Kapturowski et al. 2019.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic

import numpy as np

from seedbed.learner_svc.sources.sequences import SequenceMemory, sequence_bytes
from seedbed.learner_svc.sources.source import UNNAMED, FilledBatch, K, Origin, Source, SourcePlan
from seedbed.learner_svc.sources.sum_tree import SumTree
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.runtime.memory import available_bytes

COPIED_BYTES = 8 << 20  # in one call of `fill`: a few milliseconds
FOLDER = "replay"
MIN_PRIORITY = 1e-6  # so that a sequence without any error can still be drawn


@dataclass(frozen=True, slots=True)
class _UnstoredUnroll(Generic[K]):
    """An unroll that is not stored yet; its first `skip` lanes are left out."""

    key: K
    lanes: int
    skip: int
    task: str
    origin: Origin
    frame: bytes


@dataclass(slots=True)
class _Drawn:
    """What is in a buffer: places, and the numbers of the sequences that lay there; so many are copied."""

    places: Array
    numbers: Array
    num_copied: int = 0


class ReplaySource(Source[K]):
    """A ring of sequences. Owned by the learner's loop; a batch is its taker's until `release`.

    Memory: the sequences, stated in the log, a tree of sums, `num_buffers` batches, and unrolls that wait, which credit
    bounds. Large because a sequence's whole life is here: it waits, is stored, drawn, measured anew, and gives way.

    Attributes: `num_recovered` sequences were found in the file, `num_torn` others were spoilt.
    """

    def __init__(
        self,
        record: RecordSpec,
        plan: SourcePlan,
        *,
        capacity: int,
        max_bytes: int,
        start: int,
        ratio: float,
        priority_exponent: float,
        importance_exponent: float,
        is_file: bool,
        first_priorities: Callable[[Mapping[str, Array], int], Array],
    ) -> None:
        """Raises: ConfigError if the room has none for a batch, StorageError if a file cannot be made.

        Args:
          capacity, max_bytes: how many sequences are kept, if they occupy no more than that.
          start: training begins once so many are there.
          first_priorities: those of an unroll's lanes, f32 [L], from its fields by name and its task's number.
        """
        self._ratio = ratio
        self._alpha, self._beta = priority_exponent, importance_exponent
        size = min(capacity, max_bytes // sequence_bytes(record))
        if size < max(start, plan.batch):
            raise ConfigError(
                f"replay has room for {size} sequences of {sequence_bytes(record)} bytes (algorithm.replay_sequences = "
                f"{capacity}, replay_bytes = {max_bytes}), and training begins with {max(start, plan.batch)}: raise "
                "these, or lower algorithm.replay_start or learner.batch"
            )
        available, num_bytes = available_bytes(), plan.ranks_here * size * sequence_bytes(record)
        if not is_file and available is not None and num_bytes > available:
            whose = f"the replays of {plan.ranks_here} learner ranks take" if plan.ranks_here > 1 else "replay takes"
            raise ConfigError(
                f"{whose} {num_bytes} bytes when full, and {available} are free: lower "
                "algorithm.replay_bytes or replay_sequences, or set algorithm.replay_file = true"
            )
        super().__init__(record, batch=plan.batch, num_buffers=plan.num_buffers, is_pinned=plan.is_pinned)
        self._start = max(start, plan.batch)
        self._tasks = {task: index for index, task in enumerate(plan.weights)}
        self._names = list(plan.weights)
        self._memory = SequenceMemory(record, size, plan.folder / FOLDER if is_file else None, self._names)
        self._tree = SumTree(size)
        self._generator = np.random.default_rng([plan.seed, 0x5EED])
        self._first_priorities = first_priorities
        self._drawn: dict[int, _Drawn] = {}  # by buffer
        self._filling: FilledBatch[K] | None = None
        self._waiting: deque[_UnstoredUnroll[K]] = deque()
        self.num_stored = self.num_drawn = 0  # since training began, in this process: the ratio is between them
        self._next_number = 1
        self._take_over()

    def _take_over(self) -> None:
        """Begin with the sequences that a file has."""
        entries = self._memory.entries
        there = np.flatnonzero(entries["number"])
        if len(there):
            self._next_number = int(entries["number"].max()) + 1
            self._tree.set(there, self._power(entries["priority"][there]))
        self._size = len(there)
        self._known = set(zip(*(entries[name][there].tolist() for name in ("incarnation", "seq", "lane")), strict=True))
        self.num_recovered, self.num_torn = len(there), self._memory.num_torn

    def offer(
        self, key: K, lanes: int, frame: bytes, *, skip: int = 0, task: str = "", origin: Origin = UNNAMED
    ) -> None:
        """Take a task's unroll of `lanes` lanes, of which the first `skip` are not used. Call `check` first."""
        self._waiting.append(_UnstoredUnroll(key, lanes, skip, task, origin, frame))

    def fill(self) -> list[K]:
        """Store what waits and draw batches, as far as the ratio allows; the unrolls that were stored."""
        stored = []
        while self._waiting and self._filling is None and not self._is_ahead():
            waiting = self._waiting.popleft()
            self._store(waiting)
            stored.append(waiting.key)
            self._used.append((waiting.key, waiting.lanes - waiting.skip))
        budget = max(1, COPIED_BYTES // self._memory.stride)
        while budget > 0 and (filling := self._open()) is not None:
            budget -= self._copy(filling, budget)
        return stored

    def release(self, batch: FilledBatch[K], priorities_B: Array | None = None) -> None:
        """Take a batch back: its sequences get these priorities, except those that have been replaced since."""
        drawn = self._drawn.pop(batch.index)
        self._free.append(batch.index)
        if priorities_B is None:
            return
        is_there = self._memory.entries["number"][drawn.places] == drawn.numbers
        places, priorities = drawn.places[is_there], np.asarray(priorities_B, np.float64)[is_there]
        self._memory.entries["priority"][places] = priorities
        self._tree.set(places, self._power(priorities))

    @property
    def has_more(self) -> bool:
        """Whether a batch is half copied, so as not to hold the loop up."""
        return self._filling is not None

    def metrics(self) -> dict[str, float]:
        """How many sequences there are, how old, with which priorities, and how often each is trained on."""
        entries = self._memory.entries
        there = entries["number"] > 0
        found = {
            columns.REPLAY_SEQUENCES.name: float(self.size),
            columns.REPLAY_BYTES.name: float(self.size * self._memory.stride),
        }
        if self.size:
            priorities = entries["priority"][there]
            found |= {
                columns.REPLAY_AGE.name: float(self._next_number - entries["number"][there].mean()),
                columns.REPLAY_PRIORITY_MEAN.name: float(priorities.mean()),
                columns.REPLAY_PRIORITY_MAX.name: float(priorities.max()),
            }
        if self.num_stored:
            found[columns.REPLAY_RATIO.name] = self.num_drawn / self.num_stored
        return found

    def describe(self) -> dict[str, int | str]:
        """Where sequences lie, how many there is room for, and what a file had."""
        memory = self._memory
        return {
            "kept_in": "file" if memory.is_file else "memory", "capacity": memory.capacity,
            "bytes": memory.capacity * memory.stride, "recovered": self.num_recovered, "torn": self.num_torn,
        }  # fmt: skip

    # Pace

    @property
    def size(self) -> int:
        """How many sequences are kept now."""
        return self._size

    @property
    def _has_begun(self) -> bool:
        return self._size >= self._start

    def _is_ahead(self) -> bool:
        """Whether more new sequences came than batches could use yet: two batches' worth, and one at least."""
        return self._has_begun and self.num_stored * self._ratio >= self.num_drawn + 2 * self._batch

    def _may_draw(self) -> bool:
        return self._has_begun and self.num_drawn <= self.num_stored * self._ratio

    # Storing

    def _store(self, waiting: _UnstoredUnroll[K]) -> None:
        """Store an unroll's lanes; those that a file has already, from before a kill, are left out."""
        layout = self._layouts.of(waiting.lanes)
        arrays = layout.views([waiting.frame])
        lanes = range(waiting.skip, waiting.lanes)
        if self._known and waiting.origin != UNNAMED:
            while lanes and (*waiting.origin, lanes.start) in self._known:
                lanes = lanes[1:]
        if not lanes:
            return
        named = {item.name: array for item, array in zip(self.record.fields, arrays, strict=True)}
        found = self._first_priorities(named, self._tasks[waiting.task])
        priorities = np.asarray(found, np.float64)[lanes.start : lanes.stop]
        if self._has_begun:
            self.num_stored += len(lanes)
        for start in range(0, len(lanes), self._memory.capacity):  # an unroll may have more lanes than there is room
            part = lanes[start : start + self._memory.capacity]
            self._write(part, arrays, waiting, priorities[start : start + len(part)])

    def _write(self, lanes: range, arrays: list[Array], waiting: _UnstoredUnroll[K], priorities: Array) -> None:
        number = self._next_number
        places = (number - 1 + np.arange(len(lanes))) % self._memory.capacity
        self._size += int(np.count_nonzero(self._memory.entries["number"][places] == 0))
        self._next_number += len(lanes)
        self._memory.write(
            places, arrays, lanes, number=number, origin=waiting.origin, task=self._tasks[waiting.task],
            priorities=priorities,
        )  # fmt: skip
        self._tree.set(places, self._power(priorities))

    # Drawing

    def _open(self) -> FilledBatch[K] | None:
        """The batch that is being copied; a new one where a buffer is free and the ratio allows; else None."""
        if self._filling is None and self._free and self._may_draw():
            index = self._free.popleft()
            places = self._tree.draw(self._batch, self._generator)
            entries = self._memory.entries
            share = self._tree.weights(places) / self._tree.total
            weight_B = (1.0 / share) ** self._beta
            tasks = [(self._names[task], 1) for task in entries["task"][places].tolist()]
            self._drawn[index] = _Drawn(places, entries["number"][places].copy())
            self._filling = FilledBatch(
                index, self._buffers[index], tasks=tasks, weight_B=(weight_B / weight_B.max()).astype(np.float32),
                fresh_B=entries["was_drawn"][places] == 0,
            )  # fmt: skip
            entries["was_drawn"][places] = 1
            self.num_drawn += self._batch
        return self._filling

    def _copy(self, filling: FilledBatch[K], most: int) -> int:
        """Copy so many of a batch's sequences at most; how many were."""
        drawn = self._drawn[filling.index]
        places = drawn.places[drawn.num_copied : drawn.num_copied + most]
        self._memory.read(places, filling.arrays, drawn.num_copied)
        drawn.num_copied += len(places)
        if drawn.num_copied == self._batch:
            self._full.append(filling)
            self._filling = None
        return len(places)

    def _power(self, priorities: Array) -> Array:
        found: Array = np.maximum(priorities, MIN_PRIORITY) ** self._alpha
        return found
