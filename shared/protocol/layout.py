"""Layouts of arrays in raw frames: little-endian, C order; sizes are compared before anything is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seedbed.shared.errors import RemoteWireError

Array = npt.NDArray[Any]
OWN_FRAME_BYTES = 64 * 1024  # a field this large travels in a frame of its own
ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a layout: its name, its dtype and its shape."""

    name: str
    dtype: str  # a NumPy name from `spaces.DTYPES`
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the array, bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


class Layout:
    """The places of fields: frame 0 holds small fields at aligned offsets, and each large field has its own frame.

    Immutable. `single_frame` puts all fields into frame 0, as UNROLL does.
    """

    def __init__(self, fields: Sequence[Field], *, single_frame: bool = False) -> None:
        self.fields = tuple(fields)
        places: list[tuple[int, int]] = []
        sizes, offset = [0], 0
        for item in self.fields:
            if not single_frame and item.num_bytes >= OWN_FRAME_BYTES:
                places.append((len(sizes), 0))
                sizes.append(item.num_bytes)
            else:
                places.append((0, offset))
                offset += -(-item.num_bytes // ALIGNMENT) * ALIGNMENT
        sizes[0] = offset
        self.frame_bytes = tuple(sizes)
        self._views = [
            (frame, np.dtype(item.dtype), start, item.shape)
            for item, (frame, start) in zip(self.fields, places, strict=True)
        ]
        self.offsets = tuple(places)

    @property
    def num_bytes(self) -> int:
        """Size of all frames together, bytes."""
        return sum(self.frame_bytes)

    def check(self, frames: Sequence[bytes]) -> None:
        """Raise RemoteWireError unless the frames have exactly the sizes of this layout."""
        sizes = tuple(map(len, frames))
        if sizes != self.frame_bytes:
            given, expected = list(sizes), list(self.frame_bytes)
            raise RemoteWireError("frame_size", f"payload frames of {given} bytes, expected {expected}")

    def views(self, frames: Sequence[bytes | bytearray | memoryview]) -> list[Array]:
        """Return the fields as arrays on the memory of the frames, read-only over bytes. `check` a peer's first."""
        return [
            np.ndarray(shape, dtype, frames[frame], start)  # a third quicker than frombuffer and reshape
            for frame, dtype, start, shape in self._views
        ]

    def pack(self, arrays: Sequence[Array]) -> list[bytes]:
        """Return frames with these arrays, whose values must fit the dtypes of the fields."""
        if len(self._views) == 1:
            _, dtype, _, shape = self._views[0]
            if arrays[0].dtype == dtype and arrays[0].shape == shape and arrays[0].nbytes == self.frame_bytes[0]:
                return [arrays[0].tobytes()]
        frames = self.allocate()
        for place, array in zip(self.views(frames), arrays, strict=True):
            place[...] = array
        return [bytes(frame) for frame in frames]

    def allocate(self) -> list[bytearray]:
        """Return zeroed, writable frames."""
        return [bytearray(size) for size in self.frame_bytes]
