"""The wire form of spaces: nested MessagePack arrays of integers, text and bytes, checked before they are used.

    box             [1, dtype, shape, low, high, image]     low, high: little-endian items, repeated to fill
    discrete        [2, dtype, n, start]
    multi_discrete  [3, dtype, shape, nvec, start]          nvec, start: C order, as many as the shape has elements
    multi_binary    [4, dtype, shape]
    text            [5, min_length, max_length, charset]
    dict            [6, [[name, space], ...]]               names ascending
    tuple           [7, [space, ...]]

`dtype` is an index into DTYPES.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.leaves import DTYPES, Leaf, Space, compress_bounds, join_path

IMAGES = ("", "HW", "HWC", "CHW")
KINDS = ("box", "discrete", "multi_discrete", "multi_binary", "text", "dict", "tuple")  # wire kind - 1
MAX_DEPTH = 8
MAX_LEAVES = 256
MAX_RANK = 8
MAX_ELEMENTS = 1 << 26  # of one leaf of one lane
MAX_CATEGORIES = 1 << 20  # of one discrete component
MAX_NAME_BYTES = 128
MAX_TEXT_LENGTH = 1 << 16
MAX_CHARSET = 1 << 12
MAX_BOUNDS_BYTES = 16 * 1024  # of low or high: HELLO holds both in 64 KiB
_DTYPE_INDEX = {name: index for index, name in enumerate(DTYPES)}
_INTEGERS = frozenset(DTYPES[:8])
_I64_MAX = (1 << 63) - 1


def space_to_wire(space: Space) -> list[Any]:
    """Return a space as nested lists of integers, text and bytes."""
    leaf = space.leaf
    if leaf is None:
        if space.kind == "dict":
            return [6, [[name, space_to_wire(child)] for name, child in space.children]]
        return [7, [space_to_wire(child) for _, child in space.children]]
    if leaf.kind == "text":
        return [5, leaf.min_length, leaf.max_length, leaf.charset]
    dtype, shape = _DTYPE_INDEX[leaf.dtype], list(leaf.shape)
    if leaf.kind == "box":
        return [1, dtype, shape, leaf.low, leaf.high, leaf.image]
    if leaf.kind == "discrete":
        return [2, dtype, leaf.nvec[0], leaf.starts[0]]
    if leaf.kind == "multi_discrete":
        return [3, dtype, shape, list(leaf.nvec), list(leaf.starts)]
    return [4, dtype, shape]


def space_from_wire(obj: Any) -> Space:
    """Return the space in a peer's wire form. Raises: RemoteWireError for a form that `space_to_wire` cannot give."""
    return _from_wire(obj, "", 0, [0])


def _from_wire(obj: Any, path: str, depth: int, num_nodes: list[int]) -> Space:
    num_nodes[0] += 1
    _require(num_nodes[0] <= 2 * MAX_LEAVES, path, f"more than {2 * MAX_LEAVES} nodes")
    _require(depth <= MAX_DEPTH, path, f"deeper than {MAX_DEPTH}")
    _require(type(obj) is list and len(obj) > 0 and type(obj[0]) is int, path, "not an array that begins with a kind")
    kind, *rest = obj
    _require(1 <= kind <= len(KINDS), path, f"unknown kind {kind}")
    name = KINDS[kind - 1]
    _require(len(rest) >= _NUM_PARTS[name], path, f"{name} with {len(rest)} parts")
    if name not in ("dict", "tuple"):
        return Space.of(_LEAF_READERS[name](path, rest))
    _require(type(rest[0]) is list and 0 < len(rest[0]) <= MAX_LEAVES, path, f"{name} with a bad number of children")
    entries = list(_children(name, rest[0], path))
    built = tuple((key, _from_wire(child, join_path(path, key), depth + 1, num_nodes)) for key, child in entries)
    space = Space(kind=name, children=built)
    _require(len(space.leaves()) <= MAX_LEAVES, path, f"more than {MAX_LEAVES} leaves")
    return space


def _children(kind: str, entries: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    if kind == "tuple":
        yield from ((str(index), entry) for index, entry in enumerate(entries))
        return
    previous: str | None = None
    for entry in entries:
        _require(type(entry) is list and len(entry) == 2 and type(entry[0]) is str, path, "a child without a name")
        name = entry[0]
        _require(0 < len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES, path, "a child's name: its length")
        _require(name.isprintable(), path, "a child's name: not printable")
        _require(previous is None or previous < name, path, f"names not ascending at {name!r}")
        previous = name
        yield name, entry[1]


def _read_box(path: str, rest: list[Any]) -> Leaf:
    dtype, shape = _dtype(path, rest[0]), _shape(path, rest[1])
    image = rest[4]
    _require(type(image) is str and image in IMAGES, path, "unknown image layout")
    if image:
        _require(dtype == "uint8" and len(image) == len(shape), path, f"{image} for {dtype}{list(shape)}")
    low, high = (
        _bounds(path, dtype, shape, name, block) for name, block in zip(("low", "high"), rest[2:4], strict=True)
    )
    size = max(len(low), len(high))  # both cover trailing axes: the one divides the other
    item = np.dtype(dtype).newbyteorder("<")
    lows, highs = (np.frombuffer(block * (size // len(block)), item) for block in (low, high))
    _require(bool((lows <= highs).all()), path, "low above high")
    return Leaf(path=path, kind="box", dtype=dtype, shape=shape, low=low, high=high, image=image)


def _read_discrete(path: str, rest: list[Any]) -> Leaf:
    dtype = _dtype(path, rest[0])
    _check_categories(path, dtype, [rest[1]], [rest[2]])
    return Leaf(path=path, kind="discrete", dtype=dtype, shape=(), nvec=(rest[1],), start=rest[2])


def _read_multi_discrete(path: str, rest: list[Any]) -> Leaf:
    dtype, shape = _dtype(path, rest[0]), _shape(path, rest[1])
    nvec, starts = rest[2], rest[3]
    for values in (nvec, starts):
        _require(type(values) is list and len(values) == math.prod(shape), path, "as many nvec, start as elements")
    _check_categories(path, dtype, nvec, starts)
    return Leaf(path=path, kind="multi_discrete", dtype=dtype, shape=shape, nvec=tuple(nvec), start=tuple(starts))


def _read_multi_binary(path: str, rest: list[Any]) -> Leaf:
    return Leaf(path=path, kind="multi_binary", dtype=_dtype(path, rest[0]), shape=_shape(path, rest[1]))


def _read_text(path: str, rest: list[Any]) -> Leaf:
    low, high, charset = rest[:3]
    _require(type(low) is int and type(high) is int and 0 <= low <= high, path, "text with bad lengths")
    _require(0 < high <= MAX_TEXT_LENGTH, path, f"text over {MAX_TEXT_LENGTH} characters")
    _require(type(charset) is str and 0 < len(charset) <= MAX_CHARSET, path, "text with a bad charset")
    _require(all(a < b for a, b in itertools.pairwise(charset)), path, "charset not ascending")
    return Leaf(path=path, kind="text", dtype="uint8", shape=(), min_length=low, max_length=high, charset=charset)


_LEAF_READERS = {
    "box": _read_box,
    "discrete": _read_discrete,
    "multi_discrete": _read_multi_discrete,
    "multi_binary": _read_multi_binary,
    "text": _read_text,
}
_NUM_PARTS = {"box": 5, "discrete": 3, "multi_discrete": 4, "multi_binary": 2, "text": 3, "dict": 1, "tuple": 1}


def _require(condition: bool, path: str, message: str) -> None:
    if not condition:
        raise RemoteWireError("space", f"leaf {path!r}: {message}" if path else message)


def _found(value: Any) -> str:
    """Return a short description of an invalid value, for messages."""
    names = {list: "an array", bytes: "bin", str: "a text", dict: "a map", type(None): "nil", bool: "a boolean"}
    return names.get(type(value)) or str(value)[:40]


def _dtype(path: str, index: Any) -> str:
    _require(
        type(index) is int and 0 <= index < len(DTYPES), path, f"dtype {_found(index)}, known are 0…{len(DTYPES) - 1}"
    )
    return DTYPES[index]


def _shape(path: str, value: Any) -> tuple[int, ...]:
    _require(type(value) is list and len(value) <= MAX_RANK, path, "bad shape")
    _require(all(type(size) is int and 0 < size <= MAX_ELEMENTS for size in value), path, "bad shape")
    _require(math.prod(value) <= MAX_ELEMENTS, path, f"over {MAX_ELEMENTS} elements")
    return tuple(value)


def _bounds(path: str, dtype: str, shape: tuple[int, ...], name: str, block: Any) -> bytes:
    _require(type(block) is bytes, path, f"{name} is {_found(block)}, and must be bin: {dtype} items, little-endian")
    limit = MAX_BOUNDS_BYTES
    _require(len(block) <= limit, path, f"{name} has {len(block)} bytes, and at most {limit} are allowed")
    size, rest = divmod(len(block), np.dtype(dtype).itemsize)
    sizes = sorted({math.prod(shape[axis:]) for axis in range(len(shape) + 1)})
    fitting = ", ".join(str(number * np.dtype(dtype).itemsize) for number in sizes)
    _require(rest == 0 and size in sizes, path, f"{name} has {len(block)} bytes; {dtype}{list(shape)} takes {fitting}")
    items = np.frombuffer(block, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    _require(not np.isnan(items).any(), path, f"{name} has NaN")
    axis = next(axis for axis in range(len(shape) + 1) if math.prod(shape[axis:]) == size)
    return compress_bounds(items.reshape(shape[axis:]))


def _check_categories(path: str, dtype: str, nvec: Sequence[Any], starts: Sequence[Any]) -> None:
    _require(dtype in _INTEGERS, path, "discrete values of a float dtype")
    limits = np.iinfo(dtype)
    for n, start in zip(nvec, starts, strict=True):
        is_fine = type(n) is int and 0 < n <= MAX_CATEGORIES
        _require(is_fine, path, f"the number of categories is {_found(n)}, and must be within 1…{MAX_CATEGORIES}")
        fits = type(start) is int and limits.min <= start and start + n - 1 <= min(int(limits.max), _I64_MAX)
        _require(fits, path, f"values do not fit {dtype}")
