"""What EnvPool's simulators need beyond their specification: options, image axes, statistics, options set elsewhere."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from seedbed.shared.errors import ConfigError

Array = npt.NDArray[Any]
Info = Mapping[str, Any]
WAD_HEADS = (b"IWAD", b"PWAD", b"PK\x03\x04")  # Doom's own formats and zipped PK3

MULTI_PLAYER = (
    "Cig-v1",
    "MultiDuel-v1",
)  # Doom crashes with its actor unless `game_args` makes it host a game

# EnvPool's options that users set elsewhere in seedbed: option → the setting; "" where seedbed sets it itself.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "num_envs": "actor.lanes",
        "batch_size": "actor.lanes",
        "num_threads": "actor.threads",
        "seed": "run.seed",
        "env_seed": "run.seed",
        "max_episode_steps": "env.max_episode_steps",
        "stack_num": "policy.stack",
        "frame_stack": "policy.stack",
        "max_num_players": "",
        "gym_reset_return_info": "",
        "base_path": "",
    }
)
# Entries of a step's info that many simulators give; a simulator's own are reported as episode statistics.
STATISTICS = ("success", "is_success", "solved", "crashed", "x_position")


def newest_frame(frames: Array) -> Array:
    """Drop the channel axis of grey frames, uint8 [L, 1, H, W] → [L, H, W]; colour frames [L, 3, H, W] stay as is."""
    return frames[:, 0] if frames.shape[1] == 1 else frames


def planes_first(image: Array) -> Array:
    """Return uint8 [L, H, W, C] as a view [L, C, H, W]."""
    return np.moveaxis(image, -1, 1)


def goal_difference(info: Info) -> Array:
    """Return the goals of the left team, which the policy plays, minus those of the right team, i32 [L]."""
    score: Array = info["score"]
    return score[:, 0] - score[:, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How seedbed configures and reads one of EnvPool's simulators."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of all its environments; env.kwargs come before them
    own_elsewhere: Mapping[str, str] = field(default_factory=dict)  # as ELSEWHERE, for this simulator alone
    image: str = ""  # axes of its uint8 observations of rank 3, after `observe`
    observe: Callable[[Array], Array] | None = None  # from EnvPool's observations to ours
    statistics: Mapping[str, Callable[[Info], Array]] = field(default_factory=dict)  # name → [L], from a step's info
    can_render: bool = True
    obeys_limit: bool = True  # max_episode_steps truncates its episodes; else only limits of its own do
    late_steps: int = 0  # steps that it plays beyond max_episode_steps

    @property
    def elsewhere(self) -> Mapping[str, str]:
        """All its options that users set elsewhere in seedbed: option → the setting, "" for none."""
        return {**ELSEWHERE, **self.own_elsewhere}


ATARI = Family(
    options={"stack_num": 1, "episodic_life": False, "reward_clip": False, "use_fire_reset": False},
    own_elsewhere={
        "task": "env.id",
        "frame_skip": "env.frame_skip",
        "noop_max": "env.noop_max",
        "full_action_space": "env.full_action_space",
        "repeat_action_probability": "env.repeat_action_probability",
        "img_height": "env.image_size",
        "img_width": "env.image_size",
        "gray_scale": "env.grayscale",
        "episodic_life": "env.life_loss",
        "zero_discount_on_life_loss": "env.life_loss",
        "reward_clip": "algorithm.reward_clip",
    },
    image="CHW",
    observe=newest_frame,
)
FOOTBALL = Family(
    own_elsewhere={"env_name": "env.id"},
    image="CHW",
    observe=planes_first,
    statistics={"score": goal_difference},
    can_render=False,
    late_steps=1,  # the engine counts from the step before the first one
)
DOOM = Family(
    options={"stack_num": 1, "use_combined_action": True},
    own_elsewhere={"use_combined_action": "", "vzd_path": ""},  # buttons one by one come without bounds
    image="CHW",
    observe=newest_frame,
    statistics={
        "kills": itemgetter("KILLCOUNT"),
        "frags": itemgetter("FRAGCOUNT"),
        "health": itemgetter("HEALTH"),
    },
)
PROCGEN = Family(
    options={"channel_first": True},
    own_elsewhere={"env_name": "env.id", "distribution_mode": "env.id", "channel_first": ""},
    image="CHW",
    statistics={"level_complete": itemgetter("prev_level_complete")},
    obeys_limit=False,
)
MUJOCO = Family(can_render=False)  # its renderer ends the process where OpenGL cannot be loaded

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "atari": ATARI,
        "gfootball": FOOTBALL,
        "vizdoom": DOOM,
        "procgen": PROCGEN,
        "mujoco": MUJOCO,
        "minigrid": Family(image="HWC"),
        "box2d": Family(image="HWC"),
        "highway": Family(obeys_limit=False),
        "jumanji": Family(obeys_limit=False),
        "toy_text": Family(obeys_limit=False),  # some of them do
    }
)


def family_of(import_path: str) -> tuple[str, Family]:
    """Return the name and the `Family` of an EnvPool import path: "mujoco" for "envpool.mujoco.gym"."""
    name = import_path.split(".")[1]
    return name, FAMILIES.get(name, Family())


def check_doom(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Doom scenario's options with absolute paths. Raises: ConfigError for any that would end the process."""
    if env_id.startswith("VizdoomCustom") and not options.get("cfg_path"):
        raise ConfigError(
            "env.kwargs.cfg_path: name the scenario's .cfg file (and its .wad as env.kwargs.wad_path), or choose a "
            "scenario of EnvPool's as env.id, for example Basic-v1"
        )
    if env_id in MULTI_PLAYER and not options.get("game_args"):
        raise ConfigError(f"env.kwargs.game_args: {env_id} is for several players and needs a host: '-host 1'")
    found = dict(options)
    for name in ("cfg_path", "wad_path", "iwad_path"):
        if not found.get(name):
            continue
        path = Path(found[name]).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"env.kwargs.{name}: {path} is no file; a relative path begins at the working directory")
        if name != "cfg_path":
            with path.open("rb") as file:
                head = file.read(4)
            if head not in WAD_HEADS:
                raise ConfigError(f"env.kwargs.{name}: {path} is no WAD or PK3 file: it begins with {head!r}")
        found[name] = str(path)
    return found
