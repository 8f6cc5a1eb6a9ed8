"""MiniGrid's observations as they travel, and its episodes."""

import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.protocol.spaces import unflatten
from seedbed.shared.runtime.config import EnvConfig

pytest.importorskip("minigrid", reason="minigrid is not installed")

EMPTY = "MiniGrid-Empty-5x5-v0"
FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)
RIGHT, FORWARD = 1, 2


def grid(lanes=2, env=EMPTY, **kwargs):
    """A group, reset."""
    group = make_group(EnvConfig(id="seedbed.services.minigrid.env:make", kwargs={"env": env, **kwargs}), lanes)
    group.reset(1)
    return group


def seen(group):
    """The newest observations, nested, with a lane axis."""
    return unflatten(group.spec.observation, group.views.observation)


def test_image_direction_and_mission_travel():
    """As MiniGrid has them: an HWC image, a direction that turns, and the instruction as text."""
    group = grid()
    leaves = {leaf.path: leaf for leaf in group.spec.observation.leaves()}
    assert (leaves["image"].image, leaves["image"].shape) == ("HWC", (7, 7, 3))
    assert leaves["direction"].nvec == (4,)
    assert seen(group)["mission"] == ["get to the green goal square"] * 2
    assert seen(group)["direction"].tolist() == [0, 0]
    group.advance([np.array([RIGHT, FORWARD])])
    assert seen(group)["direction"].tolist() == [1, 0]


def test_goal_terminates_with_the_final_observation():
    """Two steps along the wall, a turn and two down: the reward comes with the row that stands on the goal."""
    group = grid(1, view="full")
    for action in (FORWARD, FORWARD, RIGHT, FORWARD):
        group.advance([np.array([action])])
        assert group.views.flags.tolist() == [0]
    group.advance([np.array([FORWARD])])
    assert group.views.flags.tolist() == [TERMINATED]
    assert group.views.reward[0] > 0.9
    agent = 10
    assert seen(group)["image"][0, 3, 3, 0] == agent
    group.advance([np.array([FORWARD])])
    assert group.views.flags.tolist() == [FIRST]
    assert seen(group)["image"][0, 1, 1, 0] == agent


def test_running_out_of_steps_truncates():
    """MiniGrid's own limit is no failure of the agent."""
    group = grid(1, options={"max_steps": 3})
    for _ in range(3):
        group.advance([np.array([RIGHT])])
    assert group.views.flags.tolist() == [TRUNCATED]


@pytest.mark.parametrize("view", ["agent", "full"])
def test_categories_are_the_numbers_of_the_image(view):
    """They fit their space in every state, also of an agent that looks up, and equal MiniGrid's own."""
    groups = [grid(1, encoding=encoding, view=view) for encoding in ("image", "categories")]
    assert groups[1].spec.observation.leaves()[1].kind == "multi_discrete"
    for _ in range(4):
        for group in groups:
            group.advance([np.array([RIGHT])])
        np.testing.assert_array_equal(seen(groups[0])["image"], seen(groups[1])["image"])
    assert groups[1].counters().rebuilds == 0


def test_leaves_can_be_left_out_and_missions_cut():
    """Pixels alone are one image; a long mission is cut to its field."""
    group = grid(1, encoding="rgb", tile_size=4, direction=False, mission_length=0)
    (leaf,) = group.spec.observation.leaves()
    assert (leaf.path, leaf.shape, leaf.image) == ("image", (28, 28, 3), "HWC")
    assert seen(grid(1, mission_length=6))["mission"] == ["get to"]


def test_same_seed_same_episodes():
    """A group's seed decides missions and grids; lanes differ."""

    def play(group, seed):
        generator = np.random.default_rng(5)
        sent = [group.reset(seed).payload]
        return sent + [group.step(group.random_actions(generator)).payload for _ in range(10)]

    once, again = (grid(4, env="BabyAI-GoToObj-v0") for _ in range(2))
    first = play(once, 7)
    play(again, 3)
    assert play(again, 7) == first
    assert play(again, 8) != first
    assert len(set(seen(again)["mission"])) > 1


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"env": "MiniGrid-Nowhere-v0"}, "Nowhere"),
        ({"env": EMPTY, "view": "above"}, "known: agent, full"),
        ({"env": EMPTY, "encoding": "one_hot"}, "known: image, categories, rgb"),
        ({"env": EMPTY, "options": {"gravy": 1}}, "gravy"),
        ({"env": EMPTY, "gravy": 1}, "gravy"),
    ],
)
def test_wrong_settings_are_refused(kwargs, said):
    """The error names the setting."""
    with pytest.raises(ConfigError, match=said):
        make_group(EnvConfig(id="seedbed.services.minigrid.env:make", kwargs=kwargs), 1)
