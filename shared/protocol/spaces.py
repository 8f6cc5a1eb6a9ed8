"""Converts Gymnasium spaces, and values with a leading lane axis, to and from leaves.

The tree of leaves is defined in `leaves`, its wire form in `space_wire`; import all of them from here.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from seedbed.shared.errors import ConfigError, EnvError, RemoteWireError
from seedbed.shared.protocol.leaves import (
    DTYPES,
    Array,
    Leaf,
    Space,
    compress_bounds,
    join_path,
    mask_size,
    name_part,
    raw_action_size,
)
from seedbed.shared.protocol.space_wire import space_from_wire, space_to_wire

__all__ = [
    "DTYPES",
    "Leaf",
    "Space",
    "all_true",
    "are_finite",
    "check_leaf_values",
    "check_values",
    "decode_text",
    "encode_text",
    "flatten",
    "join_path",
    "mask_size",
    "raw_action_size",
    "space_from_gymnasium",
    "space_from_wire",
    "space_to_wire",
    "unflatten",
]


FLOAT32_MAX = float(np.finfo(np.float32).max)


def space_from_gymnasium(space: gymnasium.Space[Any], *, image: str | Mapping[str, str] | None = "") -> Space:
    """Convert a Gymnasium space.

    Args:
      image: the axes of uint8 arrays of rank 3, "HWC" or "CHW", for all or by leaf path; "" if unknown, which is an
        error where it matters; None if arrays are not images (actions). Rank 2 is always "HW".
    Raises: ConfigError naming the leaf, for a space or dtype that cannot travel.
    """
    try:
        return space_from_wire(space_to_wire(_from_gymnasium(space, "", image)))  # which checks the limits
    except RemoteWireError as error:
        raise ConfigError(f"this environment's space cannot be sent: {error}") from error


def _from_gymnasium(space: gymnasium.Space[Any], path: str, image: str | Mapping[str, str] | None) -> Space:
    if isinstance(space, gymnasium.spaces.Dict):
        for name in space.spaces:
            if not isinstance(name, str):
                raise ConfigError(f"space {path!r}: the key {name!r} is no text: use str for every key of a Dict")
        kind, named = "dict", sorted(space.spaces.items())
    elif isinstance(space, gymnasium.spaces.Tuple):
        kind, named = "tuple", [(str(i), child) for i, child in enumerate(space.spaces)]
    else:
        return Space.of(_leaf_from_gymnasium(space, path, image))
    children = tuple((name, _from_gymnasium(child, join_path(path, name), image)) for name, child in named)
    return Space(kind=kind, children=children)


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
        f"{name_part('space', path)} is a {type(space).__name__}, expected Box, Discrete, MultiDiscrete, MultiBinary, "
        "Text, Dict or Tuple: wrap the environment to give one of these"
    )


def _dtype_name(space: gymnasium.Space[Any], path: str) -> str:
    name = np.dtype(space.dtype).name
    if name not in DTYPES:
        raise ConfigError(f"{name_part('space', path)} has dtype {name}: use one of {', '.join(DTYPES)}")
    return name


def _image_layout(dtype: str, shape: tuple[int, ...], image: str | Mapping[str, str] | None, path: str) -> str:
    if dtype != "uint8" or len(shape) not in (2, 3) or image is None:
        return ""
    if len(shape) == 2:
        return "HW"
    said = image if isinstance(image, str) else image.get(path, "")
    if said not in ("HWC", "CHW"):
        raise ConfigError(
            f"{name_part('observation', path)} is uint8 {list(shape)}, whose channels are at an unknown place: set "
            "env.image to 'HWC' or 'CHW', or metadata['image'] of the environment"
        )
    return said


def flatten(space: Space, value: Any) -> list[Array]:
    """Return the leaves `[L, *wire_shape]` of a nested value with a leading lane axis, in canonical order.

    Arrays that already fit are not copied. Raises: EnvError naming the leaf that does not fit its space.
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
    """Return the nested value of leaves, the inverse of `flatten`; text becomes a list of str."""
    return _take(space, iter(leaves))


def _take(space: Space, arrays: Iterator[Array]) -> Any:
    if space.leaf is not None:
        array = next(arrays)
        return decode_text(space.leaf, array) if space.leaf.kind == "text" else array
    if space.kind == "dict":
        return {name: _take(child, arrays) for name, child in space.children}
    return tuple(_take(child, arrays) for _, child in space.children)


def _value_of(leaf: Leaf) -> str:
    return name_part("the environment's value", leaf.path)


def _leaf_array(leaf: Leaf, value: Any) -> Array:
    if leaf.kind == "text":
        return encode_text(leaf, value)
    try:
        array = np.asarray(value, leaf.dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise EnvError(f"{_value_of(leaf)} is not a {leaf.describe()}: {error}") from error
    if array.ndim == 0 or array.shape[1:] != leaf.shape:
        raise EnvError(f"{_value_of(leaf)} has shape {array.shape[1:]}, its space says {leaf.shape}")
    return array


def encode_text(leaf: Leaf, texts: Sequence[str]) -> Array:
    """Return one text for each lane as u8 `[L, wire_shape]`: the UTF-8 byte count as u32, the bytes, zeros."""
    rows = np.zeros((len(texts), *leaf.wire_shape), np.uint8)
    for row, text in zip(rows, texts, strict=True):
        data = str(text).encode()
        if len(text) > leaf.max_length:
            raise EnvError(f"{_value_of(leaf)} has {len(text)} characters, its space {leaf.max_length}")
        row[: 4 + len(data)] = np.frombuffer(len(data).to_bytes(4, "little") + data, np.uint8)
    return rows


def decode_text(leaf: Leaf, rows: Array) -> list[str]:
    """Return the texts of the lanes, the inverse of `encode_text`. Raises: RemoteWireError."""
    texts = []
    for row in rows:
        raw = row.tobytes()
        size = int.from_bytes(raw[:4], "little")
        if size > len(raw) - 4:
            raise RemoteWireError("value", f"{leaf.path!r}: text of {size} bytes in a field for {len(raw) - 4}")
        try:
            texts.append(raw[4 : 4 + size].decode())
        except UnicodeDecodeError as error:
            raise RemoteWireError("value", f"{leaf.path!r}: text is not UTF-8") from error
    return texts


def check_values(space: Space, arrays: Sequence[Array]) -> None:
    """Raise RemoteWireError unless a peer's arrays `[..., *wire_shape]` hold values that the space allows.

    Discrete values must be in range, text must fit its field, and floats must be finite as float32. Bounds of a box are
    not enforced, because environments exceed them and no computation depends on them.
    """
    for leaf, array in zip(space.leaves(), arrays, strict=True):
        check_leaf_values(leaf, array)


def check_leaf_values(leaf: Leaf, array: Array) -> None:
    """Check the values of one leaf, as `check_values` does for all."""
    if leaf.nvec:
        nvec = np.reshape(leaf.nvec, leaf.shape)
        index = array - np.reshape(leaf.starts, leaf.shape)
        fine = all_true((index >= 0) & (index < nvec))
    elif leaf.kind == "multi_binary":
        fine = all_true((array == 0) | (array == 1))
    elif leaf.kind == "text":
        sizes = np.ascontiguousarray(array[..., :4]).view("<u4")
        fine = all_true(sizes <= array.shape[-1] - 4)
    else:
        fine = array.dtype.kind != "f" or all_true(are_finite(array))
    if not fine:
        raise RemoteWireError("value", f"{leaf.path!r} has values that are not valid for {leaf.describe()}")


def are_finite(array: Array, out: Array | None = None) -> Array:
    """Return which floats are finite as float32, in which the policy computes; bool of the same shape."""
    if array.dtype.itemsize <= np.dtype(np.float32).itemsize:
        return np.asarray(np.isfinite(array, out=out))
    return np.asarray(np.less_equal(np.abs(array), FLOAT32_MAX, out=out))  # False for NaN


def all_true(array: Array) -> bool:
    """Whether all elements of a bool array are True; for small ones twice as fast as its own `all`."""
    return int(np.count_nonzero(array)) == array.size
