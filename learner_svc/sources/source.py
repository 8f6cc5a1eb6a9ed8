"""The base of sources of batches: what they have in common, and what each of them defines."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.policy.transfers import pinned_zeros
from seedbed.shared.protocol.layout import Array, Layout
from seedbed.shared.protocol.recording import Per, RecordSpec
from seedbed.shared.runtime.tasks import TaskConfig

K = TypeVar("K")
MAX_LAYOUTS = 256  # distinct numbers of lanes of which the layout is kept


class Origin(NamedTuple):
    """Which unroll lanes are from, in words that outlive this process: its producer's incarnation, and its number."""

    incarnation: int
    seq: int


UNNAMED = Origin(0, 0)


@dataclass(slots=True)
class FilledBatch(Generic[K]):
    """A full batch: arrays in the order of the record, and (unroll, lanes) in the order of the lanes."""

    index: int  # of the buffer
    arrays: list[Array]
    parts: list[tuple[K, int]] = field(default_factory=list)  # empty where unrolls are no longer known by name
    tasks: list[tuple[str, int]] = field(default_factory=list)  # likewise, whose lanes they are
    weight_B: Array | None = None  # f32 [B]: what each lane counts in the loss; None: 1
    fresh_B: Array | None = None  # bool [B]: which lanes were in no batch before; None: all


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlan:
    """What a source is made for, whatever its kind."""

    batch: int  # B, lane-unrolls
    num_buffers: int  # batches in memory
    weights: Mapping[str, float]  # of the tasks whose unrolls come, summing to 1
    folder: Path  # of the run
    tasks: Sequence[TaskConfig] = ()  # in the order of `weights`; empty in a run without tasks
    seed: int = 0
    echo: int = 1  # times that each lane-unroll is used
    echo_batches: int = 4  # batches' worth that these uses are shuffled within
    ranks_here: int = 1  # learner ranks on this machine, which share its memory
    is_pinned: bool = False  # whether batches are in page-locked memory, from which a GPU copies while others compute


class Source(Generic[K]):
    """Collects unrolls into batches of lanes. Pure; owned by the learner's loop. `K` identifies an unroll.

    The learner calls `check` and `offer` for each unroll, then `fill`, `take` while there are batches, `release`
    for each batch that was trained on, and `used` after `fill` and `release`. A subclass defines `offer`, `fill` and
    `release`. Memory: `num_buffers` batches of `batch` lanes, and what the subclass keeps.
    """

    def __init__(self, record: RecordSpec, *, batch: int, num_buffers: int, is_pinned: bool = False) -> None:
        self.record = record
        self._batch = batch
        self._layouts = UnrollLayouts(record)
        self._buffers = [allocate(record, batch, is_pinned=is_pinned) for _ in range(num_buffers)]
        self._free = deque(range(num_buffers))  # buffers
        self._full: deque[FilledBatch[K]] = deque()
        self._used: list[tuple[K, int]] = []

    @property
    def buffers(self) -> list[list[Array]]:
        """The arrays of every batch buffer by its index; they stay the same, so tensors on them may be made once."""
        return self._buffers

    def check(self, lanes: int, num_bytes: int) -> None:
        """Raise RemoteWireError unless an unroll of `lanes` lanes has so many bytes."""
        self._layouts.check(lanes, num_bytes)

    def offer(
        self, key: K, lanes: int, frame: bytes, *, skip: int = 0, task: str = "", origin: Origin = UNNAMED
    ) -> None:
        """Take a task's unroll of `lanes` lanes, of which the first `skip` are not used. Call `check` first."""
        raise NotImplementedError

    def fill(self) -> list[K]:
        """Copy as many lanes as fit; return the unrolls whose frames are freed, so that their credit returns."""
        raise NotImplementedError

    def take(self) -> FilledBatch[K] | None:
        """Return the oldest full batch, or None; it belongs to the caller until `release`."""
        return self._full.popleft() if self._full else None

    def release(self, batch: FilledBatch[K], priorities_B: Array | None = None) -> None:
        """Take a batch back after it was trained on, with new priorities f32 [B] if the algorithm gives any."""
        raise NotImplementedError

    def used(self) -> list[tuple[K, int]]:
        """Return (unroll, lanes) that were used since the last call and can be acknowledged."""
        used, self._used = self._used, []
        return used

    @property
    def has_more(self) -> bool:
        """Whether `fill` stopped so as not to hold the loop up, and is to be called again soon."""
        return False

    def metrics(self) -> dict[str, float]:
        """Return metrics of its own by column of metrics.csv, besides those of batches and credit."""
        return {}

    def describe(self) -> dict[str, int | str]:
        """Return what it has room for and what it found, for the log; empty if there is nothing to say."""
        return {}


class UnrollLayouts:
    """The layouts of unrolls by their number of lanes. Memory: those of MAX_LAYOUTS numbers."""

    def __init__(self, record: RecordSpec) -> None:
        self._record = record
        self._layouts: dict[int, Layout] = {}

    def of(self, lanes: int) -> Layout:
        """Return the layout of an unroll of so many lanes. Raises: RemoteWireError if there are none."""
        layout = self._layouts.get(lanes)
        if layout is None:
            if lanes < 1:
                raise RemoteWireError("lanes", f"an unroll of {lanes} lanes")
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[lanes] = self._record.layout(lanes)
        return layout

    def check(self, lanes: int, num_bytes: int) -> None:
        """Raise RemoteWireError unless an unroll of `lanes` lanes has so many bytes."""
        if num_bytes != (expected := self.of(lanes).num_bytes):
            raise RemoteWireError("frame_size", f"an unroll of {num_bytes} bytes, expected {expected}")


def allocate(record: RecordSpec, lanes: int, *, is_pinned: bool = False) -> list[Array]:
    """Return zeroed arrays of a batch in the order of the record; a field for each tick is repeated for each lane."""
    rows, zeros = record.num_rows, pinned_zeros if is_pinned else np.zeros
    return [
        zeros((rows - 1, lanes, *item.shape) if item.per is Per.TICK else item.array_shape(rows, lanes), item.dtype)
        for item in record.fields
    ]
