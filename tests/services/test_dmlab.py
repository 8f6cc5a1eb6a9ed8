"""DeepMind Lab's adapter, against a module with the simulator's documented API: the simulator itself is not tested."""

import sys

import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.services.dmlab.env import ACTIONS, instruction_tokens
from seedbed.services.dmlab.level_cache import LevelCache
from seedbed.services.dmlab.levels import DMLAB_30
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import unflatten
from seedbed.shared.runtime.config import EnvConfig
from tests.support import fake_deepmind_lab
from tests.support.fake_deepmind_lab import Lab

FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)
FORWARD, FIRE = list(ACTIONS).index("forward"), list(ACTIONS).index("fire")


@pytest.fixture(autouse=True)
def lab(monkeypatch):
    """The module is found by its name; every simulator is closed in the end."""
    monkeypatch.setitem(sys.modules, "deepmind_lab", fake_deepmind_lab)
    monkeypatch.setattr(Lab, "made", [])
    monkeypatch.setattr(Lab, "compiled", [])
    yield
    assert Lab.made == []


@pytest.fixture
def play():
    """Makes groups, reset; they are closed at the end."""
    groups = []

    def make(lanes=1, level="natlab_fixed_large_map", max_episode_steps=None, **kwargs):
        env = EnvConfig(
            id="seedbed.services.dmlab.env:make", kwargs={"level": level, **kwargs}, max_episode_steps=max_episode_steps
        )
        groups.append(make_group(env, lanes))
        groups[-1].reset(1)
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def test_observation_is_image_and_instruction(play):
    """72 × 96 pixels in colour, and sixteen words as numbers."""
    group = play()
    leaves = {leaf.path: leaf for leaf in group.spec.observation.leaves()}
    assert (leaves["image"].shape, leaves["image"].dtype, leaves["image"].image) == ((72, 96, 3), "uint8", "HWC")
    assert leaves["instruction"].nvec == (256,) * 16
    assert group.spec.action.leaf.nvec == (9,)
    seen = unflatten(group.spec.observation, group.views.observation)["instruction"][0]
    seed = Lab.made[0].seed
    np.testing.assert_array_equal(seen, instruction_tokens(f"get THE red hat {seed}", 16, 256))
    assert (seen != 0).tolist() == [True] * 5 + [False] * 11
    (leaf,) = play(instruction_words=0, width=84, height=84).spec.observation.leaves()
    assert (leaf.shape, leaf.image) == ((84, 84, 3), "HWC")


def test_tokens_of_words_never_change():
    """Policies are trained on these numbers."""
    assert instruction_tokens("Get the hat", 4, 256).tolist() == instruction_tokens("get  the hat", 4, 256).tolist()
    assert instruction_tokens("hat hat", 3, 1000).tolist() == [HAT, HAT, 0]
    assert instruction_tokens("a b c", 2, 256).shape == (2,)


HAT = 1 + 0x920BAC49 % 999  # CRC-32 of "hat"


def test_rows_of_an_episode(play):
    """Twelve frames are three steps; DeepMind Lab shows nothing after them, so the last row repeats what was seen."""
    group = play()
    rewards, flags = [], []
    for action in (FIRE, FORWARD, FIRE, FORWARD):
        group.advance([np.array([action])])
        rewards += group.views.reward.tolist()
        flags += group.views.flags.tolist()
        if flags[-1] == TERMINATED:
            assert group.views.observation[0].max() == 4
            assert group.ended_statistics.tolist() == [[8, 3, 0]]
    assert rewards == [4, 0, 4, 0]
    assert flags == [0, 0, TERMINATED, FIRST]
    assert group.views.observation[0].max() == 12
    raw = [0, 0, 0, 1, 0, 0, 0]
    assert Lab.made[0].actions[1] == (raw, 4)


def test_action_repeat_and_limit(play):
    """Frames for each step, and a truncation where one is asked for."""
    group = play(action_repeat=2, max_episode_steps=2)
    group.advance([np.array([FIRE])])
    group.advance([np.array([FIRE])])
    assert group.views.flags.tolist() == [TRUNCATED]
    assert group.ended_statistics.tolist() == [[4, 2, 0]]


def test_dmlab30_is_spread_over_lanes(play):
    """Lanes take levels in turn, and the level is told by its place in the list."""
    group = play(31, level="dmlab30")
    assert [made.level for made in Lab.made] == [f"contributed/dmlab30/{name}" for name in (*DMLAB_30, DMLAB_30[0])]
    for _ in range(3):
        group.advance([np.zeros(31, np.int64)])
    assert group.ended_statistics[:, 2].tolist() == [*range(30), 0]


def test_lane_that_is_made_anew_keeps_its_level(play, monkeypatch):
    """Also if the first attempt fails."""
    group = play(3, level=["lt_chasm", "rooms_watermaze", "seekavoid_arena_01"])
    broken = Lab.made[1]
    monkeypatch.setattr(broken, "step", lambda action, num_steps: 1 / 0)
    monkeypatch.setattr(Lab, "fails_on", "watermaze")
    group.advance([np.zeros(3, np.int64)])
    assert group.views.flags.tolist() == [0, int(Flags.FIRST | Flags.ABSENT), 0]
    monkeypatch.setattr(Lab, "fails_on", "")
    for _ in range(4):
        group.advance([np.zeros(3, np.int64)])
    assert sorted(made.level for made in Lab.made) == [
        "contributed/dmlab30/rooms_watermaze",
        "lt_chasm",
        "seekavoid_arena_01",
    ]


def test_same_seed_same_episodes(play):
    """Each lane's simulator gets the same seeds, reset after reset."""

    def seeds(group, seed):
        found = []
        group.reset(seed)
        for _ in range(5):
            found.append([made.seed for made in Lab.made[-2:]])
            group.advance([np.zeros(2, np.int64)])
        return found

    first = seeds(play(2), 7)
    group = play(2)
    assert seeds(group, 3) != first
    assert seeds(group, 7) == first
    assert len({seed for row in first for seed in row}) == 4


def test_maps_are_compiled_once(play, tmp_path):
    """Lanes and later actors find them in the directory; nothing half-written is ever there."""
    cache, maps = tmp_path / "cache", tmp_path / "maps"
    maps.mkdir()
    for _ in range(2):
        group = play(4, level="lt_chasm", level_cache=str(cache), config={"maps": str(maps)})
        for seed in range(4):
            group.reset(seed)
    assert sorted(Lab.compiled) == ["lt_chasm 0", "lt_chasm 1"]
    assert len(list(cache.rglob("*.pk3"))) == len([path for path in cache.rglob("*") if path.is_file()]) == 2


def test_cache_that_cannot_be_filled_costs_no_episode(tmp_path):
    """A map that is gone before it was copied leaves nothing behind."""
    cache = LevelCache(tmp_path)
    cache.write("key", str(tmp_path / "missing.pk3"))
    assert not cache.fetch("key", str(tmp_path / "target.pk3"))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_settings_reach_the_simulator(play):
    """As text, with the image's size; its own files are found where it is told."""
    play(config={"datasetPath": "data", "episodeLengthSeconds": 30}, runfiles="lab.runfiles")
    assert Lab.made[0].config == {
        "width": "96",
        "height": "72",
        "logLevel": "WARN",
        "datasetPath": "data",
        "episodeLengthSeconds": "30",
    }
    assert Lab.runfiles == "lab.runfiles"


@pytest.mark.parametrize(
    ("kwargs", "error", "said"),
    [
        ({"level": []}, ConfigError, "no level named"),
        ({"level_cache": "/proc/nothing"}, ConfigError, r"level_cache: /proc/nothing"),
        ({"instruction_buckets": 1}, ConfigError, "2 to 65536"),
        ({"action_repeat": 0}, ConfigError, "at least 1"),
        ({"gravy": 1}, ConfigError, "gravy"),
        ({"level": "unloadable"}, EnvError, "cannot load unloadable"),
    ],
)
def test_wrong_settings_are_refused(play, monkeypatch, kwargs, error, said):
    """The error names the setting."""
    monkeypatch.setattr(Lab, "fails_on", "unloadable")
    with pytest.raises(error, match=said):
        play(**kwargs)


def test_missing_simulator_is_told(play, monkeypatch):
    """Nothing but the adapter's own use needs it."""
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    with pytest.raises(ConfigError, match=r"deepmind_lab"):
        play()
