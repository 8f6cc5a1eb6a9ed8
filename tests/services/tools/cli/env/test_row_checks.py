"""Rows that break one rule each, as hand-made ticks of two lanes."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from seedbed.services.tools.cli.env.row_checks import RowChecker, Tick, compare_episodes, fingerprint, read_tick
from seedbed.services.tools.cli.env.verdicts import RuleVerdict
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.rows import step_layout
from tests.support.specs import make_spec

SPEC = make_spec(
    spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3), env_id="hand-made", masked=True,
    settings=(("max_episode_steps", "3"),),
)  # fmt: skip
TERMINATED, TRUNCATED, FIRST = 1, 2, 4


def tick(flags, reward=(0.0, 0.0), *, statistics=None, value=0.5, mask=1):
    """One tick."""
    return Tick(
        observation=(np.full((2, 2), value, np.float32),),
        mask=np.full((2, 3), mask, np.uint8),
        reward=np.array(reward, np.float32),
        flags=np.array(flags, np.uint8),
        statistics=None if statistics is None else np.array(statistics, np.float32).reshape(-1, 2),
    )


def good_episode():
    """Lane 0 terminates after two steps, lane 1 is truncated at the limit."""
    return [
        tick([FIRST, FIRST]),
        tick([0, 0], (1.0, 0.5)),
        tick([TERMINATED, 0], (1.0, 0.5), statistics=[2.0, 2]),
        tick([FIRST, TRUNCATED], (0.0, 0.5), statistics=[1.5, 3]),
        tick([0, FIRST], (1.0, 0.0)),
    ]


def judged(ticks):
    """Verdicts by rule."""
    checker = RowChecker(SPEC, 2, "group 0: ")
    for index, item in enumerate(ticks):
        checker.observe(item, after_reset=index == 0)
    return {item.name: item for item in checker.results()}


def test_good_rows_keep_every_rule():
    """And are told apart by how they ended."""
    results = judged(good_episode())
    assert {item.verdict for item in results.values()} == {RuleVerdict.PASS}
    assert results["ends"].found == "1 terminated, 1 truncated; random actions return 1.75 on average"


BROKEN = {
    "first rows": (0, {"flags": [FIRST, 0]}, "lane 1"),
    "flags": (1, {"flags": [0, TERMINATED | FIRST]}, "lane 1"),
    "next-step reset": (3, {"flags": [0, TRUNCATED]}, "lane 0"),
    "no rebuilt lanes": (1, {"flags": [0, FIRST]}, "lane 1"),
    "reset rewards": (4, {"reward": [1.0, 0.25]}, "lane 1 (0.25)"),
    "statistics": (2, {"statistics": [[5.0, 2.0]]}, "return 5 and length 2; its rows add up to 2 and 2"),
    "masks": (1, {"mask": 2}, "above 1"),
    "bounds": (1, {"value": 1.5}, "is 1.5, its space says -1.0 to 1.0"),
    "values": (1, {"value": np.nan}, "box float32[2]"),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_named_with_tick_and_lane(rule):
    """The finding says where; the result says why it matters and what to change."""
    at, changes, found = BROKEN[rule]
    ticks = good_episode()
    fields = {"observation": (np.full((2, 2), changes.pop("value"), np.float32),)} if "value" in changes else {}
    fields |= {"mask": np.full((2, 3), changes.pop("mask"), np.uint8)} if "mask" in changes else {}
    dtypes = {"flags": np.uint8, "reward": np.float32, "statistics": np.float32}
    fields |= {name: np.array(value, dtypes[name]) for name, value in changes.items()}
    ticks[at] = replace(ticks[at], **fields)
    result = judged(ticks)[rule]
    assert result.verdict is RuleVerdict.FAIL
    assert result.found.startswith(f"group 0: tick {at}: ")
    assert found in result.found
    assert result.why
    assert result.change


def test_a_reward_that_is_not_finite_is_no_value():
    """It would make the loss useless."""
    assert "reward" in judged([tick([FIRST, FIRST]), tick([0, 0], (np.inf, 0.0))])["values"].found


def test_missing_statistics_are_a_failure():
    """The learning curve would have a hole."""
    ticks = good_episode()
    ticks[2] = replace(ticks[2], statistics=None)
    assert "0 rows of statistics for 1 lanes" in judged(ticks)["statistics"].found


def test_an_episode_beyond_the_stated_limit_is_a_failure():
    """And so is a time limit that terminates."""
    start = [tick([FIRST, FIRST]), *[tick([0, 0])] * 2]
    late = judged([*start, tick([0, 0]), tick([TERMINATED, 0], statistics=[0.0, 4])])["ends"]
    assert "lanes 0 (4), 1 (4) went on beyond max_episode_steps, which is 3" in late.found
    endless = judged([*start, tick([0, 0]), tick([0, 0])])["ends"]
    assert endless.verdict is RuleVerdict.FAIL
    cut = judged([*start, tick([TERMINATED, TERMINATED], statistics=[[0.0, 3], [0.0, 3]])])["ends"]
    assert "the time limit, are `terminated` only" in cut.found


def test_absent_lanes_may_come_back_as_first():
    """An agent that was away begins anew."""
    absent = 16
    ticks = [
        tick([FIRST, FIRST]),
        tick([0, TERMINATED], statistics=[0.0, 1]),
        tick([0, FIRST | absent]),
        tick([TRUNCATED, FIRST | absent], statistics=[0.0, 3]),
        tick([FIRST, FIRST]),
    ]
    assert RuleVerdict.FAIL not in {item.verdict for item in judged(ticks).values()}


def test_without_an_end_nothing_is_said_about_ends():
    """Skipped, with what to do."""
    result = judged(good_episode()[:2])["ends"]
    assert result.verdict is RuleVerdict.SKIPPED
    assert "--soak-steps" in result.found


def test_seeds_are_compared_array_by_array():
    """The first difference is named; a second seed that changes nothing is worth a remark."""
    a, b = (fingerprint(SPEC, tick([0, 0], (reward, 0.0))) for reward in (1.0, 2.0))
    assert "reward differs 1 ticks after" in compare_episodes([a, a], [a, b], [b, b]).found
    assert compare_episodes([a, b], [a, b], [b, b]).found == "the same seed plays the same 2 ticks"
    assert "nothing seems to be random" in compare_episodes([a], [a], [a]).found


@pytest.mark.parametrize(
    ("bits", "change"),
    [
        (0, lambda frames: frames[:-1]),
        (0, lambda frames: [frames[0][:-8]]),
        (0, lambda frames: [*frames, b"more"]),
        (1, lambda frames: frames),
        (1, lambda frames: [*frames, b"123"]),
        (2, lambda frames: frames),
    ],
)
def test_a_payload_that_is_not_what_its_bits_say_is_refused(bits, change):
    """Frames too many, too few, too short."""
    frames = [bytes(frame) for frame in step_layout(SPEC, 2).allocate()]
    with pytest.raises(RemoteWireError):
        read_tick(SPEC, 2, bits, change(frames))
    assert read_tick(SPEC, 2, 1, [*frames, bytes(8)]).statistics.shape == (1, 2)
