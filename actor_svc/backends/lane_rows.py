"""Copies one lane's observation and mask into a tick's rows, and turns action leaves into an action for each lane."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seedbed.actor_svc.backends.backend import ABSENT, FIRST, Array, RowViews, Traits, call_environment
from seedbed.actor_svc.backends.masks import write_lane_mask
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.leaves import Leaf, name_part
from seedbed.shared.protocol.spaces import Space, encode_text


def write_lane(
    traits: Traits, leaves: Sequence[Leaf], rows: RowViews, index: int, observation: Any, info: Mapping[str, Any]
) -> None:
    """Copy one lane's observation, and info's `action_mask` where there are masks, into its row.

    Args:
      leaves: the leaves of the observation space, in canonical order.
      index: the lane.
    Raises: EnvError if a shape is not that of its space, or a mask is missing.
    """
    if len(leaves) == 1 and traits.observation.leaf is not None:
        _write_leaf(leaves[0], rows.observation[0], index, observation)
    else:
        values = call_environment(_leaf_values, traits.observation, observation)
        for leaf, view, value in zip(leaves, rows.observation, values, strict=True):
            _write_leaf(leaf, view, index, value)
    if rows.mask is not None:
        write_lane_mask(traits.action, info, rows.mask[index])


def write_absent(leaves: Sequence[Leaf], rows: RowViews, index: int) -> None:
    """Write the row of a lane without an agent: `first` and `absent`, reward 0, first categories or 0, a full mask."""
    for leaf, view in zip(leaves, rows.observation, strict=True):
        view[index] = np.array(leaf.starts, view.dtype).reshape(leaf.shape) if leaf.nvec else 0
    if rows.mask is not None:
        rows.mask[index] = 1
    rows.reward[index] = 0.0
    rows.flags[index] = FIRST | ABSENT


def action_reader(space: Space) -> Callable[[list[Array]], Sequence[Any] | Array]:
    """Return a function that turns action leaves `[L, ...]` into a sequence with one action for each lane."""
    if space.kind == "discrete":
        return lambda leaves: list(leaves[0].tolist())  # plain integers: Gymnasium's own step fastest with them
    if space.leaf is not None:
        return lambda leaves: leaves[0]

    def read(leaves: list[Array]) -> list[Any]:
        return [_lane_action(space, iter([leaf[lane] for leaf in leaves])) for lane in range(len(leaves[0]))]

    return read


def draw_seed(child: np.random.SeedSequence) -> int:
    """Return a seed of 31 bits, which every simulator accepts."""
    return int(child.generate_state(1)[0] >> 1)


def _write_leaf(leaf: Leaf, view: Array, index: int, value: Any) -> None:
    """Write one lane's value of one leaf into its row. Raises: EnvError if its shape is not the space's."""
    if leaf.kind == "text":
        view[index] = encode_text(leaf, [value])[0]
        return
    if type(value) is not np.ndarray:
        value = call_environment(np.asarray, value, leaf.dtype)
    if value.shape != leaf.shape:
        raise EnvError(f"{name_part('observation', leaf.path)} has shape {value.shape}, its space says {leaf.shape}")
    view[index] = value


def _leaf_values(space: Space, value: Any) -> list[Any]:
    """Return the leaves of one lane's nested value, in canonical order."""
    if space.leaf is not None:
        return [value]
    parts = [
        value[name] if space.kind == "dict" else value[position] for position, (name, _) in enumerate(space.children)
    ]
    return [leaf for (_, child), part in zip(space.children, parts, strict=True) for leaf in _leaf_values(child, part)]


def _lane_action(space: Space, values: Any) -> Any:
    """Return one lane's action, nested like its space; `values` is an iterator over its leaves."""
    if space.leaf is not None:
        return next(values)
    if space.kind == "dict":
        return {name: _lane_action(child, values) for name, child in space.children}
    return tuple(_lane_action(child, values) for _, child in space.children)
