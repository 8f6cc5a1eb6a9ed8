"""Makes Atari games from [env]'s settings, on ALE itself or on EnvPool.

Both preprocess alike and play full games: an episode does not end at a lost life, rewards are not clipped, FIRE is not
pressed automatically, and each step gives one frame (stacking belongs to the policy). Each step repeats the action and
takes the maximum of the last two frames, in grey by default, shrunk by area. `docs/environments.md` says what still
differs between the two.
"""

import functools
from typing import Any

import gymnasium

from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.runtime.config import ATARI_MAX_STEPS, EnvConfig


def make_sync(env: EnvConfig, lanes: int) -> VectorBackend:
    """Return a backend that steps L games one after the other in one thread.

    Raises: ConfigError if the id is no Atari game or `env.kwargs` is set, MissingExtraError without ale-py.
    """
    rom = rom_name(env.id)
    if env.kwargs:
        raise ConfigError(f"env.kwargs.{next(iter(env.kwargs))}: backend 'ale_sync' has no options beside [env]'s")
    from seedbed.actor_svc.backends.atari_sync import SyncAtari  # rom_name() has said it if ALE is missing

    make = functools.partial(SyncAtari, rom, env, max_episode_steps=env.max_episode_steps or ATARI_MAX_STEPS)
    return VectorBackend(make, lanes, track_lives=env.life_loss, image="CHW")


def pool_options(env: EnvConfig) -> dict[str, Any]:
    """Return [env]'s Atari settings under EnvPool's names, without the episode limit, which is passed separately.

    Raises: ConfigError for `noop_max` 0, on which EnvPool crashes.
    """
    if env.noop_max < 1:
        raise ConfigError("env.noop_max: EnvPool crashes on 0; set it to 1 or more, or env.backend to 'ale_sync'")
    return {
        "frame_skip": env.frame_skip,
        "noop_max": env.noop_max,
        "full_action_space": env.full_action_space,
        "repeat_action_probability": env.repeat_action_probability,
        "img_height": env.image_size,
        "img_width": env.image_size,
        "gray_scale": env.grayscale,
    }


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
