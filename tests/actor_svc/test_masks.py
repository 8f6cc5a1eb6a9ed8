"""Action masks in every form that Gymnasium's spaces take, and flat, from single and vector environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from seedbed.actor_svc.backends.lanes import LaneBackend
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.actor_svc.group import EnvGroup
from tests.support import toy_envs


class GivenMaskEnv(toy_envs.CountingEnv):
    """Gives the same action mask in every info."""

    def __init__(self, action_space, mask):
        super().__init__()
        self.action_space, self.mask = action_space, mask

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"action_mask": self.mask}

    def step(self, action):
        assert self.action_space.contains(action)
        return *super().step(0)[:4], {"action_mask": self.mask}


def bits(*values):
    return np.array(values, np.int8)


MULTI = spaces.MultiDiscrete([2, 3])
RANK_2 = spaces.MultiDiscrete([[2, 1], [1, 3]])
MIXED = {
    "a": spaces.Discrete(3, start=3),
    "b": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1, 1, (2,)),
    "buttons": spaces.MultiBinary(2),
}
FORMS = {
    "flat array": (MULTI, bits(1, 0, 0, 1, 1), "10011"),
    "flat list": (MULTI, [1, 0, 0, 1, 1], "10011"),
    "tuple": (MULTI, (bits(1, 0), bits(0, 1, 1)), "10011"),
    "ragged list": (MULTI, [[1, 0], [0, 1, 1]], "10011"),
    "none": (MULTI, None, "11111"),
    "rank 2": (RANK_2, ((bits(1, 0), bits(1)), (bits(1), bits(0, 1, 0))), "1011010"),
    "rank 2, flat": (RANK_2, bits(1, 0, 1, 1, 0, 1, 0), "1011010"),
    "dict": (
        spaces.Dict(MIXED),
        {"a": bits(0, 0, 1), "b": (bits(0, 1), bits(1, 0, 0)), "box": None, "buttons": bits(1, 0)},
        "00101100",
    ),
    "dict, flat leaf": (spaces.Dict(MIXED), {"a": bits(0, 0, 1), "b": [0, 1, 1, 0, 0]}, "00101100"),
    "dict, flat": (spaces.Dict(MIXED), bits(0, 0, 1, 0, 1, 1, 0, 0), "00101100"),
    "dict with none": (spaces.Dict(MIXED), {"a": None, "b": (bits(0, 1), bits(1, 0, 0))}, "11101100"),
    "tuple space": (
        spaces.Tuple((spaces.MultiBinary(2), RANK_2, spaces.Discrete(2))),
        (bits(2, 2), ((bits(1, 0), bits(1)), (bits(1), bits(0, 1, 0))), None),
        "101101011",
    ),
}


def masks_of(backend, lanes=2):
    """The group's rows after a reset and after a step."""
    group = EnvGroup(backend, lanes, env_id="masked")
    group.reset(1)
    rows = ["".join(map(str, row)) for row in group.views.mask]
    group.step(group.random_actions(np.random.default_rng(1)))
    rows += ["".join(map(str, row)) for row in group.views.mask]
    counters = group.counters()
    assert (counters.rebuilds, counters.last_failure) == (0, "")
    group.close()
    return rows


@pytest.mark.parametrize(("action_space", "mask", "columns"), FORMS.values(), ids=FORMS)
def test_every_form_of_a_mask_gives_its_columns(action_space, mask, columns):
    """The same from single environments and from Gymnasium's vector environments of them."""

    def make():
        return GivenMaskEnv(action_space, mask)

    assert masks_of(LaneBackend(make, 2)) == [columns] * 4
    assert masks_of(VectorBackend(lambda lanes: SyncVectorEnv([make] * lanes), 2)) == [columns] * 4


def test_masks_of_environments_in_processes():
    """Their infos are gathered as those of environments in a loop."""
    action_space, mask, columns = FORMS["dict"]

    def make_all(lanes):
        return AsyncVectorEnv([lambda: GivenMaskEnv(action_space, mask)] * lanes)

    assert masks_of(VectorBackend(make_all, 2)) == [columns] * 4


@pytest.mark.parametrize(
    ("action_space", "mask", "columns"),
    [
        (MULTI, ([[1, 0], [1, 0]], [[0, 1, 1], [1, 1, 1]]), ["10011", "10111"]),
        (RANK_2, (([[1, 0], [1, 0]], [[0], [1]]), ([[1], [1]], [[1, 0, 1], [1, 1, 1]])), ["1001101", "1011111"]),
        (
            spaces.Dict(MIXED),
            {"a": None, "b": ([[1, 0], [1, 0]], [[0, 1, 1], [1, 1, 1]])},
            ["11110011", "11110111"],
        ),
    ],
)
def test_a_vector_environment_may_give_an_array_for_each_component(action_space, mask, columns):
    """With a leading axis of lanes."""

    class Vector(toy_envs.CountingVectorEnv):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.single_action_space = action_space
            self.action_space = gymnasium.vector.utils.batch_space(action_space, num_envs)

        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], {"action_mask": mask}

        def step(self, actions):
            return *super().step(np.zeros(self.num_envs, np.int64))[:4], {"action_mask": mask}

    assert masks_of(VectorBackend(Vector, 2)) == columns * 2


@pytest.mark.parametrize(
    ("action_space", "mask", "told"),
    [
        (MULTI, bits(1, 0, 0), "3 entries, expected 5"),
        (MULTI, [[1], [1, 0, 1, 1]], "1 entries for a choice of 2"),
        (spaces.Dict(MIXED), {"b": None}, "lacks 'a'"),
        (spaces.Tuple((MULTI, MULTI)), (None,), "1 parts, the action space 2"),
    ],
)
def test_a_mask_of_another_action_space_is_named(action_space, mask, told):
    """Its lane fails, and the reason says what the mask has and what it should have."""
    group = EnvGroup(LaneBackend(lambda: GivenMaskEnv(action_space, mask), 1), 1, env_id="masked")
    group.reset(1)
    assert group.views.flags.tolist() == [0b10100]  # first, and absent
    assert told in group.counters().last_failure
    group.close()


def test_a_vector_environment_whose_lane_gives_no_mask_fails():
    """What Gymnasium fills in for it is no mask."""

    class Forgetful(GivenMaskEnv):
        def step(self, action):
            observation, reward, terminated, truncated, info = super().step(action)
            return observation, reward, terminated, truncated, info if action == 0 else {}

    group = EnvGroup(
        VectorBackend(lambda lanes: SyncVectorEnv([lambda: Forgetful(spaces.Discrete(2), bits(1, 1))] * lanes), 2),
        2,
        env_id="masked",
    )
    group.reset(1)
    group.step([np.array([0, 1])])
    assert group.counters().rebuilds == 2
    assert "now none" in group.counters().last_failure
    group.close()
