"""A group's rows in the making: STEPs are written straight into the wire layout of the unroll that they will leave in.

A group of many lanes is cut into chunks of lanes so that no UNROLL exceeds `MAX_UNROLL_BYTES`. Row T of an unroll is
row 0 of the next. The first unroll of a fresh group may start at a later row (`skip`), so that groups that started
together do not complete together; the rows before it are marked `first` and `absent`, which makes them no transitions.
"""

from collections.abc import Callable, Sequence

import numpy as np

from shared.protocol.layout import Array, Field, Layout
from shared.protocol.rows import EnvSpec, Flags, unroll_layout

MAX_UNROLL_BYTES = 8 * 1024 * 1024


class UnrollShape:
    """What all unrolls of one policy have in common. Immutable."""

    def __init__(self, spec: EnvSpec, action_size: int, state_fields: Sequence[Field], unroll_length: int) -> None:
        self.spec, self.action_size, self.state_fields = spec, action_size, tuple(state_fields)
        self.unroll_length = unroll_length
        self.num_observations = len(spec.observation.leaves())
        self.num_inputs = self.num_observations + bool(spec.mask_size) + 2  # with mask, reward, flags: a STEP's fields

    def layout(self, lanes: int) -> Layout:
        """The wire layout of an unroll of `lanes` lanes."""
        return unroll_layout(self.spec, self.action_size, self.state_fields, self.unroll_length, lanes)

    def is_like(self, other: "UnrollShape") -> bool:
        """Whether unrolls of both have the same layout and meaning."""
        mine = (self.spec, self.action_size, self.state_fields, self.unroll_length)
        return mine == (other.spec, other.action_size, other.state_fields, other.unroll_length)

    def max_lanes(self) -> int:
        """Lanes that one UNROLL can carry."""
        return max(1, MAX_UNROLL_BYTES // max(1, self.layout(1).num_bytes))


class Chunk:
    """Some lanes' unroll: one buffer in wire layout, and its arrays."""

    __slots__ = ("actions", "buffer", "inputs", "lanes", "layout", "log_probs", "start", "states", "versions")

    def __init__(self, shape: UnrollShape, start: int, lanes: int, layout: Layout) -> None:
        self.start, self.lanes, self.layout = start, lanes, layout
        self.renew(shape)

    def renew(self, shape: UnrollShape) -> None:
        """Take a fresh buffer; the old one belongs to whoever holds it now."""
        frames = self.layout.allocate()
        views = self.layout.views(frames)
        self.buffer = frames[0]
        count = shape.num_inputs
        self.inputs: list[Array] = views[:count]  # observation leaves, mask, reward, flags: [T+1, lanes, ...]
        self.actions, self.log_probs, self.versions = views[count : count + 3]
        self.states: list[Array] = views[count + 3 :]


class UnrollWriter:
    """One training group's unroll in the making. Loop thread writes inputs; compute thread writes what it decided.

    Never both at once: a group has one STEP outstanding. Memory: one unroll.
    """

    def __init__(self, shape: UnrollShape, lanes: int, *, skip: int = 0) -> None:
        self._shape = shape
        size = min(lanes, shape.max_lanes())
        self.chunks = [
            Chunk(shape, start, min(size, lanes - start), shape.layout(min(size, lanes - start)))
            for start in range(0, lanes, size)
        ]
        self._skip = skip
        self.row = -1  # of the newest inputs; -1 before the first

    def write(self, inputs: Sequence[Array]) -> None:
        """Copy one tick's inputs (observation leaves, mask, reward, flags; each [L, ...]) into the next row."""
        if self.row == -1 and self._skip and bool(np.all(inputs[-1] & Flags.FIRST)):
            for chunk in self.chunks:
                chunk.inputs[-1][: self._skip] = Flags.FIRST | Flags.ABSENT
            self.row = self._skip - 1
        self.row += 1
        for chunk in self.chunks:
            stop = chunk.start + chunk.lanes
            for field, value in zip(chunk.inputs, inputs, strict=True):
                field[self.row] = value[chunk.start : stop]

    @property
    def is_complete(self) -> bool:
        """Whether row T has been written."""
        return self.row == self._shape.unroll_length

    @property
    def is_first_row(self) -> bool:
        """Whether the newest row is row 0, before which the policy state must be kept."""
        return self.row == 0

    def complete(self, emit: Callable[[int, bytearray], object]) -> None:
        """Hand (lanes, buffer) of each chunk to `emit` and go on with row T as row 0 of the next unroll."""
        for chunk in self.chunks:
            last = [field[self.row] for field in chunk.inputs]
            buffer = chunk.buffer
            chunk.log_probs[(chunk.inputs[-1][1:] & int(Flags.FIRST)) != 0] = 0.0  # of actions that nobody took
            chunk.renew(self._shape)
            for field, value in zip(chunk.inputs, last, strict=True):
                field[0] = value
            emit(chunk.lanes, buffer)
        self.row, self._skip = 0, 0


class LatestRow:
    """The newest row of a group whose experience is not learned from (evaluation, play)."""

    def __init__(self) -> None:
        self.inputs: list[Array] = []

    def write(self, inputs: list[Array]) -> None:
        """Keep one tick's inputs, as they are."""
        self.inputs = inputs
