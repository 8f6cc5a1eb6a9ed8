"""Football's checkpoint reward, in numbers and on the engine."""

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv

from seedbed.actor_svc.envs import make_group
from seedbed.services.football.checkpoints import RADII, Checkpoints, ball_position
from seedbed.services.football.env import Football, make
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig

OURS, THEIRS, NOBODY = 0, 1, -1


def planes_with_ball(*positions):
    """u8 [L, 4, 72, 96] with the ball's cell marked, positions in pitch coordinates."""
    planes = np.zeros((len(positions), 4, 72, 96), np.uint8)
    for lane, (x, y) in enumerate(positions):
        planes[lane, 2, int((y * 2.25 + 1) / 2 * 72), int((x + 1) / 2 * 96)] = 255
    return planes


def collect(checkpoints, x, *, has_ball=True, has_scored=False):
    """One step of one lane with the ball on the axis."""
    reward = checkpoints.collect(np.array([[x, 0.0]]), np.array([has_ball]), np.array([has_scored]))
    return round(float(reward[0]), 6)


def test_ball_is_found_to_half_a_cell():
    """Corners, middle and goals, in GRF's coordinates."""
    places = [(0.0, 0.0), (0.99, 0.0), (-0.99, 0.01), (0.5, 0.4), (-0.5, -0.4), (0.77, 0.2)]
    error = np.abs(ball_position(planes_with_ball(*places)) - places)
    assert (error <= [1 / 96 + 1e-9, 1 / 2.25 / 72 + 1e-9]).all()


def test_each_circle_pays_once():
    """Ten circles, 0.1 each, the nearer ones later; going back and forth pays nothing more."""
    checkpoints = Checkpoints(1)
    assert collect(checkpoints, -0.5) == 0
    assert collect(checkpoints, 1 - RADII[0] + 1e-6) == pytest.approx(0.1)
    assert collect(checkpoints, 1 - RADII[0] + 1e-6) == 0
    assert collect(checkpoints, 1 - RADII[3] + 1e-6) == pytest.approx(0.3)
    assert collect(checkpoints, 0.0) == 0
    assert collect(checkpoints, 1 - RADII[9] + 1e-6) == pytest.approx(0.6)
    assert collect(checkpoints, 1.0) == 0
    assert checkpoints.collected.tolist() == [10]


def test_only_who_owns_the_ball_collects():
    """A shot that nobody owns passes the circles for nothing; the goal collects what is left."""
    checkpoints = Checkpoints(1)
    assert collect(checkpoints, 0.05) == pytest.approx(0.1)
    assert collect(checkpoints, 0.9, has_ball=False) == 0
    assert collect(checkpoints, 1.0, has_ball=False, has_scored=True) == pytest.approx(0.9)
    assert collect(checkpoints, 0.0, has_scored=True) == 0


def test_distance_is_to_the_centre_of_the_goal():
    """Beside the goal line is as far as before it."""
    checkpoints = Checkpoints(2)
    places = np.array([[1 - 0.4, 0.0], [1.0, 0.4]])
    reward = checkpoints.collect(places, np.ones(2, np.bool_), np.zeros(2, np.bool_))
    assert reward[0] == reward[1] == pytest.approx(0.1 * (RADII >= 0.4).sum())


class ScriptedPlayers(VectorEnv):
    """One lane that goes through the rows it is given: (x of the ball, its owner, reward, terminated)."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "image": "CHW", "statistics": ("score",)}  # noqa: RUF012
    num_envs = 1
    single_observation_space = gymnasium.spaces.Box(0, 255, (4, 72, 96), np.uint8)
    single_action_space = gymnasium.spaces.Discrete(19)

    def __init__(self, rows):
        self._rows = iter(rows)

    def _next(self):
        x, owner, reward, terminated = next(self._rows)
        info = {"ball_owned_team": np.array([owner]), "score": np.array([0])}
        return planes_with_ball((x, 0.0)), np.array([reward], np.float32), np.array([terminated]), info

    def reset(self, *, seed=None, options=None):
        planes, _, _, info = self._next()
        return planes, info

    def step(self, actions):
        planes, reward, terminated, info = self._next()
        return planes, reward, terminated, np.zeros(1, np.bool_), info


ROWS = [
    (0.05, OURS, 0, False),  # the first row pays nothing
    (0.05, OURS, 0, False),
    (0.30, THEIRS, 0, False),
    (0.97, NOBODY, 1, True),
    (0.30, OURS, 0, False),  # the reset row pays nothing
    (0.30, OURS, 0, False),
    (0.30, OURS, -1, True),
]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [("scoring,checkpoints", [0.1, 0, 1.9, 0, 0.4, -1]), ("scoring", [0, 0, 1, 0, 0, -1])],
)
def test_rewards_of_two_episodes(rewards, expected):
    """Checkpoints begin anew with every episode; without them the reward is the score's."""
    env = Football(ScriptedPlayers(ROWS), rewards=rewards)
    env.reset(seed=1)
    paid, collected = [], []
    for _ in expected:
        _, reward, _, _, info = env.step(np.zeros(1, np.int64))
        paid.append(float(reward[0]))
        collected.append(int(info["checkpoints"][0]))
    assert paid == pytest.approx(expected)
    assert collected == [1, 1, 10, 0, 4, 4]


def test_carrying_the_ball_pays_on_the_engine():
    """Running right from before the empty goal collects checkpoints in the first steps; the pitch can be shown."""
    pytest.importorskip("envpool")
    env = EnvConfig(
        id="seedbed.services.football.env:make", kwargs={"rewards": "scoring,checkpoints"}, max_episode_steps=6
    )
    group = make_group(env, 1)
    assert group.spec.statistics == ("return", "length", "score", "checkpoints")
    group.reset(1)
    while not group.ended_lanes.size:
        group.advance([np.array([5])])
    (total, length, score, checkpoints) = group.ended_statistics[0].tolist()
    assert (length, score) == (6, 0)
    assert checkpoints >= 8
    assert total == pytest.approx(0.1 * checkpoints)
    assert group.render().shape == (360, 480, 3)
    group.close()


def test_what_is_unknown_is_named():
    """Rewards and scenarios."""
    with pytest.raises(ConfigError, match="'scoring,checkpoints'"):
        make(1, rewards="goals")
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="did you mean 'gfootball/academy_corner-v1'"):
        make(1, scenario="academy_corners")
