"""Which rows reach the policy, and what becomes of observations that leave their bounds."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.row_check import RowCheck
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.rows import MAX_REWARD, Flags
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.specs import make_spec

SPEC = make_spec(
    gymnasium.spaces.Dict(
        eye=gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
        free=gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32),
        place=gymnasium.spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32)),
    ),
    gymnasium.spaces.Discrete(2),
)


def rows(place, flags=(0, 0, 0)):
    """STEP's arrays of three lanes: eye, free, place, reward, flags."""
    arrays = [np.full((3, 2, 2), 255, np.uint8), np.full((3, 1), 1e30, np.float32), np.array(place, np.float32)]
    return [*arrays, np.zeros(3, np.float32), np.array(flags, np.uint8)]


INSIDE, OUTSIDE = [[-1, 0], [1, 5], [0, 1e9]], [[-1, 0], [2, -5], [0, -1]]


@pytest.mark.parametrize("policy", ["count", "clip", "reject"])
def test_values_within_bounds_pass_untouched(policy):
    """Bounds themselves are allowed, and infinite ones bound nothing."""
    inputs = rows(INSIDE)
    assert RowCheck(SPEC, policy, 3)(inputs) == 0
    assert inputs[2].tolist() == np.array(INSIDE, np.float32).tolist()


def test_each_lane_that_leaves_its_bounds_counts_once():
    """However many of its elements do."""
    inputs = rows(OUTSIDE)
    assert RowCheck(SPEC, "count", 3)(inputs) == 2
    assert inputs[2].tolist() == OUTSIDE


def test_clipped_values_lie_on_the_nearest_bound():
    """The policy sees these, and the count is the same."""
    inputs = rows(OUTSIDE)
    assert RowCheck(SPEC, "clip", 3)(inputs) == 2
    assert inputs[2].tolist() == [[-1, 0], [1, 0], [0, 0]]


def test_a_lane_without_an_agent_observes_nothing():
    """Its row holds zeros, wherever the bounds are."""
    inputs = rows(OUTSIDE, (0, Flags.ABSENT | Flags.FIRST, Flags.ABSENT | Flags.FIRST))
    assert RowCheck(SPEC, "reject", 3)(inputs) == 0


def test_a_refusal_names_leaf_lane_element_value_and_bounds():
    """The first that is found."""
    with pytest.raises(RemoteWireError, match=r"'place', lane 1, element 0: 2.0 is outside \[-1.0, 1.0\]") as caught:
        RowCheck(SPEC, "reject", 3)(rows(OUTSIDE))
    assert caught.value.code == "bounds"


@pytest.mark.parametrize(("index", "said"), [(1, "'free'"), (2, "'place'"), (3, "reward")])
def test_no_policy_lets_nan_pass(index, said):
    """It would break the forward pass or the loss."""
    inputs = rows(INSIDE)
    inputs[index][0] = np.nan
    with pytest.raises(RemoteWireError, match=said):
        RowCheck(SPEC, "clip", 3)(inputs)


@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-1e300, 1e300)])
def test_what_is_infinite_as_float32_is_infinite(bounds):
    """A policy computes in float32, whatever travels."""
    spec = replace(SPEC, observation=space_from_gymnasium(gymnasium.spaces.Box(*bounds, (1,), np.float64)))
    check = RowCheck(spec, "count", 1)
    inputs = [np.array([[3e38]]), np.zeros(1, np.float32), np.zeros(1, np.uint8)]
    assert check(inputs) == 0
    inputs[0][0, 0] = 1e300
    with pytest.raises(RemoteWireError) as caught:
        check(inputs)
    assert caught.value.code == "value"


@pytest.mark.parametrize("reward", [3e38, -3e38, np.inf])
def test_a_reward_whose_square_is_infinite_is_refused(reward):
    """It would break the loss; a large one that does not may come."""
    inputs = rows(INSIDE)
    inputs[3][:] = MAX_REWARD
    assert RowCheck(SPEC, "count", 3)(inputs) == 0
    inputs[3][1] = reward
    with pytest.raises(RemoteWireError) as caught:
        RowCheck(SPEC, "count", 3)(inputs)
    assert caught.value.code == "reward"
