"""The interface of a source of batches."""

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import Per, RecordSpec

K = TypeVar("K")


@dataclass(slots=True)
class FilledBatch(Generic[K]):
    """A full batch: arrays in the order of the record, and (unroll, lanes) in the order of the lanes."""

    index: int  # of the buffer
    arrays: list[Array]
    parts: list[tuple[K, int]] = field(default_factory=list)


class Source(Protocol[K]):
    """Collects unrolls into batches. Pure; owned by the learner's loop. `K` identifies an unroll.

    The learner calls `check` and `offer` for each unroll, then `fill`, `take` while there are batches, `release`
    for each batch that was trained on, and `used` after `fill` and `release`.
    """

    record: RecordSpec

    @property
    def buffers(self) -> list[list[Array]]:
        """The arrays of every batch buffer by its index; they stay the same, so tensors on them may be made once."""
        ...

    def check(self, lanes: int, frame: bytes) -> None:
        """Raise RemoteWireError unless the frame's size is that of an unroll of `lanes` lanes."""
        ...

    def offer(self, key: K, lanes: int, frame: bytes, *, skip: int = 0, task: str = "") -> None:
        """Take a task's unroll of `lanes` lanes, of which the first `skip` are not used."""
        ...

    def fill(self) -> list[K]:
        """Copy as many lanes as fit; return the unrolls whose frames are freed, so that their credit returns."""
        ...

    def take(self) -> FilledBatch[K] | None:
        """Return the next full batch, or None; it belongs to the caller until `release`."""
        ...

    def release(self, batch: FilledBatch[K]) -> None:
        """Take a batch back after it was trained on; its arrays may be overwritten."""
        ...

    def used(self) -> list[tuple[K, int]]:
        """Return (unroll, lanes) that were used since the last call and can be acknowledged."""
        ...


def allocate(record: RecordSpec, lanes: int) -> list[Array]:
    """Return zeroed arrays of a batch in the order of the record; a field for each tick is repeated for each lane."""
    rows = record.num_rows
    return [
        np.zeros((rows - 1, lanes, *item.shape) if item.per is Per.TICK else item.array_shape(rows, lanes), item.dtype)
        for item in record.fields
    ]
