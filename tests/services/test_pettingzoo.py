"""PettingZoo's agents as lanes: who is there, who died, what is refused."""

import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group, make_smallest_group
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")

ARENA = "tests.support.arena:Arena"
MAKE = "seedbed.services.pettingzoo.env:make"
FIRST, ABSENT = int(Flags.FIRST), int(Flags.FIRST | Flags.ABSENT)
TERMINATED, TRUNCATED = int(Flags.TERMINATED), int(Flags.TRUNCATED)


def arena(lanes, max_episode_steps=None, **kwargs):
    """A group of the arena's agents, reset."""
    options = {name: kwargs.pop(name) for name in tuple(kwargs) if name in ("agents", "joins", "limit", "mask")}
    named = {"env": ARENA, "options": options, **kwargs}
    group = make_group(EnvConfig(id=MAKE, kwargs=named, max_episode_steps=max_episode_steps), lanes)
    group.reset(1)
    return group


def test_agents_of_all_worlds_are_lanes():
    """Two worlds of three agents: world by world, agents in their order, each with its own reward."""
    group = arena(6)
    assert group.views.flags.tolist() == [FIRST] * 6
    group.advance([np.zeros(6, np.int64)])
    assert group.views.observation[0][:, :2].tolist() == [[1, number] for number in (0, 1, 2)] * 2
    assert group.views.reward.tolist() == [0, 1, 2] * 2
    assert group.views.flags.tolist() == [0] * 6


def test_dead_agent_is_absent_until_its_world_is_over():
    """It ends with its own final observation; its lane is absent while others play, then `first` with them."""
    group = arena(3, statistics=["score"])
    nobody, middle, rest = ([0, 0, 0], [0, 1, 0], [1, 0, 1])
    flags = []
    for actions in (nobody, middle, nobody, nobody, rest, nobody, nobody):
        group.advance([np.array(actions)])
        flags.append(group.views.flags.tolist())
        if actions is middle:
            assert group.ended_lanes.tolist() == [1]
            assert group.ended_statistics.tolist() == [[2, 2, 3]]
            assert group.views.observation[0][1, :2].tolist() == [2, 1]
        if actions is rest:
            assert group.ended_statistics.tolist() == [[0, 5, 5], [10, 5, 7]]
    assert flags == [
        [0, 0, 0],
        [0, TERMINATED, 0],
        [0, ABSENT, 0],
        [0, ABSENT, 0],
        [TERMINATED, ABSENT, TERMINATED],
        [FIRST, FIRST, FIRST],
        [0, 0, 0],
    ]
    counters = group.counters()
    assert (counters.episodes, counters.aborted, counters.steps) == (3, 0, 5 + 2 + 5 + 3)


def test_agent_that_joins_late_begins_with_first():
    """Its lane is absent before; its episode's length counts from its own first row."""
    group = arena(2, agents=2, joins=1, limit=4)
    assert group.views.flags.tolist() == [FIRST, ABSENT]
    seen = []
    for _ in range(4):
        group.advance([np.zeros(2, np.int64)])
        seen.append(group.views.flags.tolist())
    assert seen == [[0, ABSENT], [0, FIRST], [0, 0], [TRUNCATED, TRUNCATED]]
    assert group.ended_statistics.tolist() == [[0, 4], [2, 2]]


def test_max_episode_steps_truncates_all_agents():
    """Those that are left end together with their final observation, and begin together."""
    group = arena(3, max_episode_steps=2)
    group.advance([np.array([1, 0, 0])])
    group.advance([np.zeros(3, np.int64)])
    assert group.views.flags.tolist() == [ABSENT, TRUNCATED, TRUNCATED]
    assert group.views.observation[0][1, :2].tolist() == [2, 1]
    group.advance([np.zeros(3, np.int64)])
    assert group.views.flags.tolist() == [FIRST] * 3
    assert group.views.observation[0][:, :2].tolist() == [[0, number] for number in range(3)]


@pytest.mark.parametrize("where", ["observation", "info"])
def test_action_masks(where):
    """Masks in the observation or the info are masks of the rows, and no part of the observation."""
    group = arena(2, agents=2, mask=where)
    assert group.spec.observation.leaf.shape == (3,)
    assert group.spec.mask_size == 5
    assert group.views.mask.tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
    group.advance([np.array([1, 0])])
    group.advance([np.array([0, 0])])
    assert group.views.mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]


def test_a_world_that_fails_to_close_leaves_no_other_open(monkeypatch):
    """The failure is told, not raised."""
    closed = []

    def close(world):
        closed.append(world)
        raise RuntimeError("stuck")

    monkeypatch.setattr("tests.support.arena.Arena.close", close, raising=False)
    group = arena(6)
    closed.clear()  # one that was only asked for its spaces
    group.close()
    assert len(closed) == 2
    assert "stuck" in group.counters().last_failure


@pytest.mark.parametrize(("action", "said"), [(2, "neither terminated nor truncated"), (3, "NaN"), (4, "burnt down")])
def test_failing_world_is_made_anew(action, said):
    """Only its own lanes begin anew, and the reason is told."""
    group = arena(6)
    group.advance([np.zeros(6, np.int64)])
    group.advance([np.array([0, 0, action, 0, 0, 0])])
    assert group.views.flags.tolist() == [FIRST] * 3 + [0] * 3
    assert group.views.observation[0].tolist() == [[0, n, 1] for n in range(3)] + [[2, n, 1] for n in range(3)]
    counters = group.counters()
    assert (counters.aborted, counters.rebuilds) == (3, 3)
    assert "world 0" in counters.last_failure
    assert said in counters.last_failure


def test_world_that_cannot_be_made_anew_is_absent_for_a_while(monkeypatch):
    """Its lanes are absent, and come back with `first`; one that never does ends the actor."""
    group = arena(3)
    monkeypatch.setattr("tests.support.arena.Arena.reset", lambda self, seed=None: 1 / 0)
    nobody = [np.zeros(3, np.int64)]
    group.advance([np.full(3, 4)])
    assert group.views.flags.tolist() == [ABSENT] * 3
    monkeypatch.undo()
    group.advance(nobody)
    group.advance(nobody)
    assert group.views.flags.tolist() == [FIRST] * 3
    monkeypatch.setattr("tests.support.arena.Arena.step", lambda self, actions: 1 / 0)
    with pytest.raises(EnvError, match="failed 20 times"):  # noqa: PT012
        for _ in range(30):
            group.advance(nobody)


@pytest.mark.parametrize(
    ("kwargs", "lanes", "said"),
    [
        ({"env": "no_such_module"}, 3, r"env\.kwargs\.env: 'no_such_module:parallel_env'"),
        ({"env": "butterfly/nothing_v0"}, 3, "'butterfly/nothing_v0': Environment .* not found in registry"),
        ({"env": "builtins:dict"}, 3, "no parallel environment"),
        ({"env": ARENA}, 4, r"worlds of 3 agents.*multiples of 3"),
        ({"env": ARENA, "options": {"gravy": 1}}, 3, "gravy"),
    ],
)
def test_wrong_settings_are_refused(kwargs, lanes, said):
    """The error says which setting, and what would do."""
    with pytest.raises(ConfigError, match=said):
        make_group(EnvConfig(id=MAKE, kwargs=kwargs), lanes)


def test_smallest_group_is_one_world():
    """For a video or a look at the specification there is no number of lanes to give."""
    group = make_smallest_group(EnvConfig(id=MAKE, kwargs={"env": ARENA}))
    assert group.lanes == 3
    group.close()
    single = make_smallest_group(EnvConfig(id="CartPole-v1"))
    assert single.lanes == 1
    single.close()


def spread(lanes=6, cycles=5):
    """A group of the particle environments' simple spread."""
    pytest.importorskip("mpe2", reason="mpe2 is not installed")
    options = {"N": 3, "max_cycles": cycles}
    return make_group(EnvConfig(id=MAKE, kwargs={"env": "mpe2.simple_spread_v3", "options": options}), lanes)


def test_simple_spread_runs_to_its_end_and_on():
    """A real environment: truncated for all agents at once, its reset row next, returns as summed."""
    group = spread()
    group.reset(3)
    assert group.spec.observation.leaf.shape == (18,)
    generator, total = np.random.default_rng(1), np.zeros(6, np.float32)
    for _ in range(5):
        assert not group.ended_lanes.size
        group.advance(group.random_actions(generator))
        total += group.views.reward
    assert group.views.flags.tolist() == [TRUNCATED] * 6
    np.testing.assert_allclose(group.ended_statistics[:, 0], total, rtol=1e-5)
    assert group.ended_statistics[:, 1].tolist() == [5] * 6
    group.advance(group.random_actions(generator))
    assert group.views.flags.tolist() == [FIRST] * 6
    group.close()


def test_knights_and_archers_die_one_by_one(monkeypatch):
    """A real environment in which agents die: each lane ends, is absent, and begins again with its world."""
    pytest.importorskip("pygame", reason="pygame is not installed")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("SDL_AUDIODRIVER", "dummy")
    options = {"spawn_delay": 2, "max_cycles": 10_000}
    kwargs = {"env": "butterfly/knights_archers_zombies_v11", "options": options}
    group = make_group(EnvConfig(id=MAKE, kwargs=kwargs), 4)
    group.reset(1)
    generator = np.random.default_rng(1)
    seen, previous = [], group.views.flags.copy()
    while seen.count([FIRST] * 4) < 2:
        group.advance(group.random_actions(generator))
        flags = group.views.flags
        over = (previous != 0) & (previous != FIRST)  # ended or absent
        assert ((flags[over] & FIRST) != 0).all()
        assert ((flags[~over] & FIRST) == 0).all()
        seen.append(flags.tolist())
        previous = flags.copy()
    counts = {flag: sum(row.count(flag) for row in seen) for flag in (TERMINATED, TRUNCATED, ABSENT)}
    assert counts[TERMINATED] == 8
    assert counts[TRUNCATED] == 0
    assert counts[ABSENT] > 0
    assert group.counters().aborted == 0
    group.close()


def test_same_seed_same_episodes():
    """A group's seed decides everything, whatever was played before; worlds differ."""

    def play(group, seed):
        generator = np.random.default_rng(5)
        sent = [group.reset(seed).payload]
        return sent + [group.step(group.random_actions(generator)).payload for _ in range(12)]

    once, again = spread(), spread()
    first = play(once, 7)
    play(again, 3)
    assert play(again, 7) == first
    assert play(again, 8) != first
    again.reset(7)
    worlds = again.views.observation[0].reshape(2, 3, -1)
    assert not np.array_equal(worlds[0], worlds[1])


def test_agents_with_different_spaces_are_refused():
    """Simple tag's hunters see more than its prey: the error names one of each and both spaces."""
    pytest.importorskip("mpe2", reason="mpe2 is not installed")
    with pytest.raises(
        ConfigError, match=r"'adversary_0' and 'agent_0' have different observation spaces.*\(16,\).*\(14,\)"
    ):
        make_group(EnvConfig(id=MAKE, kwargs={"env": "mpe2.simple_tag_v3"}), 4)
