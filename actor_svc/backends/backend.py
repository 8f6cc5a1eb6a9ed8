"""The interface of a backend, which steps a group's lanes, and the one place where foreign environment code is called.

A backend writes each tick's rows in place and guarantees next-step autoreset: a row with `terminated` or `truncated`
holds the final observation; the lane's next row is its reset row (`first`), whose reward is 0 and for which the action
is ignored. A lane that raised or gave invalid values is rebuilt; its row is then `first`, with no ended row before it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import gymnasium
import numpy as np
import numpy.typing as npt

from seedbed.shared.errors import ConfigError, EnvError, SeedbedError
from seedbed.shared.protocol.rows import ENDED, Flags, are_rewards
from seedbed.shared.protocol.spaces import Leaf, Space, are_finite, mask_size, space_from_gymnasium
from seedbed.shared.protocol.statistics import name_problem
from seedbed.shared.runtime.modules import describe_failure

Array = npt.NDArray[Any]
P = ParamSpec("P")
R = TypeVar("R")

ENDED_BITS = int(ENDED)
FIRST = int(Flags.FIRST)
TERMINATED = int(Flags.TERMINATED)
TRUNCATED = int(Flags.TRUNCATED)
LIFE_LOST = int(Flags.LIFE_LOST)
ABSENT = int(Flags.ABSENT)
NO_LANES: Array = np.empty(0, np.int64)
MAX_FIGURE = float(np.finfo(np.float32).max)  # the largest statistic: they travel as float32
MAX_FAILURES = 20  # failures in a row, without a good step between them, before a backend gives up


class LanesError(ConfigError):
    """Raised where the number of lanes must be a multiple of `multiple`, such as the agents of a world, and is not."""

    def __init__(self, message: str, multiple: int) -> None:
        super().__init__(message)
        self.multiple = multiple


@dataclass(frozen=True, slots=True, kw_only=True)
class RowViews:
    """One tick's rows as writable arrays over the memory of the frames that are sent."""

    observation: tuple[Array, ...]  # leaves in canonical order, [L, ...]
    mask: Array | None  # u8 [L, M]
    reward: Array  # f32 [L]
    flags: Array  # u8 [L]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Facts about an environment that are only shown to people; no session depends on them."""

    layers: tuple[str, ...] = ()  # class names, from the outermost wrapper to the environment itself
    is_vector: bool = False
    max_episode_steps: int | None = None  # None: not known
    can_render: bool = False  # whether it supports render_mode "rgb_array"
    fps: float | None = None  # frames per second at which to show it; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """The properties of an environment that a policy and a session depend on."""

    observation: Space
    action: Space
    mask_size: int  # elements of a lane's action mask; 0 without masks
    statistics: tuple[str, ...]  # names of an ended episode's statistics, besides return and length
    seeding: str  # what a seed decides: "lane" or "group"
    about: About = About()


@runtime_checkable
class Backend(Protocol):
    """Steps L lanes and writes their rows. One thread owns a backend and shares no part of it."""

    traits: Traits
    ended: Array  # lanes with `terminated` or `truncated` in the newest rows, ascending
    first: Array  # lanes with `first`, ascending

    @property
    def num_rebuilds(self) -> int:
        """How many lanes were rebuilt since the start."""

    @property
    def last_failure(self) -> str:
        """The cause of the newest failure of an environment; empty if there was none."""

    def bind(self, rows: RowViews) -> None:
        """Write all rows from now on into these arrays."""

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every lane and write their `first` rows; the seed decides all that is random."""

    def step(self, actions: Sequence[Array]) -> None:
        """Step every lane with its action, leaves `[L, ...]` as the environment takes them, and write the rows."""

    def extra_statistics(self, lanes: Array) -> Array:
        """Return `traits.statistics` of the n given lanes, whose episodes ended in this tick, f32 [n, K]."""

    def render(self) -> Array | None:
        """Return a picture of lane 0, u8 [height, width, 3], or None if the environment cannot be shown."""

    def close(self) -> None:
        """Close every environment."""


def call_environment(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call foreign environment code; whatever it raises becomes an EnvError.

    An environment may raise anything, and only its lane may suffer. That includes SystemExit and what extension modules
    raise outside Exception; KeyboardInterrupt alone passes through.
    """
    try:
        return function(*args, **kwargs)
    except (SeedbedError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise EnvError(describe_failure(error)) from error


def read_info(info: Any) -> Mapping[str, Any]:
    """Return an environment's info unchanged. Raises: EnvError if it is no mapping."""
    if type(info) is dict or isinstance(info, Mapping):
        return info
    raise EnvError(f"the environment returned an info of type {type(info).__name__}: return a dict")


def read_figure(value: Any) -> float:
    """Return one episode statistic as a float that is finite as float32; NaN if the value is no such number."""
    try:
        figure = float(value)
    except (TypeError, ValueError):
        return math.nan
    return figure if abs(figure) <= MAX_FIGURE else math.nan


def read_traits(
    env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any],
    observation: gymnasium.Space[Any],
    action: gymnasium.Space[Any],
    info: Mapping[str, Any],
    *,
    seeding: str,
    image: str = "",
) -> Traits:
    """Return the traits of an environment, read from its spaces, its metadata and the info of one reset.

    `metadata["image"]` says where the channels of uint8 arrays of rank 3 are ("HWC", "CHW", or a table by leaf path);
    `metadata["statistics"]` names the info entries that are reported at the end of an episode. An `action_mask` in the
    reset's info means that every row carries one.

    Raises: ConfigError if the metadata or a space cannot be used.
    """
    metadata = env.metadata or {}
    named = metadata.get("statistics", ())
    if isinstance(named, str):
        raise ConfigError(f"metadata['statistics'] of the environment is a text: write a tuple, ({named!r},)")
    statistics = tuple(str(name) for name in named)
    if problem := name_problem(statistics):
        raise ConfigError(f"metadata['statistics'] of the environment: {problem}")
    own_action = space_from_gymnasium(action, image=None)
    if any(leaf.kind == "text" for leaf in own_action.leaves()):
        raise ConfigError(
            "the action space has a Text leaf, which no policy can choose: wrap the environment to take numbers"
        )
    masked = "action_mask" in info
    if masked and not mask_size(own_action):
        raise ConfigError("the environment gives an action_mask, but no part of its action space is discrete")
    return Traits(
        observation=space_from_gymnasium(observation, image=image or metadata.get("image", "")),
        action=own_action,
        mask_size=mask_size(own_action) if masked else 0,
        statistics=statistics,
        seeding=seeding,
        about=read_about(env),
    )


def read_about(env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]) -> About:
    """Return what an environment's wrappers, registration and metadata say about it."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        layers.append(layers[-1].env)
    metadata = env.metadata or {}
    limits = [getattr(layer, "_max_episode_steps", None) for layer in layers]  # of Gymnasium's TimeLimit
    limits += [metadata.get("max_episode_steps"), getattr(getattr(env, "spec", None), "max_episode_steps", None)]
    fps = metadata.get("render_fps")
    return About(
        layers=tuple(type(layer).__name__ for layer in layers),
        is_vector=isinstance(env, gymnasium.vector.VectorEnv),
        max_episode_steps=next((limit for limit in limits if isinstance(limit, int)), None),
        can_render="rgb_array" in (metadata.get("render_modes") or ()),
        fps=float(fps) if isinstance(fps, int | float) and fps > 0 else None,
    )


def read_picture(frame: Any) -> Array | None:
    """Return the result of an environment's `render()` as u8 [height, width, 3]; None if that is None.

    Raises: EnvError if it is neither None nor an array [height, width, 3] of numbers.
    """
    if frame is None:
        return None
    picture = np.asarray(frame) if isinstance(frame, (np.ndarray, list, tuple)) else None
    if picture is None or picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype.kind not in "uif":
        found = (
            f"an array {list(picture.shape)}" if picture is not None and picture.ndim else f"a {type(frame).__name__}"
        )
        raise EnvError(
            f"render() gave {found}, and no picture: with render_mode='rgb_array' it must give uint8 [height, width, 3]"
        )
    return np.ascontiguousarray(picture, np.uint8)


BAD_VALUES = "NaN, what is infinite as float32, no category of its space, or a reward beyond 1e15"


class ValueCheck:
    """Finds the lanes with invalid values: not finite as float32, no category of their leaf, or too large a reward."""

    def __init__(self, leaves: Sequence[Leaf], rows: RowViews) -> None:
        floats = [view for view in rows.observation if view.dtype.kind == "f"]
        self._checks = [(view.reshape(-1), are_finite) for view in floats] + [(rows.reward, are_rewards)]
        self._fine = [np.empty(flat.size, np.bool_) for flat, _ in self._checks]
        self._num_lanes = len(rows.reward)
        self._categories = [
            (view.reshape(len(view), -1), np.array(leaf.starts, np.int64), np.array(leaf.nvec, np.int64))
            for leaf, view in zip(leaves, rows.observation, strict=True)
            if leaf.nvec
        ]

    def bad_lanes(self) -> Array:
        """Return the indices of the lanes with an invalid value in this tick, ascending; usually none."""
        bad = NO_LANES
        for (flat, check), fine in zip(self._checks, self._fine, strict=True):
            check(flat, fine)
            if not _all(fine):
                bad = np.concatenate([bad, np.flatnonzero(~fine.reshape(self._num_lanes, -1).all(1))])
        for values, starts, nvec in self._categories:
            index = values.astype(np.int64) - starts
            is_bad = (index < 0) | (index >= nvec)
            if is_bad.any():
                bad = np.concatenate([bad, np.flatnonzero(is_bad.any(1))])
        return np.unique(bad) if bad.size else bad


_all = np.logical_and.reduce  # without the Python layers of ndarray.all
