"""Converts dm_env's specs to Gymnasium's spaces, and a server's values to values of these spaces."""

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

from seedbed.shared.errors import ConfigError

MAX_CATEGORIES = 1 << 20  # the protocol's limit for a discrete leaf
LETTERS = "".join(chr(code) for code in range(32, 127))


def observation_spaces(named: Mapping[str, specs.Array], text_length: int) -> dict[str, gymnasium.Space[Any]]:
    """Return the space of each observation, by name.

    Args:
      text_length: longest string observation, characters; longer ones are cut.
    Raises: ConfigError naming the observation that the protocol cannot carry.
    """
    return {name: _observation_leaf(name, spec, text_length) for name, spec in named.items()}


def action_space(named: Mapping[str, specs.Array]) -> gymnasium.Space[Any]:
    """Return the space of actions: bounded integers become Discrete or MultiDiscrete, other numbers Box.

    Raises: ConfigError naming the action that the protocol cannot carry.
    """
    return joined({name: _action_leaf(name, spec) for name, spec in named.items()}, "actions")


def value_of(space: gymnasium.Space[Any], value: Any) -> Any:
    """Convert a server's value to a value of its space: text is cut and made ASCII, numbers get the space's dtype."""
    if isinstance(space, spaces.Text):
        return "".join(letter if letter in LETTERS else "?" for letter in str(value)[: space.max_length])
    array = np.asarray(value, space.dtype)
    return array[()] if isinstance(space, spaces.Discrete) else array


def joined(leaves: dict[str, gymnasium.Space[Any]], what: str) -> gymnasium.Space[Any]:
    """Return a Dict space of these leaves, or the leaf itself if there is only one. Raises: ConfigError if none."""
    if not leaves:
        raise ConfigError(f"this world has no {what}")
    return next(iter(leaves.values())) if len(leaves) == 1 else spaces.Dict(leaves)


def _observation_leaf(name: str, spec: specs.Array, text_length: int) -> gymnasium.Space[Any]:
    if isinstance(spec, specs.StringArray):
        if spec.shape:
            raise ConfigError(f"observation {name!r} is an array of texts: leave it out by env.kwargs.observations")
        return spaces.Text(text_length, min_length=0, charset=LETTERS)
    if isinstance(spec, specs.DiscreteArray) and spec.num_values <= MAX_CATEGORIES:
        return spaces.Discrete(int(spec.num_values))
    return _box(f"observation {name!r}", spec)


def _action_leaf(name: str, spec: specs.Array) -> gymnasium.Space[Any]:
    what = f"action {name!r}"
    if isinstance(spec, specs.StringArray):
        raise ConfigError(f"{what} is text, which no policy gives")
    if spec.dtype.kind in "iu" and isinstance(spec, specs.BoundedArray):
        low = np.broadcast_to(spec.minimum, spec.shape).astype(np.int64)
        counts = np.broadcast_to(spec.maximum, spec.shape).astype(np.int64) - low + 1
        if (counts <= MAX_CATEGORIES).all() and (counts > 0).all():
            if not spec.shape:
                return spaces.Discrete(int(counts), start=int(low))
            return spaces.MultiDiscrete(counts, start=low)
    return _box(what, spec)


def _box(what: str, spec: specs.Array) -> gymnasium.Space[Any]:
    """Return the space of numbers or booleans of a fixed shape. Raises: ConfigError for other shapes and dtypes."""
    if any(size < 0 for size in spec.shape):
        raise ConfigError(f"{what} has the shape {spec.shape}, which varies: only fixed shapes can travel")
    if spec.dtype.kind == "b":
        return spaces.MultiBinary(spec.shape) if spec.shape else spaces.Discrete(2)
    if spec.dtype.kind not in "iuf":
        raise ConfigError(f"{what} has dtype {spec.dtype}, which cannot travel")
    low: Any = -np.inf
    high: Any = np.inf
    if spec.dtype.kind in "iu":
        low, high = np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max
    if isinstance(spec, specs.BoundedArray):
        low, high = spec.minimum, spec.maximum
    low, high = (np.broadcast_to(bound, spec.shape).astype(spec.dtype) for bound in (low, high))
    box: gymnasium.Space[Any] = spaces.Box(low, high, spec.shape, spec.dtype.type)
    return box
