"""Gymnasium spaces as leaves in one canonical order, and their wire form.

A space is a tree; its leaves in canonical order (dict names by code point, tuples by position) are the arrays that
travel. The wire form is nested MessagePack arrays of integers, text and bytes, `[kind, ...]`:

    box             [1, dtype, shape, low, high, image]     low, high: little-endian items, repeated to fill
    discrete        [2, dtype, n, start]
    multi_discrete  [3, dtype, shape, nvec, start]          nvec, start: C order, as many as the shape has elements
    multi_binary    [4, dtype, shape]
    text            [5, min_length, max_length, charset]
    dict            [6, [[name, space], ...]]               names ascending
    tuple           [7, [space, ...]]

`dtype` is an index into DTYPES. What comes from a peer is checked here before anything of it is used.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from shared.errors import ConfigError, EnvError, RemoteWireError

Array = npt.NDArray[Any]

DTYPES = (
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
)  # fmt: skip
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
_I64 = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One array of a space: what a value of it looks like and how it travels. Immutable and hashable."""

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
        """Of the array that travels."""
        return self.dtype

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """Of one lane's array that travels: text is its u32 byte count and UTF-8, zero-padded to the maximum."""
        return (4 + 4 * self.max_length,) if self.kind == "text" else self.shape

    @property
    def num_elements(self) -> int:
        """Elements of one lane's value."""
        return math.prod(self.shape)

    @property
    def num_categories(self) -> int:
        """Summed categories of all discrete components; 0 for kinds without."""
        return sum(self.nvec)

    @property
    def starts(self) -> tuple[int, ...]:
        """The smallest value of each discrete component, C order."""
        return self.start if isinstance(self.start, tuple) else (self.start,) if self.kind == "discrete" else ()

    def low_array(self) -> Array:
        """Lower bounds of a box, `shape`, in its dtype."""
        return self._bounds(self.low)

    def high_array(self) -> Array:
        """Upper bounds of a box, `shape`, in its dtype."""
        return self._bounds(self.high)

    def _bounds(self, block: bytes) -> Array:
        items = np.frombuffer(block, np.dtype(self.dtype).newbyteorder("<")).astype(self.dtype)
        return np.tile(items, self.num_elements // len(items)).reshape(self.shape)

    def describe(self) -> str:
        """For people: kind, dtype and shape in one phrase."""
        if self.kind == "text":
            return f"text of {self.min_length}…{self.max_length} characters"
        categories = f" of {list(self.nvec)} from {list(self.starts)}" if self.nvec else ""
        return f"{self.kind}{categories} {self.dtype}{list(self.shape)}" + (f" as {self.image}" if self.image else "")


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

    def leaves(self) -> tuple[Leaf, ...]:
        """All leaves in canonical order."""
        return self._leaves


def own_action_size(space: Space) -> int:
    """Columns of a policy's own action: 1 for Discrete, one for each component or element otherwise."""
    for leaf in space.leaves():
        if leaf.kind == "text":
            raise ConfigError(f"action leaf {leaf.path!r} is Text: no policy can act in it")
    return sum(leaf.num_elements for leaf in space.leaves())


def mask_size(space: Space) -> int:
    """Columns of an action mask: the categories of every Discrete and MultiDiscrete leaf, in canonical order."""
    return sum(leaf.num_categories for leaf in space.leaves())


def join_path(parent: str, name: str) -> str:
    """The path of a child; "~" and "/" in a name become "~0" and "~1", so that paths are unique."""
    escaped = name.replace("~", "~0").replace("/", "~1")
    return f"{parent}/{escaped}" if parent else escaped


# --- from Gymnasium -------------------------------------------------------------------------------------------------


def space_from_gymnasium(
    space: gymnasium.Space[Any], *, image: str | Mapping[str, str] | None = "", path: str = ""
) -> Space:
    """The Space of a Gymnasium space.

    Args:
      image: how uint8 arrays of rank 3 are laid out: "HWC" or "CHW", for all or by leaf path; "" if nobody said,
        which is an error where it matters; None where arrays are no images (actions). Rank 2 is always "HW".
      path: of this space in the whole; for recursion.
    Raises: ConfigError naming the leaf, for a space or dtype that cannot travel.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        for name in space.spaces:
            if not isinstance(name, str):
                raise ConfigError(f"space {path!r}: the key {name!r} is no text; only text keys can travel")
        named = sorted(space.spaces.items())
        built = _compound("dict", named, path, image)
    elif isinstance(space, gymnasium.spaces.Tuple):
        built = _compound("tuple", [(str(i), child) for i, child in enumerate(space.spaces)], path, image)
    else:
        built = _of_leaf(_leaf_from_gymnasium(space, path, image))
    if not path:
        try:
            checked = space_from_wire(space_to_wire(built))
        except RemoteWireError as error:
            raise ConfigError(f"this environment's space cannot travel: {error}") from error
        assert checked == built
    return built


def _compound(
    kind: str,
    named: Sequence[tuple[str, gymnasium.Space[Any]]],
    path: str,
    image: str | Mapping[str, str] | None,
) -> Space:
    children = []
    for name, child in named:
        child_path = join_path(path, name)
        children.append((name, space_from_gymnasium(child, image=image, path=child_path)))
    return Space(kind=kind, children=tuple(children))


def _of_leaf(leaf: Leaf) -> Space:
    return Space(kind=leaf.kind, leaf=leaf)


def _leaf_from_gymnasium(space: gymnasium.Space[Any], path: str, image: str | Mapping[str, str] | None) -> Leaf:
    match space:
        case gymnasium.spaces.Box():
            dtype = _dtype_name(space, path)
            low, high = np.asarray(space.low), np.asarray(space.high)
            layout = _image_layout(dtype, space.shape, image, path)
            low_block, high_block = compress_bounds(low), compress_bounds(high)
            return Leaf(
                path=path, kind="box", dtype=dtype, shape=space.shape, low=low_block, high=high_block, image=layout
            )
        case gymnasium.spaces.Discrete():
            return Leaf(
                path=path,
                kind="discrete",
                dtype=_dtype_name(space, path),
                shape=(),
                nvec=(int(space.n),),
                start=int(space.start),
            )
        case gymnasium.spaces.MultiDiscrete():
            return Leaf(
                path=path,
                kind="multi_discrete",
                dtype=_dtype_name(space, path),
                shape=space.nvec.shape,
                nvec=tuple(int(n) for n in space.nvec.ravel()),
                start=tuple(int(n) for n in np.broadcast_to(space.start, space.nvec.shape).ravel()),
            )
        case gymnasium.spaces.MultiBinary():
            return Leaf(path=path, kind="multi_binary", dtype=_dtype_name(space, path), shape=space.shape)
        case gymnasium.spaces.Text():
            charset = "".join(sorted(set(space.character_set)))
            return Leaf(
                path=path,
                kind="text",
                dtype="uint8",
                shape=(),
                min_length=int(space.min_length),
                max_length=int(space.max_length),
                charset=charset,
            )
    raise ConfigError(
        f"space {path!r} is a {type(space).__name__}: only Box, Discrete, MultiDiscrete, MultiBinary, Text, "
        "Dict and Tuple can travel; wrap the environment to give one of these"
    )


def _dtype_name(space: gymnasium.Space[Any], path: str) -> str:
    name = np.dtype(space.dtype).name
    if name not in _DTYPE_INDEX:
        raise ConfigError(f"space {path!r} has dtype {name}, which cannot travel: use one of {', '.join(DTYPES)}")
    return name


def _image_layout(dtype: str, shape: tuple[int, ...], image: str | Mapping[str, str] | None, path: str) -> str:
    if dtype != "uint8" or len(shape) not in (2, 3) or image is None:
        return ""
    if len(shape) == 2:
        return "HW"
    said = image if isinstance(image, str) else image.get(path, "")
    if said not in ("HWC", "CHW"):
        raise ConfigError(
            f"observation {path!r} is uint8 {list(shape)}: say where its channels are: image = 'HWC' or 'CHW'"
        )
    return said


def compress_bounds(bounds: Array) -> bytes:
    """The shortest block over trailing axes that, repeated, gives the whole, as little-endian items."""
    bounds = bounds + 0 if bounds.dtype.kind == "f" else bounds  # -0.0 becomes 0.0: equal bounds are equal bytes
    flat = np.ascontiguousarray(bounds).ravel()
    size = 1
    for axis in (1, *reversed(bounds.shape)):
        size *= axis
        if np.array_equal(
            flat[size:], flat[:-size] if size < flat.size else flat[:0], equal_nan=flat.dtype.kind == "f"
        ):
            break
    return flat[:size].astype(flat.dtype.newbyteorder("<")).tobytes()


# --- wire form ------------------------------------------------------------------------------------------------------


def space_to_wire(space: Space) -> list[Any]:
    """The wire form: nested lists of integers, text and bytes."""
    if space.kind == "dict":
        return [6, [[name, space_to_wire(child)] for name, child in space.children]]
    if space.kind == "tuple":
        return [7, [space_to_wire(child) for _, child in space.children]]
    leaf = space.leaf
    assert leaf is not None
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
    """The Space of a peer's wire form. Raises RemoteWireError on anything that `space_to_wire` could not have said."""
    space = _from_wire(obj, "", 0, [0])
    if not space.leaves():
        raise RemoteWireError("space", "a space without leaves")
    return space


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
        return _of_leaf(_LEAF_READERS[name](path, rest))
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
    low, high = (_bounds(path, dtype, shape, block) for block in rest[2:4])
    with np.errstate(invalid="ignore"):
        leaf = Leaf(path=path, kind="box", dtype=dtype, shape=shape, low=low, high=high, image=image)
        size = math.lcm(len(low), len(high))
        lows, highs = (
            np.frombuffer(block * (size // len(block)), np.dtype(dtype).newbyteorder("<")) for block in (low, high)
        )
        _require(bool((lows <= highs).all()), path, "low above high, or NaN")
    return leaf


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
        raise RemoteWireError("space", f"space {path!r}: {message}")


def _dtype(path: str, index: Any) -> str:
    _require(type(index) is int and 0 <= index < len(DTYPES), path, "unknown dtype")
    return DTYPES[index]


def _shape(path: str, value: Any) -> tuple[int, ...]:
    _require(type(value) is list and len(value) <= MAX_RANK, path, "bad shape")
    _require(all(type(size) is int and 0 < size <= MAX_ELEMENTS for size in value), path, "bad shape")
    _require(math.prod(value) <= MAX_ELEMENTS, path, f"over {MAX_ELEMENTS} elements")
    return tuple(value)


def _bounds(path: str, dtype: str, shape: tuple[int, ...], block: Any) -> bytes:
    _require(type(block) is bytes and len(block) <= MAX_BOUNDS_BYTES, path, f"bounds over {MAX_BOUNDS_BYTES} bytes")
    size, rest = divmod(len(block), np.dtype(dtype).itemsize)
    sizes = {math.prod(shape[axis:]) for axis in range(len(shape) + 1)}
    _require(rest == 0 and size in sizes, path, "bounds do not cover whole trailing axes")
    axis = next(axis for axis in range(len(shape) + 1) if math.prod(shape[axis:]) == size)
    return compress_bounds(np.frombuffer(block, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape[axis:]))


def _check_categories(path: str, dtype: str, nvec: Sequence[Any], starts: Sequence[Any]) -> None:
    _require(dtype in _INTEGERS, path, "discrete values of a float dtype")
    limits = np.iinfo(dtype)
    for n, start in zip(nvec, starts, strict=True):
        _require(type(n) is int and 0 < n <= MAX_CATEGORIES, path, f"categories not within 1…{MAX_CATEGORIES}")
        fits = type(start) is int and limits.min <= start and start + n - 1 <= min(int(limits.max), _I64 - 1)
        _require(fits, path, f"values do not fit {dtype}")


# --- values ---------------------------------------------------------------------------------------------------------


def flatten(space: Space, value: Any) -> list[Array]:
    """A value with a leading lane axis (dict of, tuple of) → its leaves' arrays `[L, *wire_shape]`, canonical order.

    Arrays that already fit are not copied. Raises EnvError naming the leaf that does not fit its space.
    """
    if space.leaf is not None:
        return [_leaf_array(space.leaf, value)]
    arrays: list[Array] = []
    for index, (name, child) in enumerate(space.children):
        try:
            part = value[name] if space.kind == "dict" else value[index]
        except (LookupError, TypeError) as error:
            raise EnvError(f"the environment gave a {type(value).__name__} without {name!r}") from error
        arrays += flatten(child, part)
    return arrays


def unflatten(space: Space, leaves: Sequence[Array]) -> Any:
    """The inverse of `flatten`: dicts and tuples of arrays with a leading lane axis; text as a list of str."""
    return _take(space, iter(leaves))


def _take(space: Space, arrays: Iterator[Array]) -> Any:
    if space.leaf is not None:
        array = next(arrays)
        return decode_text(space.leaf, array) if space.leaf.kind == "text" else array
    if space.kind == "dict":
        return {name: _take(child, arrays) for name, child in space.children}
    return tuple(_take(child, arrays) for _, child in space.children)


def _leaf_array(leaf: Leaf, value: Any) -> Array:
    if leaf.kind == "text":
        return encode_text(leaf, value)
    try:
        array = np.asarray(value, leaf.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise EnvError(f"the environment's {leaf.path!r} is no {leaf.describe()}: {error}") from error
    if array.ndim == 0 or array.shape[1:] != leaf.shape:
        raise EnvError(f"the environment's {leaf.path!r} has shape {array.shape[1:]}, its space says {leaf.shape}")
    return array


def encode_text(leaf: Leaf, texts: Sequence[str]) -> Array:
    """One text for each lane → u8 `[L, wire_shape]`: the UTF-8 byte count as u32, the bytes, zeros."""
    rows = np.zeros((len(texts), *leaf.wire_shape), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        data = str(text).encode()
        if len(text) > leaf.max_length:
            raise EnvError(f"the environment's {leaf.path!r} has {len(text)} characters, its space {leaf.max_length}")
        row[: 4 + len(data)] = np.frombuffer(len(data).to_bytes(4, "little") + data, np.uint8)
    return rows


def decode_text(leaf: Leaf, rows: Array) -> list[str]:
    """The inverse of `encode_text`. Raises RemoteWireError."""
    texts = []
    for row in rows:
        raw = row.tobytes()
        size = int.from_bytes(raw[:4], "little")
        _require(size <= len(raw) - 4, leaf.path, "text longer than its field")
        try:
            texts.append(raw[4 : 4 + size].decode())
        except UnicodeDecodeError as error:
            raise RemoteWireError("value", f"{leaf.path!r}: text is not UTF-8") from error
    return texts
