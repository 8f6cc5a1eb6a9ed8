"""Reads an info's `action_mask` into a mask's columns: the categories of all discrete components, in canonical order.

A mask is flat, or nested like the action space with tuples or lists for the components of a MultiDiscrete, as
Gymnasium's `sample` takes it. None allows everything; what stands for a leaf without categories is not looked at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seedbed.actor_svc.backends.backend import Array, call_environment
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.leaves import name_part
from seedbed.shared.protocol.spaces import Space, mask_size


def write_lane_mask(action: Space, info: Mapping[str, Any], row: Array) -> None:
    """Write the mask in one environment's info as u8 [M] of 0 and 1.

    Raises: EnvError if it is missing or is not a mask of this action space.
    """
    columns = call_environment(_read_lane, action, _given_mask(info))
    np.not_equal(columns, 0, out=row.view(np.bool_))


def write_masks(action: Space, info: Mapping[str, Any], mask: Array, lanes: Array) -> None:
    """Write the masks of some lanes, which a vector environment's info holds, into u8 [L, M] of 0 and 1.

    The arrays of the mask have a leading lane axis. A list, or an array of objects, has one lane's mask for each lane.

    Args:
      lanes: the lanes that are written.
    Raises: EnvError if one is missing or is not a mask of this action space.
    """
    value = _given_mask(info)
    has_mask = info.get("_action_mask")  # Gymnasium's word on which lanes gave one
    if has_mask is not None and not np.asarray(has_mask)[lanes].all():
        raise EnvError(_LACKING)
    columns = call_environment(_read_lanes, action, value, lanes, len(mask))
    mask[lanes] = np.not_equal(columns, 0)


def with_allowed(action: Space, actions: Sequence[Array], mask: Array, lanes: Array) -> list[Array]:
    """Return action leaves `[L, ...]` in which some lanes take the first choice that the mask allows them.

    Args:
      mask: u8 [L, M].
      lanes: the lanes that do so.
    """
    offset, result = 0, []
    for leaf, given in zip(action.leaves(), actions, strict=True):
        values = np.array(given)
        for index, (categories, start) in enumerate(zip(leaf.nvec, leaf.starts, strict=True)):
            values.reshape(len(values), -1)[lanes, index] = start + mask[lanes, offset : offset + categories].argmax(1)
            offset += categories
        result.append(values)
    return result


_LACKING = "the environment gave an action_mask at first, and now none"


def _given_mask(info: Mapping[str, Any]) -> Any:
    if "action_mask" not in info:
        raise EnvError(_LACKING)
    return info["action_mask"]


def _read_lane(action: Space, value: Any) -> Array:
    """Return one lane's columns, [M]."""
    if value is None:
        return np.ones(mask_size(action), np.bool_)
    if action.leaf is not None:
        nvec = np.reshape(action.leaf.nvec, action.leaf.shape)
        return _checked(_read_components(nvec, value), action)
    if isinstance(value, Mapping) and action.kind == "dict":
        parts = [_read_lane(child, _child_of(value, name)) for name, child in _masked_children(action)]
    elif isinstance(value, tuple | list) and action.kind == "tuple" and not all(map(np.isscalar, value)):
        _check_length(value, action)
        parts = [_read_lane(child, value[int(name)]) for name, child in _masked_children(action)]
    else:
        parts = [np.ravel(value)]
    return _checked(np.concatenate(parts), action)


def _read_components(nvec: Array, value: Any) -> Array:
    """Return the columns of components with so many categories each; `value` is flat, or nested like `nvec`."""
    if value is None:
        return np.ones(nvec.sum(), np.bool_)
    if not nvec.ndim:
        columns = np.ravel(value)
        if columns.size != nvec:
            raise EnvError(f"action_mask has {columns.size} entries for a choice of {nvec}")
        return columns
    is_nested = isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.dtype == object)
    if is_nested and len(value) == len(nvec):
        return np.concatenate([_read_components(*pair) for pair in zip(nvec, value, strict=True)])
    return np.ravel(value)


def _read_lanes(action: Space, value: Any, lanes: Array, num_lanes: int) -> Array:
    """Return the columns of these of `num_lanes` lanes, [n, M]; `value` is what a vector environment gave for all."""
    if value is None:
        return np.ones((len(lanes), mask_size(action)), np.bool_)
    if isinstance(value, Mapping) and action.kind == "dict":
        pairs = [(child, _child_of(value, name)) for name, child in _masked_children(action)]
    elif isinstance(value, tuple) and action.kind == "tuple":
        _check_length(value, action)
        pairs = [(child, value[int(name)]) for name, child in _masked_children(action)]
    elif isinstance(value, tuple):  # of a MultiDiscrete: one array for each component
        parts = [np.asarray(part)[lanes].reshape(len(lanes), -1) for part in _flat(value)]
        return _checked(np.concatenate(parts, axis=1), action)
    else:
        gathered = value if isinstance(value, list) else np.asarray(value)
        if len(gathered) != num_lanes:
            raise EnvError(f"action_mask of {len(gathered)} lanes, expected {num_lanes}")
        if isinstance(gathered, list) or gathered.dtype == object:
            return np.stack([_read_lane(action, gathered[lane]) for lane in lanes.tolist()])
        return _checked(gathered[lanes].reshape(len(lanes), -1), action)
    return np.concatenate([_read_lanes(child, part, lanes, num_lanes) for child, part in pairs], axis=1)


def _masked_children(action: Space) -> list[tuple[str, Space]]:
    """Return the children that have columns."""
    return [(name, child) for name, child in action.children if mask_size(child)]


def _child_of(value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        raise EnvError(f"action_mask lacks {name!r}, which may be None to allow everything")
    return value[name]


def _check_length(value: tuple[Any, ...] | list[Any], action: Space) -> None:
    if len(value) != len(action.children):
        raise EnvError(f"action_mask has {len(value)} parts, the action space {len(action.children)}")


def _checked(columns: Array, action: Space) -> Array:
    """Return columns [..., M]. Raises: EnvError if they are not as many as the action space has."""
    expected = mask_size(action)
    if columns.shape[-1] != expected:
        whole = name_part("action_mask", action.leaf.path if action.leaf else "")
        raise EnvError(f"{whole} has {columns.shape[-1]} entries, expected {expected}")
    return columns


def _flat(value: Any) -> list[Any]:
    """Return what stands in nested tuples, in order."""
    return [item for part in value for item in _flat(part)] if isinstance(value, tuple) else [value]
