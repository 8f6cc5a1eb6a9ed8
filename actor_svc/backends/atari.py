"""Makes Atari games from [env]'s settings, on ALE's vector environment, ALE's single games or EnvPool.

All three preprocess alike and play full games: an episode does not end at a lost life, rewards are not clipped, FIRE is
not pressed automatically, and each step gives one frame (stacking belongs to the policy). Each step repeats the action
and takes the maximum of the last two frames, in grey by default, shrunk by area. `docs/environments.md` says what still
differs between the three.
"""

import functools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorObservationWrapper

from seedbed.actor_svc.backends.pool import usable_cores
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.runtime.config import EnvConfig, suggest

ALE_OPTIONS = ("use_fire_reset", "continuous", "continuous_action_threshold", "thread_affinity_offset")
MAX_EPISODE_STEPS = 27_000  # 108 000 frames at frame skip 4, as everywhere in the literature


class OneFrame(VectorObservationWrapper[Any, Any, Any]):
    """Removes the stack axis of size 1 from ALE's observations: [L, H, W], or [L, 3, H, W] in colour."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *, is_channel_last: bool) -> None:
        super().__init__(env)
        self._is_channel_last = is_channel_last
        shape = self.observations(np.zeros((1, *(env.single_observation_space.shape or ())), np.uint8)).shape[1:]
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Any) -> Any:
        """Return the newest frame of each lane, u8 [L, H, W], or [L, 3, H, W] in colour."""
        newest = observations[:, -1]
        return np.moveaxis(newest, -1, 1) if self._is_channel_last else newest


def make_ale(env: EnvConfig, lanes: int, threads: int) -> VectorBackend:
    """Return a backend of L lanes on ALE's vector environment; `threads` is 0 for one on each usable core."""
    make = functools.partial(_ale, env, threads or usable_cores(lanes))
    return VectorBackend(make, lanes, track_lives=env.life_loss, image="CHW")


def make_sync(env: EnvConfig, lanes: int) -> VectorBackend:
    """Return a backend that steps L games one after the other, through ALE's interface to single games.

    Raises: ConfigError if the id is no Atari game or `env.kwargs` is set, MissingExtraError without ale-py.
    """
    rom = rom_name(env.id)
    if env.kwargs:
        raise ConfigError(f"env.kwargs.{next(iter(env.kwargs))}: backend 'ale_sync' has no options beside [env]'s")
    from seedbed.actor_svc.backends.atari_sync import SyncAtari  # rom_name() has said it if ALE is missing

    make = functools.partial(SyncAtari, rom, env, max_episode_steps=env.max_episode_steps or MAX_EPISODE_STEPS)
    return VectorBackend(make, lanes, track_lives=env.life_loss, image="CHW")


def pool_options(env: EnvConfig) -> dict[str, Any]:
    """Return [env]'s Atari settings under EnvPool's names, without the episode limit, which is passed separately.

    Raises: ConfigError for `noop_max` 0, on which EnvPool crashes.
    """
    if env.noop_max < 1:
        raise ConfigError("env.noop_max: EnvPool crashes on 0; set it to 1 or more, or env.backend to 'ale'")
    return {
        "frame_skip": env.frame_skip,
        "noop_max": env.noop_max,
        "full_action_space": env.full_action_space,
        "repeat_action_probability": env.repeat_action_probability,
        "img_height": env.image_size,
        "img_width": env.image_size,
        "gray_scale": env.grayscale,
    }


def _ale(env: EnvConfig, threads: int, lanes: int) -> VectorEnv[Any, Any, Any]:
    """Make ALE's vector environment. Raises: ConfigError for an unknown option, MissingExtraError without ale-py."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise MissingExtraError("ale-py", "atari") from error
    steps = env.max_episode_steps or MAX_EPISODE_STEPS
    options: dict[str, Any] = {
        "num_threads": threads,
        "max_num_frames_per_episode": steps * env.frame_skip,
        "repeat_action_probability": env.repeat_action_probability,
        "full_action_space": env.full_action_space,
        "img_height": env.image_size,
        "img_width": env.image_size,
        "grayscale": env.grayscale,
        "stack_num": 1,
        "frameskip": env.frame_skip,
        "maxpool": True,
        "noop_max": env.noop_max + 1 if env.noop_max else 0,  # ALE draws below it
        "episodic_life": False,
        "reward_clipping": False,
        "use_fire_reset": False,
        **env.kwargs,
    }
    for key in env.kwargs:
        if key not in ALE_OPTIONS:
            raise ConfigError(f"env.kwargs.{key}: not an option for ALE beside [env]'s{suggest(key, ALE_OPTIONS)}")
    return OneFrame(AtariVectorEnv(rom_name(env.id), lanes, **options), is_channel_last=not env.grayscale)


def rom_name(env_id: str) -> str:
    """Return ALE's name of a game, "ms_pacman" for the id "ALE/MsPacman-v5".

    Raises: ConfigError if the id is no Atari game, MissingExtraError without ale-py.
    """
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError("ale-py", "atari") from error
    gymnasium.register_envs(ale_py)
    try:
        return str(gymnasium.spec(env_id).kwargs["game"])
    except (gymnasium.error.Error, KeyError) as error:
        raise ConfigError(f"env.id: {env_id!r} is no Atari game, for example ALE/Pong-v5: {error}") from error
