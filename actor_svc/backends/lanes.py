"""Lanes of single Gymnasium environments, stepped one by one: one that fails is rebuilt alone."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from actor_svc.backends.backend import (
    ABSENT,
    ENDED_BITS,
    FIRST,
    LIFE_LOST,
    MAX_FAILURES,
    NO_LANES,
    TERMINATED,
    TRUNCATED,
    Array,
    RowViews,
    ValueCheck,
    call_environment,
    read_traits,
)
from actor_svc.backends.vector import write_mask
from shared.errors import EnvError
from shared.protocol.spaces import Leaf, Space, encode_text

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
_MAX_WAIT_TICKS = 256


class _Lane:
    """One environment and where it is in its episode."""

    __slots__ = ("env", "info", "lives", "needs_reset", "num_failures", "seed", "wait_ticks")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.seed: np.random.SeedSequence = np.random.SeedSequence(0)
        self.needs_reset = True
        self.lives = 0
        self.info: Mapping[str, Any] = {}
        self.num_failures = 0  # since its last good step
        self.wait_ticks = 0  # until the next attempt to rebuild it


class LaneBackend:
    """L single environments.

    A lane that raises or gives what is no number is made anew and goes on with its `first` row. While that fails too,
    its rows are `first` and `absent`, tried again after 1, 2, 4, … ticks; after MAX_FAILURES it is an EnvError.
    """

    def __init__(self, make: MakeEnv, lanes: int, *, track_lives: bool = False, image: str = "") -> None:
        self._make, self._track_lives = make, track_lives
        self._lanes = [_Lane(call_environment(make))]
        env = self._lanes[0].env
        _, info = call_environment(env.reset, seed=0)
        self.traits = read_traits(env, env.observation_space, env.action_space, info, seeding="lane", image=image)
        self._lanes += [_Lane(call_environment(make)) for _ in range(lanes - 1)]
        self._leaves = self.traits.observation.leaves()
        self._action = _action_reader(self.traits.action)
        self._failing: set[int] = set()  # lanes without a good step since their last failure
        self.num_rebuilds, self.last_failure = 0, ""
        self.ended, self.first = NO_LANES, NO_LANES
        self._rows: RowViews

    def bind(self, rows: RowViews) -> None:
        """Write from now on into these arrays."""
        self._rows, self._check = rows, ValueCheck(self._leaves, rows)

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every lane; lane i is seeded with the i-th child of the seed."""
        for index, (lane, child) in enumerate(
            zip(self._lanes, np.random.SeedSequence(seed).spawn(len(self._lanes)), strict=True)
        ):
            lane.seed, lane.wait_ticks, lane.num_failures = child, 0, 0
            try:
                self._begin(index, lane, _draw_seed(child))
            except EnvError as error:
                self._fail(index, lane, error)
        self._repair()

    def step(self, actions: Sequence[Array]) -> None:
        """Step every lane, or reset it where its last row ended an episode."""
        values = self._action([np.array(leaf) for leaf in actions])
        rows = self._rows
        reward, flags = rows.reward, rows.flags
        for index, lane in enumerate(self._lanes):
            try:
                if lane.needs_reset:
                    self._begin(index, lane, None)
                    continue
                if lane.wait_ticks:
                    self._wait(index, lane)
                    continue
                observation, value, terminated, truncated, info = call_environment(lane.env.step, values[index])
                self._write(index, observation, info)
                reward[index] = call_environment(float, value)
            except EnvError as error:
                self._fail(index, lane, error)
                continue
            bits = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            if self._track_lives:
                bits |= self._count_lives(lane, info)
            flags[index] = bits
            lane.info, lane.needs_reset = info, bits & ENDED_BITS != 0
        self._repair()

    def _begin(self, index: int, lane: _Lane, seed: int | None) -> None:
        """Reset one lane and write its `first` row."""
        observation, info = call_environment(lane.env.reset, seed=seed)
        self._write(index, observation, info)
        self._rows.reward[index] = 0.0
        self._rows.flags[index] = FIRST
        lane.info, lane.needs_reset = info, False
        lane.lives = int(info.get("lives", 0))

    def _repair(self) -> None:
        """Rebuild the lanes whose values no policy may see."""
        while (bad := self._check.bad_lanes()).size:  # _fail ends it: it raises, or the lane is absent
            for index in bad.tolist():
                self._fail(index, self._lanes[index], EnvError("NaN, an infinite value or no category of its space"))
        for index in tuple(self._failing):
            if not self._rows.flags[index] & FIRST:
                self._lanes[index].num_failures = 0
                self._failing.discard(index)
        self.ended = (self._rows.flags & ENDED_BITS).nonzero()[0]
        self.first = (self._rows.flags & FIRST).nonzero()[0]

    def _fail(self, index: int, lane: _Lane, failure: EnvError) -> None:
        """Rebuild a lane after a failure, now or after some ticks."""
        self.last_failure = f"lane {index}: {failure}"
        lane.num_failures += 1
        self._failing.add(index)
        if lane.num_failures > MAX_FAILURES:
            raise EnvError(
                f"lane {index} failed {MAX_FAILURES} times without one good step; last: {failure}"
            ) from failure
        self.num_rebuilds += 1
        try:
            call_environment(lane.env.close)
        except EnvError as error:
            self.last_failure += f"; close: {error}"
        try:
            lane.env = call_environment(self._make)
            self._begin(index, lane, _draw_seed(lane.seed.spawn(1)[0]))
        except EnvError as error:
            self.last_failure = f"lane {index}: {error}"
            lane.needs_reset, lane.wait_ticks = False, min(1 << lane.num_failures, _MAX_WAIT_TICKS)
            self._write_absent(index)

    def _wait(self, index: int, lane: _Lane) -> None:
        """A lane that could not be rebuilt: absent until its next attempt."""
        lane.wait_ticks -= 1
        if lane.wait_ticks == 0:
            self._fail(index, lane, EnvError(self.last_failure))
        else:
            self._write_absent(index)

    def _write_absent(self, index: int) -> None:
        """A row without an agent: the smallest values that its spaces have, all actions allowed."""
        rows = self._rows
        for leaf, view in zip(self._leaves, rows.observation, strict=True):
            view[index] = np.array(leaf.starts, view.dtype).reshape(leaf.shape) if leaf.nvec else 0
        if rows.mask is not None:
            rows.mask[index] = 1
        rows.reward[index] = 0.0
        rows.flags[index] = FIRST | ABSENT

    def _count_lives(self, lane: _Lane, info: Mapping[str, Any]) -> int:
        """LIFE_LOST if there are fewer lives than before."""
        before, lane.lives = lane.lives, int(info.get("lives", 0))
        return LIFE_LOST if lane.lives < before else 0

    def _write(self, index: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Copy one lane's observation and mask into its row."""
        rows = self._rows
        if len(self._leaves) == 1 and self.traits.observation.leaf is not None:
            _write_leaf(self._leaves[0], rows.observation[0], index, observation)
        else:
            values = call_environment(_leaf_values, self.traits.observation, observation)
            for leaf, view, value in zip(self._leaves, rows.observation, values, strict=True):
                _write_leaf(leaf, view, index, value)
        if rows.mask is not None:
            one_lane = {name: _with_lane_axis(info[name]) for name in ("action_mask",) if name in info}
            write_mask(self.traits.action, one_lane, rows.mask[index : index + 1])

    def extra_statistics(self, lanes: Array) -> Array:
        """f32 [n, K] of the ended lanes, from their last info; NaN where the environment did not say."""
        names = self.traits.statistics
        values = [[float(self._lanes[index].info.get(name, np.nan)) for name in names] for index in lanes.tolist()]
        return np.array(values, np.float32).reshape(len(lanes), len(names))

    def render(self) -> Array | None:
        """Lane 0 as u8 [height, width, 3]."""
        frame = call_environment(self._lanes[0].env.render)
        return None if frame is None else np.ascontiguousarray(frame, np.uint8)

    def close(self) -> None:
        """Let go of every environment."""
        for lane in self._lanes:
            call_environment(lane.env.close)


def _draw_seed(child: np.random.SeedSequence) -> int:
    """A seed that every simulator takes: 31 bits."""
    return int(child.generate_state(1)[0] >> 1)


def _write_leaf(leaf: Leaf, view: Array, index: int, value: Any) -> None:
    """One lane's value of one leaf; EnvError if its shape is not the space's."""
    if leaf.kind == "text":
        view[index] = encode_text(leaf, [value])[0]
        return
    if type(value) is not np.ndarray:
        value = call_environment(np.asarray, value, leaf.dtype)
    if value.shape != leaf.shape:
        raise EnvError(f"observation {leaf.path!r} has shape {value.shape}, its space says {leaf.shape}")
    view[index] = value


def _leaf_values(space: Space, value: Any) -> list[Any]:
    """One lane's nested value as its leaves, canonical order."""
    if space.leaf is not None:
        return [value]
    parts = [
        value[name] if space.kind == "dict" else value[position] for position, (name, _) in enumerate(space.children)
    ]
    return [leaf for (_, child), part in zip(space.children, parts, strict=True) for leaf in _leaf_values(child, part)]


def _with_lane_axis(mask: Any) -> Any:
    """One lane's mask, flat or nested, as that of a group of one."""
    if isinstance(mask, dict):
        return {name: _with_lane_axis(part) for name, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(_with_lane_axis(part) for part in mask)
    return None if mask is None else np.asarray(mask)[None]


def _action_reader(space: Space) -> Callable[[list[Array]], Sequence[Any] | Array]:
    """A function from action leaves `[L, ...]` to one action for each lane."""
    if space.kind == "discrete":
        return lambda leaves: list(leaves[0].tolist())  # plain integers: Gymnasium's own step fastest with them
    if space.leaf is not None:
        return lambda leaves: leaves[0]

    def read(leaves: list[Array]) -> list[Any]:
        return [_lane_action(space, iter([leaf[lane] for leaf in leaves])) for lane in range(len(leaves[0]))]

    return read


def _lane_action(space: Space, values: Any) -> Any:
    """One lane's action, nested as its space."""
    if space.leaf is not None:
        return next(values)
    if space.kind == "dict":
        return {name: _lane_action(child, values) for name, child in space.children}
    return tuple(_lane_action(child, values) for _, child in space.children)
