"""Collects a training group's rows into unrolls, directly in the wire layout of an UNROLL message.

A group of many lanes is cut into chunks of lanes so that no UNROLL exceeds `MAX_UNROLL_BYTES`. The last row of an
unroll and the record's overlap before it are the first rows of the next. The first unroll of a fresh group may start at
a later row (`skip`), so that groups that started together do not complete together; the rows before it are marked
`first` and `absent`, so that they are not transitions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from seedbed.shared.protocol.layout import Array, Layout
from seedbed.shared.protocol.recording import FLAGS, VERSION, Per, RecordSpec
from seedbed.shared.protocol.rows import Flags

MAX_UNROLL_BYTES = 8 * 1024 * 1024


def max_lanes(record: RecordSpec) -> int:
    """Return how many lanes one UNROLL can carry."""
    return max(1, MAX_UNROLL_BYTES // max(1, record.layout(1).num_bytes))


class Chunk:
    """The unroll of consecutive lanes of a group: one buffer in wire layout, and its arrays by name."""

    __slots__ = ("_layout", "arrays", "buffer", "inputs", "lanes", "next_state", "record", "start", "state")

    def __init__(self, record: RecordSpec, start: int, lanes: int, layout: Layout) -> None:
        self.record, self.start, self.lanes, self._layout = record, start, lanes, layout
        self._take_buffer()
        # Policy state before row 0 of the next unroll, which with an overlap is an earlier row of this one.
        self.next_state = [np.empty_like(array) for array in self.state] if record.overlap else []

    def _take_buffer(self) -> None:
        frames = self._layout.allocate()
        views = self._layout.views(frames)
        self.buffer = frames[0]
        self.arrays: dict[str, Array] = {item.name: view for item, view in zip(self.record.fields, views, strict=True)}
        self.inputs = [self.arrays[name] for name in self.record.step_names]  # [R, lanes, ...]
        self.state = [self.arrays[item.name] for item in self.record.state]  # [lanes, ...]

    def renew(self) -> bytearray:
        """Begin the next unroll with the rows that it shares with this one, and return the buffer of this one."""
        record, former, buffer = self.record, self.arrays, self.buffer
        length, overlap = record.unroll_length, record.overlap
        untaken = (former[FLAGS][1:] & int(Flags.FIRST)) != 0
        for item in record.decided:
            former[item.name][untaken] = 0  # the action before a reset row was not taken
        self._take_buffer()
        for item in record.fields:
            if item.per is Per.ROW:
                self.arrays[item.name][: overlap + 1] = former[item.name][length:]
            elif item.per is not Per.LANE and overlap:
                self.arrays[item.name][:overlap] = former[item.name][length:]
        for place, kept in zip(self.state, self.next_state, strict=False):
            place[...] = kept
        return buffer


class CompleteUnroll(NamedTuple):
    """A complete unroll of some lanes of a group."""

    first_lane: int
    lanes: int
    start: int  # number of rows of the group before row 0 of this unroll
    buffer: bytearray


class UnrollWriter:
    """The unroll that one training group is filling. The loop writes inputs; the compute thread writes decisions.

    They never write at the same time, because a group has one STEP outstanding. Memory: one unroll.
    """

    def __init__(self, record: RecordSpec, lanes: int, *, skip: int = 0) -> None:
        self._record = record
        size = min(lanes, max_lanes(record))
        self.chunks = [
            Chunk(record, start, min(size, lanes - start), record.layout(min(size, lanes - start)))
            for start in range(0, lanes, size)
        ]
        self._skip = skip
        self._begin = 0  # the last row that the previous unroll had already
        self._start = 0  # number of rows of the group before row 0
        self.row = -1  # index of the newest inputs; -1 before the first
        self._first_row = 0  # of the unroll, the first that is a row of the group

    def write(self, inputs: Sequence[Array]) -> None:
        """Copy one tick's inputs (observation leaves, mask, reward, flags; each [L, ...]) into the next row."""
        if self.row == -1 and self._skip and bool(np.all(inputs[-1] & Flags.FIRST)):
            for chunk in self.chunks:
                chunk.arrays[FLAGS][: self._skip] = Flags.FIRST | Flags.ABSENT
            self.row, self._first_row = self._skip - 1, self._skip
        self.row += 1
        for chunk in self.chunks:
            stop = chunk.start + chunk.lanes
            for field, value in zip(chunk.inputs, inputs, strict=True):
                field[self.row] = value[chunk.start : stop]

    @property
    def is_complete(self) -> bool:
        """Whether the last row has been written."""
        return self.row == self._record.num_rows - 1

    @property
    def is_boundary(self) -> bool:
        """Whether all complete transitions have left in an unroll, so that the group can leave without losing any."""
        return self.row == self._begin

    @property
    def num_unsent_steps(self) -> int:
        """The number of steps, of all lanes, that have left in no unroll yet."""
        flags = [chunk.arrays[FLAGS][self._begin + 1 : self.row + 1] for chunk in self.chunks]
        return sum(int(np.count_nonzero(~array & Flags.FIRST)) for array in flags)

    def state_places(self) -> Iterator[tuple[Chunk, list[Array]]]:
        """Yield each chunk with its arrays [lanes, ...] for the state before the newest row, if that is to be kept.

        The state before a row that is skipped is the one before the group's first row, for it has played none yet.
        """
        if self.row == self._first_row:
            yield from ((chunk, chunk.state) for chunk in self.chunks)
        elif self.row == self._record.unroll_length and self._record.overlap:
            yield from ((chunk, chunk.next_state) for chunk in self.chunks)

    def decide(self, first_lane: int, decided: Mapping[str, Array], version: int) -> None:
        """Write the decisions at the newest row, [N, ...] by name, in which this group begins at `first_lane`."""
        for chunk in self.chunks:
            start = first_lane + chunk.start
            for name, values in decided.items():
                chunk.arrays[name][self.row] = values[start : start + chunk.lanes]
            chunk.arrays[VERSION][self.row] = version

    def complete(self) -> list[CompleteUnroll]:
        """Return the complete unroll of each chunk, and begin the next unroll."""
        done = [CompleteUnroll(chunk.start, chunk.lanes, self._start, chunk.renew()) for chunk in self.chunks]
        self._start += self._record.unroll_length
        self.row = self._begin = self._record.overlap
        self._skip = self._first_row = 0
        return done


class LatestRow:
    """The newest row of a group in evaluation or play, whose experience is not recorded."""

    def __init__(self) -> None:
        self.inputs: list[Array] = []

    def write(self, inputs: list[Array]) -> None:
        """Keep one tick's inputs, without a copy."""
        self.inputs = inputs
