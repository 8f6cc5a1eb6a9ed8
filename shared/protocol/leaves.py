"""Spaces as trees whose leaves, in one canonical order, are the arrays on the wire.

Canonical order: the children of a dict by name (code points ascending), of a tuple by position, depth first.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from seedbed.shared.errors import ConfigError

Array = npt.NDArray[Any]

MAX_LISTED = 8  # numbers that a description lists
DTYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array of a space: its values, and their form on the wire. Immutable and hashable."""

    path: str  # names and positions from the root, "" for the root itself, as "camera/0"
    kind: str  # "box", "discrete", "multi_discrete", "multi_binary" or "text"
    dtype: str  # a name of DTYPES; text travels as uint8
    shape: tuple[int, ...]  # of a value in the environment; () for discrete and text
    low: bytes = b""  # box: little-endian items, the shortest block of trailing axes that repeats to the whole
    high: bytes = b""
    image: str = ""  # "HW", "HWC", "CHW", or "" for no image
    nvec: tuple[int, ...] = ()  # categories of each discrete component, C order; (n,) for discrete
    start: int | tuple[int, ...] = 0  # the smallest value: an integer for discrete, C order for multi_discrete
    min_length: int = 0  # text, in characters
    max_length: int = 0
    charset: str = ""  # text: allowed characters, ascending

    @property
    def wire_dtype(self) -> str:
        """Dtype of the array on the wire."""
        return self.dtype

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """Shape of one lane's array on the wire; text is its u32 byte count and UTF-8, zero-padded to the maximum."""
        return (4 + 4 * self.max_length,) if self.kind == "text" else self.shape

    @property
    def num_elements(self) -> int:
        """Number of elements of one lane's value."""
        return math.prod(self.shape)

    @property
    def num_categories(self) -> int:
        """Sum of the categories of all discrete components; 0 for other kinds."""
        return sum(self.nvec)

    @property
    def starts(self) -> tuple[int, ...]:
        """Smallest value of each discrete component, C order."""
        return self.start if isinstance(self.start, tuple) else (self.start,) if self.kind == "discrete" else ()

    def low_array(self) -> Array:
        """Return the lower bounds of a box, of its shape and dtype."""
        return self._bounds(self.low)

    def high_array(self) -> Array:
        """Return the upper bounds of a box, of its shape and dtype."""
        return self._bounds(self.high)

    def _bounds(self, block: bytes) -> Array:
        items = np.frombuffer(block, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype)
        return np.tile(items, self.num_elements // len(items)).reshape(self.shape)

    def describe(self) -> str:
        """Return kind, dtype and shape as one phrase for messages."""
        if self.kind == "text":
            return f"text of {self.min_length}…{self.max_length} characters"
        if self.kind == "discrete":
            start = f" from {self.starts[0]}" if self.starts[0] else ""
            return f"discrete of {self.nvec[0]}{start}" + (f" {self.dtype}" if self.dtype != "int64" else "")
        categories = f" of {_short(self.nvec)} from {_short(self.starts)}" if self.nvec else ""
        return f"{self.kind}{categories} {self.dtype}{list(self.shape)}" + (f" as {self.image}" if self.image else "")


def name_part(whole: str, path: str) -> str:
    """Return what a message calls the leaf of this path, as "observation 'speed'"; the root is the whole itself."""
    return f"{whole} {path!r}" if path else whole


def _short(numbers: tuple[int, ...]) -> str:
    """Return numbers as a list; a long one as a repeated part, or shortened."""
    if len(numbers) <= MAX_LISTED:
        return str(list(numbers))
    for size in range(1, MAX_LISTED + 1):
        block = numbers[:size]
        if len(numbers) % size == 0 and block * (len(numbers) // size) == numbers:
            return f"{len(numbers) // size} × {list(block)}"
    return f"[{', '.join(map(str, numbers[:MAX_LISTED]))}, …: {len(numbers)} in all]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A tree of leaves. Immutable and hashable; its leaves are computed once."""

    kind: str  # of KINDS
    leaf: Leaf | None = None
    children: tuple[tuple[str, "Space"], ...] = ()  # canonical order; positions as text for a tuple
    _leaves: tuple[Leaf, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        leaves = (self.leaf,) if self.leaf else tuple(leaf for _, child in self.children for leaf in child.leaves())
        object.__setattr__(self, "_leaves", leaves)

    @classmethod
    def of(cls, leaf: Leaf) -> "Space":
        """Return the space of one leaf."""
        return cls(kind=leaf.kind, leaf=leaf)

    def leaves(self) -> tuple[Leaf, ...]:
        """Return all leaves in canonical order."""
        return self._leaves


def raw_action_size(space: Space) -> int:
    """Return the columns of a raw action: 1 for Discrete, else one for each component or element."""
    for leaf in space.leaves():
        if leaf.kind == "text":
            raise ConfigError(f"action leaf {leaf.path!r} is Text, which no policy can choose")
    return sum(leaf.num_elements for leaf in space.leaves())


def mask_size(space: Space) -> int:
    """Return the columns of an action mask: the categories of all Discrete and MultiDiscrete leaves, in order."""
    return sum(leaf.num_categories for leaf in space.leaves())


def join_path(parent: str, name: str) -> str:
    """Return the path of a child; "~" and "/" in a name become "~0" and "~1", so that paths are unique."""
    escaped = name.replace("~", "~0").replace("/", "~1")
    return f"{parent}/{escaped}" if parent else escaped


def compress_bounds(bounds: Array) -> bytes:
    """Return the shortest block over trailing axes that gives the whole if repeated, as little-endian bytes."""
    bounds = bounds + 0 if bounds.dtype.kind == "f" else bounds  # -0.0 becomes 0.0: equal bounds are equal bytes
    flat = np.ascontiguousarray(bounds).ravel()
    size = 1
    for axis in (1, *reversed(bounds.shape)):
        size *= axis
        if np.array_equal(flat[size:], flat[:-size] if size < flat.size else flat[:0]):
            break
    return flat[:size].astype(flat.dtype.newbyteorder("<")).tobytes()
