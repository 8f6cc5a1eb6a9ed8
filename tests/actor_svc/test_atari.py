"""Atari by ALE and by EnvPool: one specification, the same frames, rewards and ends, held against ALE's own vectors."""

import gymnasium
import numpy as np
import pytest

from seedbed.actor_svc.backends.pool import find_id
from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.rows import Flags, describe_difference
from seedbed.shared.runtime.config import EnvConfig

ale_py = pytest.importorskip("ale_py")
vector_env = pytest.importorskip("ale_py.vector_env")
pytest.importorskip("envpool")

BACKENDS = ("ale_sync", "envpool")


def make(game, backend, lanes, **options):
    return make_group(EnvConfig(id=f"ALE/{game}-v5", backend=backend, **options), lanes, threads=1)


def make_reference(game, **options):
    """ALE's own vector environment with one lane and this project's settings, where they are not given."""
    settings = {
        "num_threads": 1, "frameskip": 4, "repeat_action_probability": 0.0, "stack_num": 1, "maxpool": True,
        "noop_max": 0, "episodic_life": False, "reward_clipping": False, "use_fire_reset": False,
    }  # fmt: skip
    return vector_env.AtariVectorEnv(game, 1, **settings | options)


@pytest.mark.parametrize("game", ["Breakout", "MsPacman"])
def test_envpool_plays_the_game_of_ale(game):
    """From the same frame on, the same actions give the same pixels, rewards and ends on both."""
    name = {"MsPacman": "ms_pacman"}.get(game, game.lower())
    reference, envpool = make_reference(name, noop_max=2), make(game, "envpool", 1, noop_max=1)
    for seed in range(20):  # ALE draws 0 or 1 no-ops where EnvPool makes one
        _, info = reference.reset(seed=seed)
        if info["frame_number"][0] == 1:
            break
    else:
        raise AssertionError("no seed with one no-op")
    envpool.reset(1)
    generator = np.random.default_rng(1)
    for _ in range(120):
        actions = envpool.random_actions(generator)
        observation, reward, terminated, _, _ = reference.step(actions[0])
        envpool.advance(actions)
        np.testing.assert_array_equal(observation[:, -1], envpool.views.observation[0])
        assert reward.tolist() == envpool.views.reward.tolist()
        assert terminated.tolist() == [bool(flags & Flags.TERMINATED) for flags in envpool.views.flags.tolist()]


@pytest.mark.parametrize("game", ["Breakout", "MsPacman"])
def test_single_games_are_those_of_ales_vectors(game):
    """From the first frame on, but for the final one, and for a grey level where a mean is just between two."""
    name = {"MsPacman": "ms_pacman"}.get(game, game.lower())
    reference, sync = make_reference(name), make(game, "ale_sync", 1, noop_max=0)
    reference.reset(seed=1)
    sync.reset(1)
    generator = np.random.default_rng(1)
    differences = []
    for _ in range(250):
        actions = sync.random_actions(generator)
        observation, reward, terminated, _, _ = reference.step(actions[0])
        sync.advance(actions)
        assert reward.tolist() == sync.views.reward.tolist()
        assert terminated.tolist() == [bool(flags & Flags.TERMINATED) for flags in sync.views.flags.tolist()]
        if not sync.ended_lanes.size:
            differences.append(observation[:, -1].astype(int) - sync.views.observation[0])
    assert np.abs(differences).max() <= 1
    assert np.count_nonzero(differences) < 1e-3 * np.size(differences)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sticky_actions_follow_the_seed(backend):
    """What the emulator draws is decided by the group's seed, too."""
    group = make("Breakout", backend, 2, repeat_action_probability=0.5, noop_max=1)
    actions = [group.random_actions(np.random.default_rng(number)) for number in range(30)]
    tapes = []
    for seed in (5, 5, 6):
        tapes.append([group.reset(seed).payload, *(group.step(one).payload for one in actions)])
    assert tapes[0] == tapes[1]
    assert tapes[0] != tapes[2]


@pytest.mark.parametrize("frame_skip", [1, 2, 5])
def test_single_games_skip_frames_as_ales_vectors_do(frame_skip):
    """The maximum is of the last two of a step's frames, or of its only one."""
    reference, sync = (
        make_reference("pong", frameskip=frame_skip),
        make("Pong", "ale_sync", 1, noop_max=0, frame_skip=frame_skip),
    )
    generator = np.random.default_rng(1)
    reference.reset(seed=1)
    sync.reset(1)
    for _ in range(150):
        actions = sync.random_actions(generator)
        observation, reward, *_ = reference.step(actions[0])
        sync.advance(actions)
        assert np.abs(observation[:, -1].astype(int) - sync.views.observation[0]).max() <= 1
        assert reward.tolist() == sync.views.reward.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_episode_is_the_full_game(backend):
    """A lost life is a flag on a valid row; the game ends with the last one, and its return is of all five."""
    group = make("Breakout", backend, 2, noop_max=2)
    group.reset(1)
    lost, first = np.zeros(2, int), np.zeros(2, int)
    fire = np.array([1, 1])
    ticks = 0
    while not group.ended_lanes.size:
        group.advance([fire])
        lost += (group.views.flags & Flags.LIFE_LOST) != 0
        first += (group.views.flags & Flags.FIRST) != 0
        ticks += 1
        assert ticks < 1000
    ended = group.ended_lanes[0]
    assert lost[ended] == 5
    assert first[ended] == 0
    assert group.views.flags[ended] & Flags.TERMINATED
    assert group.ended_statistics[0, 1] == ticks
    group.advance([fire])
    assert group.views.flags[ended] == Flags.FIRST
    assert group.views.reward[ended] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_limit_truncates_in_agent_steps(backend):
    """max_episode_steps counts agent steps on all, whatever the frame skip and the no-ops."""
    group = make("Pong", backend, 2, max_episode_steps=6)
    group.reset(3)
    for _ in range(6):
        assert not group.ended_lanes.size
        group.advance([np.zeros(2, np.int64)])
    assert group.views.flags.tolist() == [Flags.TRUNCATED] * 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_seed_same_game(backend):
    """The group's seed decides the no-ops at every reset, and so the whole game."""
    group = make("Pong", backend, 2, max_episode_steps=4)
    generator = np.random.default_rng(1)
    actions = [group.random_actions(generator) for _ in range(12)]
    tapes = []
    for seed in (5, 5, 6):
        tapes.append([group.reset(seed).payload, *(group.step(one).payload for one in actions)])
    assert tapes[0] == tapes[1]
    assert tapes[0] != tapes[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_colour_comes_channels_first(backend):
    """Without grey, both give [3, H, W]."""
    group = make("Pong", backend, 1, grayscale=False, image_size=42)
    leaf = group.spec.observation.leaf
    assert (leaf.image, leaf.shape) == ("CHW", (3, 42, 42))
    group.reset(1)
    assert group.views.observation[0].std() > 0


def test_a_run_keeps_to_one_back_end():
    """An actor with the other one is refused, by that word."""
    ale, envpool = make("Pong", "ale_sync", 1), make("Pong", "envpool", 1)
    difference = describe_difference(envpool.spec, ale.spec)
    assert difference == 'setting backend: ours "envpool", theirs "ale_sync"'
    assert describe_difference(make("Pong", "auto", 1).spec, envpool.spec) is None


@pytest.mark.parametrize("backend", ["ale_sync", "envpool"])
def test_the_screen_is_shown(backend):
    """A video is of the game's own screen in colour."""
    group = make_group(EnvConfig(id="ALE/Pong-v5", backend=backend), 1, render=True)
    group.reset(1)
    assert group.render().shape == (210, 160, 3)


def test_noop_max_0_is_refused_where_it_would_crash():
    """EnvPool's process dies on it."""
    with pytest.raises(ConfigError, match="noop_max"):
        make("Pong", "envpool", 1, noop_max=0)


def test_unknown_game_is_named():
    """A wrong id is a configuration error on all."""
    for backend in BACKENDS:
        with pytest.raises(ConfigError, match="Pongg"):
            make("Pongg", backend, 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_of_the_papers(backend):
    """All 18 actions and another size are [env]'s own; what is set there is refused among env.kwargs."""
    spec = make("Pong", backend, 1, full_action_space=True, image_size=42).spec
    assert spec.action.leaf.nvec == (18,)
    assert spec.observation.leaf.shape == (42, 42)
    with pytest.raises(ConfigError, match=r"env\.kwargs\.full_action_space"):
        make("Pong", backend, 1, kwargs={"full_action_space": True})


def test_every_game_of_ale_is_known_to_envpool():
    """By the same name, whatever its capitals; TicTacToe3D is TicTacToe3d there."""
    gymnasium.register_envs(ale_py)
    games = [name for name in gymnasium.registry if name.startswith("ALE/") and name.endswith("-v5")]
    assert len(games) > 100
    assert len({find_id(game) for game in games}) == len(games)
