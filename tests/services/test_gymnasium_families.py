"""Gymnasium's own families by id: real steps, real ends, and the same seed the same episodes."""

import warnings

import gymnasium
import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig


def _has_box2d():
    """Import it here: its types warn while they are made, and that warning as an error ends the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import Box2D  # noqa: F401
        except ImportError:
            return False
    return True


needs_box2d = pytest.mark.skipif(not _has_box2d(), reason="Box2D is not installed")
CLASSIC = ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"]
BOX2D = [pytest.param(name, marks=needs_box2d) for name in ("LunarLander-v3", "BipedalWalker-v3")]
LANES = 3


def play(group, seed, ticks):
    """All that a group sends over some ticks of random actions."""
    generator = np.random.default_rng(5)
    sent = [group.reset(seed).payload]
    return sent + [group.step(group.random_actions(generator)).payload for _ in range(ticks)]


@pytest.mark.parametrize("env_id", CLASSIC + BOX2D)
def test_same_seed_same_episodes(env_id):
    """Whatever was played before, but for the walker, whose world remembers; another seed plays others."""
    once, again = (make_group(EnvConfig(id=env_id, max_episode_steps=30), LANES) for _ in range(2))
    first = play(once, 7, 70)
    if "Walker" not in env_id:
        play(again, 3, 5)
    assert play(again, 7, 70) == first
    assert play(again, 8, 70) != first
    for group in (once, again):
        assert group.counters().rebuilds == 0
        group.close()


@pytest.mark.parametrize("env_id", CLASSIC + BOX2D)
def test_ends_and_reset_rows(env_id):
    """An episode that runs out of steps is truncated; the next row of its lane is `first` with reward 0."""
    group = make_group(EnvConfig(id=env_id, max_episode_steps=5), LANES)
    group.reset(1)
    generator = np.random.default_rng(1)
    for _ in range(5):
        assert not group.ended_lanes.size
        group.advance(group.random_actions(generator))
    assert group.views.flags.tolist() == [Flags.TRUNCATED] * LANES
    assert group.ended_statistics[:, 1].tolist() == [5] * LANES
    group.advance(group.random_actions(generator))
    assert group.views.flags.tolist() == [Flags.FIRST] * LANES
    assert group.views.reward.tolist() == [0] * LANES
    group.close()


@needs_box2d
def test_lander_that_crashes_is_terminated():
    """Without engines it falls, and its final row has the crash's reward."""
    group = make_group(EnvConfig(id="LunarLander-v3"), 1)
    group.reset(1)
    while not group.ended_lanes.size:
        group.advance([np.zeros(1, np.int64)])
    assert group.views.flags.tolist() == [Flags.TERMINATED]
    assert group.views.reward.tolist() == [-100]
    group.close()


@needs_box2d
def test_car_racing_is_an_image():
    """Gymnasium does not say where its channels are; the configuration does."""
    with pytest.raises(ConfigError, match=r"set env\.image"):
        make_group(EnvConfig(id="CarRacing-v3"), 1)
    group = make_group(EnvConfig(id="CarRacing-v3", image="HWC", kwargs={"continuous": False}), 1)
    (leaf,) = group.spec.observation.leaves()
    assert (leaf.shape, leaf.image) == ((96, 96, 3), "HWC")
    assert group.spec.action.leaf.nvec == (5,)
    group.reset(1)
    group.advance([np.array([3])])
    assert group.views.observation[0].std() > 10
    group.close()


@needs_box2d
def test_racing_is_drawn_as_gymnasium_draws_it():
    """The same road, grass and car within a few levels of gray, and the same rewards, once the view has zoomed in."""
    from seedbed.services.box2d.env import GRAY, make_racing

    env, theirs = make_racing(), gymnasium.make("CarRacing-v3", continuous=False)
    env.reset(seed=3)
    theirs.reset(seed=3)
    for action in [3] * 12 + [1] * 6 + [2] * 6 + [4] * 2:
        _, reward, *_ = env.step(action)
        held = [theirs.step(action) for _ in range(4)]
        assert reward == pytest.approx(sum(frame[1] for frame in held))
    road = held[-1][0][:84] @ np.array(GRAY)
    ours = env.unwrapped.picture().reshape(84, 2, 96, 2).mean((1, 3))
    assert np.abs(ours - road).mean() < 4
    assert road.std() > 10
    for each in (env, theirs):
        each.close()


@needs_box2d
def test_racing_is_seen_small_now_and_one_action_ago():
    """Two gray pictures; the older one is the newer one of the row before, at the start both are the same."""
    from seedbed.services.box2d.env import make_racing

    env = make_racing(size=24, frames=2)
    first, _ = env.reset(seed=1)
    assert first.shape == env.observation_space.shape == (2, 24, 24)
    assert (first[0] == first[1]).all()
    second, *_ = env.step(3)
    assert (second[1] == first[0]).all()
    env.close()
