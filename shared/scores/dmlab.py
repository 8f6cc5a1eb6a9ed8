"""Random and human scores of the levels of DMLab-30, and which environments play one of them.

Source: Espeholt et al. 2018 (IMPALA), arXiv 1802.01561, and `dmlab30.py` of its code (google-deepmind/scalable_agent).
Two levels have a variant for training and one that is held out. The scores are of the latter and hold for both, as in
that paper and in SEED RL.
"""

from collections.abc import Mapping
from types import MappingProxyType

from seedbed.shared.runtime.config import EnvConfig

SOURCE = "Espeholt et al. 2018, arXiv 1802.01561"
ENV_ID = "seedbed.services.dmlab.env:make"
DMLAB_30: Mapping[str, tuple[float, float]] = MappingProxyType(  # level → random, human
    {
        "rooms_collect_good_objects_test": (0.073, 10.0),
        "rooms_exploit_deferred_effects_test": (8.501, 85.65),
        "rooms_select_nonmatching_object": (0.312, 65.9),
        "rooms_watermaze": (4.065, 54.0),
        "rooms_keys_doors_puzzle": (4.135, 53.8),
        "language_select_described_object": (-0.07, 389.5),
        "language_select_located_object": (1.929, 280.7),
        "language_execute_random_task": (-5.913, 254.05),
        "language_answer_quantitative_question": (-0.33, 184.5),
        "lasertag_one_opponent_small": (-0.224, 12.65),
        "lasertag_three_opponents_small": (-0.214, 18.55),
        "lasertag_one_opponent_large": (-0.083, 18.6),
        "lasertag_three_opponents_large": (-0.102, 31.5),
        "natlab_fixed_large_map": (2.173, 36.9),
        "natlab_varying_map_regrowth": (2.989, 24.45),
        "natlab_varying_map_randomized": (7.346, 42.35),
        "skymaze_irreversible_path_hard": (0.1, 100.0),
        "skymaze_irreversible_path_varied": (14.4, 100.0),
        "psychlab_arbitrary_visuomotor_mapping": (0.163, 58.75),
        "psychlab_continuous_recognition": (0.224, 58.3),
        "psychlab_sequential_comparison": (0.129, 39.5),
        "psychlab_visual_search": (0.085, 78.5),
        "explore_object_locations_small": (3.575, 74.45),
        "explore_object_locations_large": (4.673, 65.65),
        "explore_obstructed_goals_small": (6.76, 206.0),
        "explore_obstructed_goals_large": (2.61, 119.5),
        "explore_goal_locations_small": (7.66, 267.5),
        "explore_goal_locations_large": (3.14, 194.5),
        "explore_object_rewards_few": (2.073, 77.7),
        "explore_object_rewards_many": (2.438, 106.7),
    }
)
_FOLDER = "contributed/dmlab30/"


def dmlab_level(env: EnvConfig) -> str:
    """Return the level of `DMLAB_30` whose whole episodes an environment plays, "" if none or several."""
    levels = env.kwargs.get("level")
    name = levels[0] if isinstance(levels, list) and len(levels) == 1 else levels
    if env.id != ENV_ID or not isinstance(name, str) or not _is_full_episode(env):
        return ""
    level = name.removeprefix(_FOLDER)
    held_out = f"{level.removesuffix('_train')}_test"
    return next((known for known in (level, held_out) if known in DMLAB_30), "")


def _is_full_episode(env: EnvConfig) -> bool:
    """Whether an episode has the length that the level gives it."""
    config = env.kwargs.get("config")
    return env.max_episode_steps is None and not (isinstance(config, dict) and "episodeLengthSeconds" in config)
