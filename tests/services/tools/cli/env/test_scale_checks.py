"""What a network would hardly see is warned of, and nothing else."""

import numpy as np
import pytest
from gymnasium import spaces

from seedbed.services.tools.cli.env.scale_checks import MIN_TICKS, ScaleWatch
from seedbed.services.tools.cli.env.verdicts import RuleVerdict
from seedbed.shared.protocol.spaces import space_from_gymnasium

GENERATOR = np.random.default_rng(1)


def watched(space, low, high, *, image="", ticks=MIN_TICKS):
    """Verdicts and words about uniformly random values within other bounds than the space's."""
    watch = ScaleWatch(space_from_gymnasium(space, image=image))
    for _ in range(ticks):
        if np.issubdtype(space.dtype, np.integer):
            values = GENERATOR.integers(low, high, (3, *space.shape), endpoint=True)
        else:
            values = GENERATOR.uniform(low, high, (3, *space.shape))
        watch.observe([values.astype(space.dtype)], np.ones(3, np.bool_))
    return {result.name: result for result in watch.results()}


@pytest.mark.parametrize(
    ("space", "low", "high", "verdict"),
    [
        (spaces.Box(0, 255, (4,), np.uint8), 0, 1, RuleVerdict.WARN),
        (spaces.Box(0, 1, (4,), np.uint8), 0, 1, RuleVerdict.PASS),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), 0, 10, RuleVerdict.WARN),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), 0, 200, RuleVerdict.PASS),
        (spaces.Box(-1000, 1000, (4,), np.int32), -3, 3, RuleVerdict.WARN),
        (spaces.Box(-(2**31), 2**31 - 1, (4,), np.int32), 0, 9, RuleVerdict.PASS),
        (spaces.Box(-(2**31), 2**31 - 1, (4,), np.int32), 0, 9000, RuleVerdict.WARN),
        (spaces.Box(-np.inf, np.inf, (4,), np.float32), -3, 3, RuleVerdict.PASS),
        (spaces.Box(0, 255, (4,), np.float32), 0, 255, RuleVerdict.WARN),
        (spaces.Box(-1, 1, (4,), np.float32), 0, 0.001, RuleVerdict.WARN),
    ],
)
def test_values_far_from_one_are_warned_of(space, low, high, verdict):
    """As the network sees them: integers and images by their bounds, others as they are."""
    found = watched(space, low, high, image="HWC")
    assert found["scale"].verdict is verdict
    assert found["constant"].verdict is RuleVerdict.PASS
    assert bool(found["scale"].change) is (verdict is RuleVerdict.WARN)


def test_what_never_changes_is_warned_of():
    """And its scale is not judged."""
    found = watched(spaces.Box(0, 255, (4,), np.uint8), 7, 7)
    assert (found["constant"].verdict, found["scale"].verdict) == (RuleVerdict.WARN, RuleVerdict.PASS)


def test_lanes_without_an_agent_do_not_count():
    """Their values are zeros as a rule."""
    watch = ScaleWatch(space_from_gymnasium(spaces.Box(0, 255, (1,), np.uint8)))
    for _ in range(MIN_TICKS):
        values = np.array([[0], [255]], np.uint8)
        watch.observe([values], np.array([True, False]))
        watch.observe([values], np.array([False, False]))
    assert next(result for result in watch.results() if result.name == "constant").verdict is RuleVerdict.WARN


def test_nothing_is_said_of_a_few_ticks():
    """Too little was seen."""
    assert watched(spaces.Box(0, 255, (4,), np.uint8), 0, 1, ticks=MIN_TICKS - 1) == {}
