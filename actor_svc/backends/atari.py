"""Atari games by ALE's own vector environment or by EnvPool, with the same preprocessing.

Both play full games: no early end at a lost life, no clipped rewards, no automatic FIRE, one frame for each step
(stacking belongs to the policy). Each step repeats the action and takes the maximum of the last two frames, in grey,
shrunk by area. `docs/environments.md` says what still differs.
"""

import functools
import os
import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper

from actor_svc.backends.vector import VectorBackend
from shared.errors import ConfigError, MissingExtraError
from shared.runtime.config import EnvConfig

MAX_EPISODE_STEPS = 27_000  # 108 000 frames at frame skip 4, as everywhere in the literature


class OneFrame(VectorObservationWrapper[Any, Any, Any]):
    """Takes the stack axis, which has one entry, off an Atari observation: [H, W], or [3, H, W] in colour."""

    def __init__(self, env: VectorEnv[Any, Any, Any], *, is_channel_last: bool) -> None:
        super().__init__(env)
        self._is_channel_last = is_channel_last
        shape = self.observations(np.zeros((1, *(env.single_observation_space.shape or ())), np.uint8)).shape[1:]
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Any) -> Any:
        """The newest frame of each lane."""
        if self._is_channel_last:
            return np.moveaxis(observations[:, -1], -1, 1)
        return observations[:, -1] if observations.shape[1] == 1 else observations[:, -3:]


def make_ale(env: EnvConfig, lanes: int, threads: int) -> VectorBackend:
    """L lanes on ALE's vector environment."""
    return VectorBackend(
        functools.partial(_ale, env, threads or usable_cores(lanes)),
        lanes,
        track_lives=env.life_loss,
        image="CHW",
    )


def make_envpool(env: EnvConfig, lanes: int, threads: int, *, render: bool = False) -> VectorBackend:
    """L lanes on EnvPool: Atari games as `make_ale`, its other environments as they are."""
    return VectorBackend(
        functools.partial(_envpool, env, threads or usable_cores(lanes), render),
        lanes,
        seeds_at_make=True,
        track_lives=env.is_atari and env.life_loss,
        image="CHW" if env.is_atari else str(env.kwargs.get("image", "")),
        autoreset_mode=AutoresetMode.NEXT_STEP,
    )


def usable_cores(lanes: int) -> int:
    """Threads worth having: no more than lanes, no more than this process may use cores."""
    return max(1, min(lanes, len(os.sched_getaffinity(0))))


def _ale(env: EnvConfig, threads: int, lanes: int, seed: int) -> VectorEnv[Any, Any, Any]:
    """ALE's vector environment; it is seeded by its reset."""
    del seed
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
    return OneFrame(AtariVectorEnv(rom_name(env.id), lanes, **options), is_channel_last=not env.grayscale)


def rom_name(env_id: str) -> str:
    """ALE's name of the game behind "ALE/MsPacman-v5" ("ms_pacman")."""
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError("ale-py", "atari") from error
    gymnasium.register_envs(ale_py)
    try:
        return str(gymnasium.spec(env_id).kwargs["game"])
    except (gymnasium.error.Error, KeyError) as error:
        raise ConfigError(f"env.id: {env_id!r} is no Atari game, for example ALE/Pong-v5: {error}") from error


def _envpool(env: EnvConfig, threads: int, render: bool, lanes: int, seed: int) -> VectorEnv[Any, Any, Any]:
    """An EnvPool that waits for all lanes; it is seeded when it is made."""
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError("envpool", "atari") from error
    options: dict[str, Any] = {"num_threads": threads, "seed": seed & 0x7FFFFFFF}
    if env.max_episode_steps or env.is_atari:
        options["max_episode_steps"] = env.max_episode_steps or MAX_EPISODE_STEPS
    if env.is_atari:
        if env.noop_max < 1:
            raise ConfigError("env.noop_max: EnvPool crashes on 0; set it to 1 or more, or env.backend to 'ale'")
        options |= {
            "frame_skip": env.frame_skip,
            "noop_max": env.noop_max,
            "full_action_space": env.full_action_space,
            "repeat_action_probability": env.repeat_action_probability,
            "img_height": env.image_size,
            "img_width": env.image_size,
            "gray_scale": env.grayscale,
            "stack_num": 1,
            "episodic_life": False,
            "reward_clip": False,
            "use_fire_reset": False,
        }
    if render:
        options["render_mode"] = "rgb_array"
    options |= {name: value for name, value in env.kwargs.items() if name != "image"}
    name = env.id.removeprefix("ALE/")
    try:
        with warnings.catch_warnings():  # of bounds that EnvPool states in float64, when its spaces are first read
            warnings.filterwarnings("ignore", ".*precision lowered.*")
            made = envpool.make(name, env_type="gymnasium", num_envs=lanes, **options)
            assert made.observation_space is not None
            assert made.single_observation_space is not None
    except (KeyError, ValueError, AssertionError, TypeError) as error:
        raise ConfigError(f"EnvPool cannot make env.id {name!r}: {error}") from error
    return OneFrame(made, is_channel_last=False) if env.is_atari else made
