"""Rows, flags, statistics and repairs of a group, on every kind of back-end."""

import threading

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from seedbed.actor_svc.backends.lanes import LaneBackend
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.actor_svc.envs import make_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.messages import StepBits
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig
from tests.support import toy_envs

FIRST, TERMINATED, TRUNCATED = int(Flags.FIRST), int(Flags.TERMINATED), int(Flags.TRUNCATED)
KINDS = {
    "single": toy_envs.CountingEnv,
    "concurrent": toy_envs.ServedEnv,
    "next-step": toy_envs.counting_vector,
    "disabled": lambda num_envs: toy_envs.counting_vector(num_envs, "Disabled"),
    "sync next-step": toy_envs.counting_sync,
    "sync disabled": lambda num_envs: toy_envs.counting_sync(num_envs, "Disabled"),
    "sync same-step": lambda num_envs: toy_envs.counting_sync(num_envs, "SameStep"),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def group(request):
    made = make_group(EnvConfig(id="counting"), 3, make=request.param)
    yield made
    made.close()


def act(group, *codes):
    return group.step([np.array(codes, np.int64)])


def observed(group):
    return group.views.observation[0].tolist()


def test_rows_follow_next_step_autoreset(group):
    """An ended row holds the final observation; the next one is the reset row: first, reward 0, action ignored."""
    group.reset(1)
    assert group.views.flags.tolist() == [FIRST] * 3
    assert group.views.reward.tolist() == [0, 0, 0]
    starts = [episode for _, episode in observed(group)]
    act(group, 0, 1, 2)
    assert group.views.flags.tolist() == [0, TERMINATED, TRUNCATED]
    assert observed(group) == [[1, start] for start in starts]
    assert group.views.reward.tolist() == [1, 1, 1]
    act(group, 0, 1, 2)
    assert group.views.flags.tolist() == [0, FIRST, FIRST]
    assert [t for t, _ in observed(group)] == [2, 0, 0]
    assert [episode > start for (_, episode), start in zip(observed(group), starts, strict=True)] == [False, True, True]
    assert group.views.reward.tolist() == [2, 0, 0]
    act(group, 0, 0, 2)
    assert group.views.flags.tolist() == [0, 0, TRUNCATED]
    assert group.views.reward.tolist() == [3, 1, 1]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_without_autoreset_the_same_rows_come_as_with_next_step_autoreset(kind, masked):
    """No lane is stepped past its end, and no episode is lost or cut, however long or short it is."""

    def play(mode):
        def make(lanes):
            limits = [1, 5, 23, 59][:lanes]
            fns = [lambda limit=limit: toy_envs.StrictEnv(limit, masked=masked) for limit in limits]
            return RecordEpisodeStatistics(kind(fns, autoreset_mode=mode))

        group = EnvGroup(VectorBackend(make, 4), 4, env_id="strict")
        group.reset(1)
        generator = np.random.default_rng(1)
        rows = []
        for _ in range(150):
            group.step(group.random_actions(generator))
            views = group.views
            times = views.observation[0][:, 0]  # the other column counts resets
            shown = [times, views.flags, views.reward, group.ended_statistics] + ([views.mask] if masked else [])
            rows.append([array.tolist() for array in shown])
        counters = group.counters()
        group.close()
        return rows, counters

    rows, counters = play(AutoresetMode.DISABLED)
    assert (rows, counters) == play(AutoresetMode.NEXT_STEP)
    assert counters.aborted == 0
    assert counters.episodes == 75 + 25 + 6 + 2


@pytest.mark.parametrize(
    ("named", "told"),
    [(("length",), "'length'"), (("a b",), "'a b'"), (("x", "x"), "'x' is named twice"), ("score", "write a tuple")],
)
def test_statistics_that_a_run_cannot_report_are_refused_by_name(monkeypatch, named, told):
    """When the environment is made, before it plays."""
    monkeypatch.setattr(toy_envs.CountingEnv, "metadata", {"statistics": named})
    with pytest.raises(ConfigError, match=told):
        make_group(EnvConfig(id="counting"), 2, make=toy_envs.CountingEnv)


def test_statistics_come_with_the_ended_row(group):
    """Return, length and the environment's own figures of ended lanes, f32 [ended, K] in ascending order of lanes."""
    assert group.spec.statistics == ("return", "length", "score")
    group.reset(1)
    assert act(group, 0, 0, 0).bits == 0
    rows = act(group, 1, 0, 2)
    assert rows.bits == StepBits.STATISTICS
    assert len(rows.payload) == len(group.step_layout.frame_bytes) + 1
    assert np.frombuffer(rows.payload[-1], np.float32).reshape(-1, 3).tolist() == [[3, 2, 20], [3, 2, 20]]
    assert group.ended_lanes.tolist() == [0, 2]
    assert act(group, 0, 0, 0).bits == 0
    act(group, 1, 1, 0)
    assert group.ended_statistics.tolist() == [[1, 1, 10], [10, 4, 40]]
    counters = group.counters()
    assert (counters.episodes, counters.aborted, counters.rebuilds) == (4, 0, 0)
    assert counters.steps == 4 * 3 - 2


def test_payload_is_what_the_layout_says(group):
    """The frames that travel hold the views' arrays, and are not written again."""
    group.reset(1)
    rows = act(group, 0, 1, 2)
    group.step_layout.check(rows.payload[:1])
    expected = [group.views.observation[0].copy(), group.views.reward.copy(), group.views.flags.copy()]
    act(group, 0, 0, 0)
    for sent, was in zip(group.step_layout.views(rows.payload), expected, strict=True):
        np.testing.assert_array_equal(sent, was)


@pytest.mark.parametrize("code", [3, 4])
def test_failing_lane_is_rebuilt_with_first(group, code):
    """A raise or NaN begins a new episode: `first` without an end, counted as aborted, its return not reported."""
    group.reset(1)
    act(group, 0, 0, 0)
    rows = act(group, 0, code, 0)
    alone = group.seeding == "lane"
    assert group.views.flags.tolist() == ([0, FIRST, 0] if alone else [FIRST] * 3)
    assert group.views.reward[1] == 0
    assert observed(group)[1][0] == 0
    assert np.isfinite(group.views.observation[0]).all()
    assert rows.bits == 0
    assert group.counters().aborted == group.counters().rebuilds == (1 if alone else 3)
    assert group.counters().last_failure
    act(group, 1, 1, 1)
    assert group.views.flags.tolist() == [TERMINATED] * 3
    assert group.ended_statistics[1].tolist() == [1, 1, 10]


def test_infinite_reward_rebuilds_its_lane_alone():
    """A reward that is no number never travels."""
    group = make_group(EnvConfig(id="counting"), 2, make=toy_envs.CountingEnv)
    group.reset(1)
    act(group, 5, 0)
    assert group.views.flags.tolist() == [FIRST, 0]
    assert group.views.reward.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["single", "next-step"])
def test_lane_that_never_works_again_is_an_error(kind):
    """After twenty failures without a good step the environment is given up, with its last words."""
    group = make_group(EnvConfig(id="counting"), 1, make=KINDS[kind])
    group.reset(1)
    for _ in range(20):
        act(group, 3)
    with pytest.raises(EnvError, match="asked to raise"):
        act(group, 3)


@pytest.mark.parametrize("code", [3, 4])
@pytest.mark.parametrize("kind", ["single", "next-step"])
def test_good_steps_between_failures_are_forgiven(kind, code):
    """Only failures in a row count."""
    group = make_group(EnvConfig(id="counting"), 1, make=KINDS[kind])
    group.reset(1)
    for _ in range(30):
        act(group, code)
        act(group, 0)
    assert group.counters().rebuilds == 30


def test_lane_that_cannot_be_rebuilt_is_absent_for_a_while():
    """While making it anew fails, its rows are first and absent; the other lanes go on."""
    made = []

    def make():
        made.append(toy_envs.CountingEnv(fail_resets=3 <= len(made) < 5))
        return made[-1]

    group = EnvGroup(LaneBackend(make, 3), 3, env_id="counting")
    group.reset(1)
    act(group, 0, 3, 0)
    seen = [group.views.flags[1]]
    for _ in range(8):
        act(group, 0, 0, 0)
        seen.append(int(group.views.flags[1]))
    absent = FIRST | int(Flags.ABSENT)
    assert seen == [absent] * 6 + [FIRST, 0, 0]
    assert group.views.observation[0][:, 0].tolist() == [9, 2, 9]
    assert group.counters().aborted == 0  # it had not made one step
    assert made[1].closed


def test_same_step_autoreset_is_refused_with_the_way_out():
    """Final observations that are no rows would be lost silently."""
    with pytest.raises(ConfigError, match="NEXT_STEP"):
        make_group(EnvConfig(id="x", kwargs={"mode": "SameStep"}), 2, make=toy_envs.counting_vector)


def test_reset_begins_all_lanes_again(group):
    """A reset in mid-episode gives first rows and reports nothing of what it cut."""
    group.reset(1)
    act(group, 0, 0, 1)
    rows = group.reset(2)
    assert rows.bits == 0
    assert group.views.flags.tolist() == [FIRST] * 3
    act(group, 1, 1, 1)
    assert group.ended_statistics[:, :2].tolist() == [[1, 1]] * 3


def test_lost_life_is_a_flag_and_no_end():
    """Rows where the lives fell carry life_lost; the episode, its return and length go on to the last life."""
    group = EnvGroup(LaneBackend(toy_envs.LivesEnv, 2, track_lives=True), 2, env_id="lives")
    group.reset(1)
    flags = []
    for codes in ([0, 1], [1, 0], [1, 0], [1, 0], [1, 0]):
        act(group, *codes)
        flags.append(group.views.flags.tolist())
    lost = int(Flags.LIFE_LOST)
    assert flags == [[0, lost], [lost, 0], [lost, 0], [lost | TERMINATED, 0], [FIRST, 0]]
    assert group.counters().episodes == 1


class Names(toy_envs.CountingEnv):
    """Its lives are the names of players."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"lives": ["Ann", "Bob"]}

    def step(self, action):
        return *super().step(action)[:4], {"lives": ["Ann"]}


def test_lives_that_are_no_number_matter_only_where_lives_are_counted():
    """An entry of info is the environment's own affair; where it must be a number, the error names it."""
    group = EnvGroup(LaneBackend(Names, 1), 1, env_id="names")
    group.reset(1)
    act(group, 0)
    assert group.counters().rebuilds == 0
    tracked = EnvGroup(LaneBackend(Names, 1, track_lives=True), 1, env_id="names")
    tracked.reset(1)
    assert "info['lives']" in tracked.counters().last_failure


def test_nested_spaces_and_masks_reach_the_row():
    """Dict, Tuple and Text observations and a nested mask lie in canonical order; actions come back nested."""
    env = toy_envs.MaskedEnv()
    group = EnvGroup(LaneBackend(lambda: env, 1), 1, env_id="masked")
    assert [leaf.path for leaf in group.spec.observation.leaves()] == ["a", "word", "z/0", "z/1"]
    assert group.spec.mask_size == 3 + 5
    group.reset(1)
    assert group.views.mask.tolist() == [[1, 0, 0, 1, 0, 0, 1, 1]]
    generator = np.random.default_rng(1)
    for t in range(1, 5):
        group.step(group.random_actions(generator))
        picture, word, number, bits = group.views.observation
        assert (picture == t).all()
        assert word[0].tobytes()[:7] == b"\x03\0\0\0h\xc3\xa9"
        assert number.tolist() == [t % 3 - 1]
        assert bits.tolist() == [[1, 0]]
        assert group.views.mask[0, :3].tolist() == np.eye(3)[t % 3].tolist()
    assert [action["a"] for action in env.actions] == [3, 4, 5, 3]  # random actions respect the mask
    assert all(action["b"][0] == 0 and action["b"][1] in (1, 2) for action in env.actions)
    assert group.views.flags.tolist() == [TRUNCATED]


def test_forbidden_category_in_an_observation_rebuilds_the_lane():
    """A Discrete observation beyond its categories would break every network."""

    class Outside(toy_envs.CountingEnv):
        def __init__(self):
            super().__init__()
            self.observation_space = spaces.Discrete(3, start=1)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return 1, {}

        def step(self, action):
            return 4 if action else 3, 1.0, False, False, {}

    group = EnvGroup(LaneBackend(Outside, 2), 2, env_id="outside")
    group.reset(1)
    act(group, 0, 1)
    assert group.views.observation[0].tolist() == [3, 1]
    assert group.views.flags.tolist() == [0, FIRST]


def test_wrong_shape_is_named():
    """An observation that would broadcast silently is a failure of its lane, with its shape."""

    class Scalar(toy_envs.CountingEnv):
        def step(self, action):
            return (np.zeros(1, np.float32) if action else np.zeros(2, np.float32)), 0.0, False, False, {}

    group = EnvGroup(LaneBackend(Scalar, 1), 1, env_id="scalar")
    group.reset(1)
    act(group, 1)
    assert group.views.flags.tolist() == [FIRST]
    assert "(1,)" in group.counters().last_failure


def test_mask_of_a_vector_environment():
    """A flat mask of all lanes is copied into every row."""

    class Masked(toy_envs.CountingVectorEnv):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed, options=options)[0], {"action_mask": self.mask()}

        def step(self, actions):
            return *super().step(actions)[:4], {"action_mask": self.mask()}

        def mask(self):
            return np.arange(6)[None] <= self.t[:, None]

    group = EnvGroup(VectorBackend(Masked, 2), 2, env_id="masked")
    group.reset(1)
    assert group.views.mask.sum(1).tolist() == [1, 1]
    act(group, 0, 1)
    act(group, 0, 0)
    assert group.views.mask.sum(1).tolist() == [3, 1]


def test_warm_up_leaves_the_newest_rows():
    """Random steps before the first row: counted, and lanes no longer in step."""
    group = make_group(EnvConfig(id="counting"), 8, make=toy_envs.CountingEnv)
    group.reset(1)
    rows = group.warm_up(20, seed=1)
    assert len(rows.payload) in (1, 2)
    assert group.counters().ticks == 20
    assert len({tuple(row) for row in observed(group)}) > 1


def test_lanes_that_wait_for_servers_wait_together():
    """With `concurrent` in the metadata no lane's step or reset ends before all have begun."""
    together = threading.Barrier(3, timeout=30)
    group = make_group(EnvConfig(id="served"), 3, make=lambda: toy_envs.ServedEnv(limit=2))
    for lane in group._backend._lanes:
        lane.env.together = together
    group.reset(1)
    for _ in range(4):
        act(group, 0, 0, 0)
    assert group.views.flags.tolist() == [0, 0, 0]
    assert group.counters().episodes == 3
    assert group.counters().rebuilds == 0
    group.close()


def test_concurrent_lanes_send_what_single_ones_do():
    """Whatever happens to them, to the byte."""
    sent = []
    for make in (toy_envs.CountingEnv, toy_envs.ServedEnv):
        group = make_group(EnvConfig(id="toy"), 4, make=make)
        generator = np.random.default_rng(1)
        sent.append([group.reset(7).payload] + [act(group, *generator.integers(0, 5, 4)).payload for _ in range(40)])
        group.close()
    assert sent[0] == sent[1]


@pytest.mark.parametrize("way", [*toy_envs.OUTCOMES, "exits", "raises beside Exception", "raises what cannot be told"])
def test_whatever_an_environment_does_costs_its_lane_an_episode(way):
    """It is rebuilt with `first`, the reason is told, and nothing that is no number travels."""
    group = make_group(EnvConfig(id="mischievous"), 2, make=lambda: toy_envs.MischievousEnv(way))
    group.reset(1)
    act(group, 0, 0)
    act(group, 0, 0)
    act(group, 0, 0)
    assert group.views.flags.tolist() == [FIRST, FIRST]
    assert np.isfinite(group.views.reward).all()
    assert group.counters().aborted == 2
    assert group.counters().last_failure.startswith("lane 1: ")
    group.close()


def test_an_environment_that_fails_to_close_spoils_nothing():
    """What it did is done; the other lanes are closed as well."""
    group = make_group(EnvConfig(id="mischievous"), 2, make=lambda: toy_envs.MischievousEnv("exits when closed"))
    group.reset(1)
    group.close()
    assert "close: SystemExit: 4" in group.counters().last_failure


@pytest.mark.parametrize("figure", toy_envs.FIGURES.values(), ids=toy_envs.FIGURES)
@pytest.mark.parametrize("kind", ["single", "next-step"])
def test_a_statistic_that_is_no_number_is_not_known(monkeypatch, kind, figure):
    """NaN in its place; return and length are told."""
    made = KINDS[kind]
    if kind == "single":
        step = toy_envs.CountingEnv.step
        monkeypatch.setattr(
            toy_envs.CountingEnv, "step", lambda env, action: (*step(env, action)[:4], {"score": figure})
        )
    else:
        step = toy_envs.CountingVectorEnv.step
        monkeypatch.setattr(
            toy_envs.CountingVectorEnv, "step", lambda env, action: (*step(env, action)[:4], {"score": [figure]})
        )
    group = make_group(EnvConfig(id="counting"), 1, make=made)
    group.reset(1)
    act(group, 1)
    assert group.ended_statistics[0, :2].tolist() == [1, 1]
    assert np.isnan(group.ended_statistics[0, 2])
    group.close()


class SometimesScored(toy_envs.CountingEnv):
    """A CountingEnv that has a score only where an episode is truncated."""

    def step(self, action):
        *others, truncated, info = super().step(action)
        return *others, truncated, info if truncated else {}


def test_an_episode_without_the_statistic_is_not_known_in_vector_environments_either():
    """What Gymnasium fills in for a lane without the entry is no value."""
    seen = []
    wrapped = VectorBackend(lambda lanes: RecordEpisodeStatistics(SyncVectorEnv([SometimesScored] * lanes)), 3)
    for backend in (LaneBackend(SometimesScored, 3), wrapped):
        group = EnvGroup(backend, 3, env_id="scored")
        group.reset(1)
        act(group, 1, 2, 0)
        seen.append(group.ended_statistics.copy())
        act(group, 0, 0, 1)
        seen.append(group.ended_statistics.copy())
        group.close()
    np.testing.assert_array_equal(seen[0], [[1, 1, np.nan], [1, 1, 10]])
    np.testing.assert_array_equal(seen[1], [[3, 2, np.nan]])
    for single, vector in zip(seen[:2], seen[2:], strict=True):
        np.testing.assert_array_equal(vector, single)


def test_a_return_beyond_float32_is_the_largest():
    """An infinite one would be refused by inference, again and again."""

    class RichEnv(toy_envs.CountingEnv):
        def step(self, action):
            observation, _, terminated, truncated, info = super().step(action)
            return observation, 3e38, terminated, truncated, info

    group = make_group(EnvConfig(id="rich"), 1, make=RichEnv)
    group.reset(1)
    act(group, 0)
    act(group, 1)
    assert np.isfinite(group.ended_statistics).all()


def test_a_text_action_is_refused():
    """No policy can choose one."""

    def make():
        env = toy_envs.CountingEnv()
        env.action_space = spaces.Text(5)
        return env

    with pytest.raises(ConfigError, match="Text leaf"):
        make_group(EnvConfig(id="talking"), 1, make=make)
