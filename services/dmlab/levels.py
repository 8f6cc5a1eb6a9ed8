"""DMLab-30's levels, and which lane plays which.

Source: Beattie et al. 2016, arXiv 1612.03801, and the DMLab-30 page of DeepMind Lab; the order is that page's.
"""

from collections import Counter
from collections.abc import Sequence

_FOLDER = "contributed/dmlab30/"
_BY_FAMILY = {
    "rooms": (
        "collect_good_objects_train", "exploit_deferred_effects_train", "select_nonmatching_object", "watermaze",
        "keys_doors_puzzle",
    ),
    "language": (
        "select_described_object", "select_located_object", "execute_random_task", "answer_quantitative_question",
    ),
    "lasertag": ("one_opponent_small", "three_opponents_small", "one_opponent_large", "three_opponents_large"),
    "natlab": ("fixed_large_map", "varying_map_regrowth", "varying_map_randomized"),
    "skymaze": ("irreversible_path_hard", "irreversible_path_varied"),
    "psychlab": ("arbitrary_visuomotor_mapping", "continuous_recognition", "sequential_comparison", "visual_search"),
    "explore": (
        "object_locations_small", "object_locations_large", "obstructed_goals_small", "obstructed_goals_large",
        "goal_locations_small", "goal_locations_large", "object_rewards_few", "object_rewards_many",
    ),
}  # fmt: skip
DMLAB_30 = tuple(f"{family}_{name}" for family, names in _BY_FAMILY.items() for name in names)
HELD_OUT = tuple(name.replace("_train", "_test") for name in DMLAB_30 if name.endswith("_train"))


def level_path(name: str) -> str:
    """Return the path by which DeepMind Lab knows a level: DMLab-30's lie in a folder, other names are unchanged."""
    return f"{_FOLDER}{name}" if name in DMLAB_30 or name in HELD_OUT else name


class LevelPool:
    """Gives each lane the level that the fewest lanes play. One thread owns it.

    A lane that is rebuilt gives its level back first, and so gets the same one again.
    """

    def __init__(self, levels: Sequence[str]) -> None:
        self.levels = tuple(levels)
        self._num_lanes: Counter[int] = Counter()

    def take(self) -> int:
        """Return the index of the level for one more lane to play."""
        index = min(range(len(self.levels)), key=lambda index: self._num_lanes[index])
        self._num_lanes[index] += 1
        return index

    def give_back(self, index: int) -> None:
        """Note that one lane fewer plays this level."""
        self._num_lanes[index] -= 1
