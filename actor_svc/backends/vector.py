"""Steps one Gymnasium vector environment, with next-step autoreset or with autoreset disabled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from seedbed.actor_svc.backends.backend import (
    BAD_VALUES,
    ENDED_BITS,
    FIRST,
    LIFE_LOST,
    MAX_FAILURES,
    NO_LANES,
    Array,
    RowViews,
    ValueCheck,
    call_environment,
    read_figure,
    read_info,
    read_picture,
    read_traits,
)
from seedbed.actor_svc.backends.masks import with_allowed, write_masks
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.spaces import flatten, unflatten

MakeVectorEnv = Callable[[int], VectorEnv[Any, Any, Any]]  # from a number of lanes


class VectorBackend:
    """A backend on one vector environment of L lanes. If one lane fails, all lanes are rebuilt.

    Large because an environment that fails is made again here, and the rows, ends and lives of its ticks are its state.

    `make(lanes)` returns the environment. It is called with one lane to read its spaces, and with all L lanes at the
    first reset. With autoreset disabled, an ended lane is reset by `reset_mask` before the next step, because all lanes
    are stepped and none may be stepped past its end, and once more after it, which gives the row `first`.
    """

    def __init__(
        self,
        make: MakeVectorEnv,
        lanes: int,
        *,
        track_lives: bool = False,
        image: str = "",
    ) -> None:
        self._make, self._lanes = make, lanes
        self._track_lives = track_lives
        self._env: VectorEnv[Any, Any, Any] | None = None
        self._seed = 0
        sample = call_environment(make, 1)
        if not isinstance(sample, VectorEnv):
            raise ConfigError(f"a function that takes num_envs must return a VectorEnv, not a {type(sample).__name__}")
        self._is_disabled = check_autoreset(sample) is AutoresetMode.DISABLED
        _, info = call_environment(_first_reset, sample)
        observation, action = call_environment(lambda: (sample.single_observation_space, sample.single_action_space))
        self.traits = read_traits(sample, observation, action, info, seeding="group", image=image)
        call_environment(sample.close)
        self._leaves = self.traits.observation.leaves()
        self._all_lanes = np.arange(lanes)
        self.ended, self.first = NO_LANES, self._all_lanes
        self._lives: Array = np.zeros(lanes, np.int64)
        self._info: Mapping[str, Any] = {}
        self._num_failures = 0
        self.num_rebuilds, self.last_failure = 0, ""
        self._rows: RowViews

    def bind(self, rows: RowViews) -> None:
        """Write all rows from now on into these arrays."""
        self._rows, self._check = rows, ValueCheck(self._leaves, rows)

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every lane."""
        self._seed, self._num_failures = seed, 0
        try:
            call_environment(self._begin, seed)
            self._raise_if_bad()
        except EnvError as error:
            self._rebuild(error)

    def step(self, actions: Sequence[Array]) -> None:
        """Step every lane; if that fails, rebuild the whole environment."""
        rows = self._rows
        try:
            call_environment(self._step, rows, actions)
            self._raise_if_bad()
        except EnvError as error:
            self._rebuild(error)
            return
        self._num_failures = 0

    def _raise_if_bad(self) -> None:
        """Raise EnvError if this tick's rows have invalid values."""
        bad = self._check.bad_lanes()
        if bad.size:
            raise EnvError(f"lanes {bad[:8].tolist()} gave {BAD_VALUES}")

    def _step(self, rows: RowViews, actions: Sequence[Array]) -> None:
        """Step the environment once and write its rows."""
        flags, ended = rows.flags, self.ended
        if self._is_disabled and ended.size:
            actions = self._prepare_lanes(rows, ended, actions)
        observation, reward, terminated, truncated, given = self._made().step(self._action(actions))
        info = read_info(given)
        self._write(rows, observation)
        np.copyto(rows.reward, reward, casting="unsafe")
        truncated_bits = np.asarray(truncated, np.bool_).view(np.uint8)
        np.add(truncated_bits, truncated_bits, out=flags)
        np.add(flags, np.asarray(terminated, np.bool_).view(np.uint8), out=flags)
        if rows.mask is not None:
            write_masks(self.traits.action, info, rows.mask, self._all_lanes)
        if self._track_lives:
            lives = np.array(info["lives"])
            flags[lives < self._lives] |= LIFE_LOST
            self._lives = lives
        if ended.size:
            rows.reward[ended] = 0.0
            flags[ended] = FIRST
            if self._is_disabled:
                self._reset_lanes(rows, ended)
        self._info, self.first = info, ended
        self.ended = (flags & ENDED_BITS).nonzero()[0]

    def _prepare_lanes(self, rows: RowViews, lanes: Array, actions: Sequence[Array]) -> Sequence[Array]:
        """Reset the ended lanes of an environment whose autoreset is disabled, so that all lanes may be stepped.

        Returns: the actions; those of the given lanes, whose step is discarded, are ones that their fresh masks allow.
        """
        _, info = self._reset_by_mask(lanes)
        if rows.mask is None:
            return actions
        fresh = np.ones_like(rows.mask)
        write_masks(self.traits.action, info, fresh, lanes)
        return with_allowed(self.traits.action, actions, fresh, lanes)

    def _reset_lanes(self, rows: RowViews, lanes: Array) -> None:
        """Reset some lanes of an environment whose autoreset is disabled, and write their first observations."""
        observation, info = self._reset_by_mask(lanes)
        for view, values in zip(rows.observation, flatten(self.traits.observation, observation), strict=True):
            view[lanes] = values[lanes]
        if rows.mask is not None:
            write_masks(self.traits.action, info, rows.mask, lanes)

    def _reset_by_mask(self, lanes: Array) -> tuple[Any, Mapping[str, Any]]:
        """Reset some lanes and return observation and info of all, of which only theirs are new."""
        chosen = np.zeros(self._lanes, np.bool_)
        chosen[lanes] = True
        return reset_by_mask(self._made(), chosen)

    def _begin(self, seed: int) -> None:
        """Reset all lanes and write their `first` rows."""
        observation, given = self._made().reset(seed=seed)
        rows = self._rows
        self._info = info = read_info(given)
        self._write(rows, observation)
        rows.reward[:] = 0.0
        rows.flags[:] = FIRST
        if rows.mask is not None:
            write_masks(self.traits.action, info, rows.mask, self._all_lanes)
        if self._track_lives:
            self._lives = np.array(info["lives"])
        self.ended, self.first = NO_LANES, self._all_lanes

    def _made(self) -> VectorEnv[Any, Any, Any]:
        """Return the environment, which is made where there is none."""
        if self._env is None:
            self._env = self._make(self._lanes)
        return self._env

    def _rebuild(self, failure: EnvError) -> None:
        """Make the environment anew and reset it with a fresh seed, until that succeeds.

        Raises: EnvError after MAX_FAILURES without a good step between them.
        """
        while True:
            self.last_failure = str(failure)
            self._num_failures += 1
            if self._num_failures > MAX_FAILURES:
                raise EnvError(f"failed {MAX_FAILURES} times without one good step; last: {failure}") from failure
            self.num_rebuilds += self._lanes
            fresh = int(np.random.SeedSequence([self._seed, self.num_rebuilds]).generate_state(1)[0] >> 1)
            try:
                self._close_env()
                call_environment(self._begin, fresh)
                self._raise_if_bad()
                return
            except EnvError as error:
                failure = error

    def _close_env(self) -> None:
        """Close the environment; if it is broken and fails to close, that is only noted in `last_failure`."""
        env, self._env = self._env, None
        try:
            if env is not None:
                call_environment(env.close)
        except EnvError as error:
            self.last_failure = f"close: {error}"

    def _action(self, actions: Sequence[Array]) -> Any:
        """Return a copy of the actions, nested like the vector environment's action space."""
        if self.traits.action.leaf is not None:
            return np.array(actions[0])
        return unflatten(self.traits.action, [np.array(leaf) for leaf in actions])

    def _write(self, rows: RowViews, observation: Any) -> None:
        """Copy the observation leaves into the rows. Raises: EnvError if they are of another number of lanes."""
        view = rows.observation[0]
        if type(observation) is np.ndarray and observation.shape == view.shape:  # one leaf, the common case
            np.copyto(view, observation, casting="unsafe")
            return
        for view, values in zip(rows.observation, flatten(self.traits.observation, observation), strict=True):
            if len(values) != self._lanes:
                raise EnvError(f"observations of {len(values)} lanes, expected {self._lanes}")
            view[...] = values

    def extra_statistics(self, lanes: Array) -> Array:
        """Return the statistics of the ended lanes from the last tick's info, f32 [n, K]; NaN where it lacks one."""
        table = np.full((len(lanes), len(self.traits.statistics)), np.nan, np.float32)
        for column, name in enumerate(self.traits.statistics):
            if name in self._info:
                table[:, column] = _pick(self._info[name], self._info.get(f"_{name}"), lanes)
        return table

    def render(self) -> Array | None:
        """Return a picture of lane 0, u8 [height, width, 3], or None if the environment shows nothing."""
        frames: Any = None if self._env is None else call_environment(self._env.render)
        if frames is None or not len(frames):
            return None
        return call_environment(
            read_picture, frames[0] if isinstance(frames, (tuple, list)) or np.ndim(frames) == 4 else frames
        )

    def close(self) -> None:
        """Close the environment of all lanes; if that fails, it is only noted in `last_failure`."""
        self._close_env()


def _first_reset(env: VectorEnv[Any, Any, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Reset an environment with seed 0 and return its observation and info. Raises: EnvError if info is no mapping."""
    observation, info = env.reset(seed=0)
    return observation, read_info(info)


def reset_by_mask(env: VectorEnv[Any, Any, Any], chosen: Array) -> tuple[Any, Mapping[str, Any]]:
    """Reset the lanes that are True in `chosen`, bool [L], and return observation and info of all lanes.

    Raises: EnvError if info is no mapping; whatever the environment raises.
    """
    observation, info = env.reset(options={"reset_mask": chosen})
    return observation, read_info(info)


def reset_ended(env: VectorEnv[Any, Any, Any], terminated: Any, truncated: Any) -> None:
    """After a step, reset the lanes that ended if the environment's autoreset is disabled: none may be stepped again.

    Raises: as `reset_by_mask`.
    """
    if env.metadata.get("autoreset_mode") in (AutoresetMode.DISABLED, AutoresetMode.DISABLED.value):
        ended = np.logical_or(terminated, truncated)
        if ended.any():
            reset_by_mask(env, ended)


def _pick(values: Any, given: Any, lanes: Array) -> list[float]:
    """Return these lanes' values of an info entry that is indexed by lane; all NaN if it cannot be indexed so.

    Args:
      given: where Gymnasium gathered the infos of single environments, whether each lane's has this entry: NaN
        where not. None: all have it.
    """
    try:
        return [read_figure(values[lane]) if given is None or given[lane] else np.nan for lane in lanes.tolist()]
    except (TypeError, IndexError, KeyError):
        return [np.nan] * len(lanes)


def check_autoreset(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the environment's autoreset mode. Raises: ConfigError unless it is NEXT_STEP or DISABLED."""
    mode = env.metadata.get("autoreset_mode")
    try:
        mode = AutoresetMode(mode)
    except ValueError:
        raise ConfigError(
            f"{env}: metadata['autoreset_mode'] is {mode!r}; set it to AutoresetMode.NEXT_STEP or DISABLED"
        ) from None
    if mode is AutoresetMode.SAME_STEP:
        raise ConfigError(
            f"{env} resets in the step that ends an episode, so its final observations are no rows: make it with "
            "autoreset_mode=AutoresetMode.NEXT_STEP (or DISABLED, if it takes options['reset_mask']), or give a "
            "function that returns one single environment"
        )
    return mode
