"""EnvPool: any environment that it has, as a Gymnasium vector environment with next-step autoreset.

EnvPool waits for all lanes at every step, steps them in threads of its own, and resets an ended lane in its next step.
It takes seeds only when it is made, so a reset with a seed makes it anew. `docs/environments.md` has the families.
"""

import functools
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from seedbed.actor_svc.backends.families import STATISTICS, Family, check_doom, family_of
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.runtime.config import ATARI_MAX_STEPS, EnvConfig
from seedbed.shared.runtime.config_errors import suggest

DOOM_SCRIPT = Path(__file__).with_name("vizdoom")  # starts Doom so that it ends with this process, even if killed
FAILURES = (KeyError, ValueError, AssertionError, TypeError, RuntimeError)  # what EnvPool raises for wrong options


class Pool(VectorEnv[Any, Any, Any]):
    """L lanes of one EnvPool environment.

    Observations and actions are as EnvPool specifies them, with two repairs: bounds that it leaves out are infinite,
    and integer actions of several elements are MultiDiscrete. Frames are not stacked.

    Args:
      env_id: the environment's id in EnvPool, for example "HalfCheetah-v4".
      num_envs: the number of lanes, L.
      options: options of EnvPool's constructor; they come before those of the environment's family.
      max_episode_steps: episodes are truncated after this many steps; None: EnvPool's own limit.
      num_threads: how many threads step the lanes; 0: one for each usable core.
      image: axes of uint8 observations of rank 3, "HWC" or "CHW"; empty: those of the family.
      render: whether lane 0 can be shown.
    Raises: ConfigError where EnvPool has no such environment or refuses an option.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        *,
        options: Mapping[str, Any] | None = None,
        max_episode_steps: int | None = None,
        num_threads: int = 0,
        image: str = "",
        render: bool = False,
    ) -> None:
        entry, _, registered = _registration(env_id)
        name, family = family_of(entry)
        self._name, self._family, self.num_envs = env_id, family, num_envs
        self._options: dict[str, Any] = {"num_envs": num_envs, **family.options, **(options or {})}
        if name == "vizdoom":
            self._options = check_doom(env_id, self._options)
            if os.access(DOOM_SCRIPT, os.X_OK):
                os.environ["VIZDOOM"] = registered["vzd_path"]  # for the script that is started in its place
                self._options["vzd_path"] = str(DOOM_SCRIPT)
        if max_episode_steps is not None and not family.obeys_limit:
            raise ConfigError(f"env.max_episode_steps: EnvPool's {name} ends episodes by itself; leave it out")
        if max_episode_steps is not None or family.late_steps:
            limit: int = max_episode_steps or registered["max_episode_steps"]
            self._options["max_episode_steps"] = limit - family.late_steps
        self._num_threads = num_threads or usable_cores(num_envs)
        self.render_mode = "rgb_array" if render and family.can_render else None
        self._pool: Any = None
        _refuse_unknown(env_id, self._options, family)
        spec, observation, action = _configured(
            env_id, lambda envpool: _with_spaces(envpool.make_spec(env_id, **self._options))
        )
        if spec.config.max_num_players > 1:
            raise ConfigError(f"env.id: {env_id} has several players in one environment; a lane has one agent")
        self.single_action_space = _repaired(action, is_action=True)
        self._given_space = _repaired(observation, is_action=False)
        self.single_observation_space = _observed(self._given_space, family)
        if getattr(self.single_action_space, "n", 2) < 2:
            raise ConfigError(f"env.id: {env_id} has no actions to choose from; does its .cfg name available_buttons?")
        given = {key.removeprefix("info:") for key in spec.state_array_spec if key.startswith("info:")}
        self.metadata = {
            "autoreset_mode": AutoresetMode.NEXT_STEP,
            "image": image or family.image,
            "statistics": (*family.statistics, *(name for name in STATISTICS if name in given)),
            "max_episode_steps": self._options.get("max_episode_steps", registered.get("max_episode_steps")),
            "render_modes": ["rgb_array"] if family.can_render else [],
        }
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a fresh episode in every lane; with a seed the pool is made anew, so that all depends on the seed."""
        del options
        if seed is not None or self._pool is None:
            self._pool = None  # the old one goes before the new one comes
            seeds = np.random.SeedSequence(seed).generate_state(self.num_envs) >> 1  # EnvPool takes 31 bits
            extra = {"render_mode": self.render_mode} if self.render_mode else {}
            self._pool = _configured(
                self._name,
                lambda envpool: _with_spaces(
                    envpool.make_gymnasium(
                        self._name, seed=seeds.tolist(), num_threads=self._num_threads, **self._options, **extra
                    )
                ),
            )[0]
        observation, info = self._pool.reset()
        return self._observe(observation), info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every lane, or reset it where its last step ended an episode."""
        observation, reward, terminated, truncated, info = self._pool.step(actions)
        for name, read in self._family.statistics.items():
            info[name] = read(info)
        return self._observe(observation), reward, terminated, truncated, info

    def _observe(self, observation: Any) -> Any:
        """Return EnvPool's observations in the shapes of `observation_space`."""
        observation = _shaped(self._given_space, observation, self.num_envs)
        return observation if self._family.observe is None else self._family.observe(observation)

    def render(self) -> Any:
        """Lane 0 as u8 [1, height, width, 3], or None where EnvPool cannot show it."""
        return None if self.render_mode is None or self._pool is None else self._pool.render()

    @property
    def bare(self) -> Any:
        """EnvPool's own environment, as a program without seedbed would step it; None before the first reset."""
        return self._pool

    def close_extras(self, **kwargs: Any) -> None:
        """Release the pool, which ends its threads and processes."""
        self._pool = None


def make_pool(env: EnvConfig, lanes: int, threads: int, *, render: bool = False) -> VectorBackend:
    """Return a backend of L lanes of [env]'s environment on EnvPool. Raises: as `pool_maker` and `Pool`."""
    make = pool_maker(env, threads, render=render)
    return VectorBackend(make, lanes, track_lives=env.is_atari and env.life_loss)


def pool_maker(env: EnvConfig, threads: int, *, render: bool = False) -> Callable[[int], Pool]:
    """Return a function that makes a `Pool` of [env]'s environment with a given number of lanes.

    Raises: ConfigError for an unknown id, or an option that is set elsewhere.
    """
    options = dict(env.kwargs)
    name = find_id(env.id)
    _, family = family_of(_registration(name)[0])
    for key in family.elsewhere.keys() & options.keys():
        place = family.elsewhere[key]
        raise ConfigError(f"env.kwargs.{key}: " + (f"set {place} instead" if place else "is set by seedbed"))
    steps = env.max_episode_steps
    if env.is_atari:
        from seedbed.actor_svc.backends.atari import pool_options

        options = {**pool_options(env), **options}
        steps = steps or ATARI_MAX_STEPS
    return functools.partial(
        Pool, name, options=options, max_episode_steps=steps, num_threads=threads, image=env.image, render=render
    )


def has(env_id: str) -> bool:
    """Whether EnvPool is installed and has an environment of this id."""
    try:
        return env_id in _registry().specs
    except MissingExtraError:
        return False


def known_ids() -> set[str]:
    """Return EnvPool's ids as they are written in `env.id`, where those of Atari games begin with ALE/."""
    return {f"ALE/{name}" if spec[0] == "envpool.atari" else name for name, spec in _registry().specs.items()}


def find_id(env_id: str) -> str:
    """Return EnvPool's own id for an `env.id`: an Atari game's has no "ALE/" before it.

    Raises: ConfigError if EnvPool has no such environment, a game's id lacks "ALE/", or an id that is no game's has it.
    """
    known = _registry().specs
    name = env_id.removeprefix("ALE/")
    if name not in known:  # TicTacToe3D is TicTacToe3d there
        name = next((other for other in known if other.lower() == name.lower()), name)
    is_game = _registration(name)[0] == "envpool.atari"
    if is_game and not env_id.startswith("ALE/"):
        raise ConfigError(f"env.id: write ALE/{name}, so that the Atari settings of [env] apply")
    if env_id.startswith("ALE/") and not is_game:
        raise ConfigError(f"env.id: {env_id!r} is no Atari game, for example ALE/Pong-v5")
    return name


def usable_cores(lanes: int) -> int:
    """Return how many threads to step the lanes with: the cores that this process may use, at most one for a lane."""
    return max(1, min(lanes, len(os.sched_getaffinity(0))))


def _registry() -> Any:
    """Return EnvPool's registry; its `specs` holds import path, class and options of each id.

    Raises: MissingExtraError without envpool.
    """
    try:
        import envpool  # noqa: F401  it registers them
        from envpool.registration import registry
    except ImportError as error:
        raise MissingExtraError("envpool", "envpool") from error
    return registry


def _registration(name: str) -> tuple[str, str, dict[str, Any]]:
    """Return import path, specification class and options of an id. Raises: ConfigError if EnvPool has no such id."""
    known = _registry().specs
    if name not in known:
        raise ConfigError(f"env.id: EnvPool has no environment {name!r}{suggest(name, tuple(known))}")
    found: tuple[str, str, dict[str, Any]] = known[name]
    return found


def _refuse_unknown(name: str, options: Mapping[str, Any], family: Family) -> None:
    """Raise ConfigError for the first option that EnvPool's environment does not have."""
    bare = {key: options[key] for key in ("cfg_path",) if key in options}  # a Doom of the user's has none without it
    known = _configured(name, lambda envpool: envpool.make_spec(name, **bare)).config._fields
    offered = tuple(key for key in known if key not in family.elsewhere)
    for key in options:
        if key not in known:
            raise ConfigError(f"env.kwargs.{key}: {name} on EnvPool has no such option{suggest(key, offered)}")


def _configured(name: str, call: Callable[[Any], Any]) -> Any:
    """Return `call(envpool)`; an error that the user's [env] section has caused is raised as ConfigError."""
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError("envpool", "envpool") from error
    try:
        with warnings.catch_warnings():  # of bounds that EnvPool states in float64, when its spaces are first read
            warnings.filterwarnings("ignore", ".*precision lowered.*")
            return call(envpool)
    except ImportError as error:
        raise ConfigError(
            f"env.id: {name} needs a system library: {error} Procgen's are Debian's libqt5core5a and libqt5gui5"
        ) from error
    except FAILURES as error:
        raise ConfigError(f"EnvPool cannot make env.id {name!r}: {error}") from error


def _with_spaces(made: Any) -> tuple[Any, Any, Any]:
    """Return a specification or pool, its observation space and its action space, which warn when first read."""
    return made, made.observation_space, made.action_space


def _repaired(space: Any, *, is_action: bool) -> spaces.Space[Any]:
    """Return EnvPool's space with its missing bounds made infinite, and integer action boxes made MultiDiscrete.

    EnvPool writes a missing bound of floats as the dtype's smallest positive or its largest number.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _repaired(child, is_action=is_action) for name, child in space.items()})
    if not isinstance(space, spaces.Box):
        return space  # type: ignore[no-any-return]
    if space.dtype is not None and space.dtype.kind == "f":
        limits = np.finfo(space.dtype)
        low = np.where(space.low == limits.tiny, -np.inf, space.low)
        high = np.where(space.high == limits.max, np.inf, space.high)
        return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype.type)
    if is_action:
        low, high = space.low.astype(np.int64), space.high.astype(np.int64)
        return spaces.MultiDiscrete(high - low + 1, start=low)
    return space


def _observed(space: spaces.Space[Any], family: Family) -> spaces.Space[Any]:
    """Return the space of the observations that the family's `observe` returns."""
    if family.observe is None or not isinstance(space, spaces.Box):
        return space
    shape = family.observe(np.zeros((1, *space.shape), np.uint8)).shape[1:]
    return spaces.Box(0, 255, shape, np.uint8)


def _shaped(space: spaces.Space[Any], value: Any, lanes: int) -> Any:
    """Return a nested observation with leaves [L, *shape]; EnvPool gives those of scalars as [L] or [L, 1]."""
    if isinstance(space, spaces.Dict):
        return {name: _shaped(child, value[name], lanes) for name, child in space.items()}
    return value.reshape(lanes, *(space.shape or ()))
