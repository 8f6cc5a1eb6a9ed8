"""Pictures of lane 0: drawn, or as the policy sees them, small enough to be sent, and given up where there are none."""

import gymnasium
import numpy as np
import pytest

from seedbed.actor_svc.envs import make_group
from seedbed.actor_svc.pictures import Camera, make_watched_group, shrink
from seedbed.shared.protocol.pictures import MAX_PICTURE_BYTES, check_picture
from seedbed.shared.runtime.config import EnvConfig

ENV = EnvConfig(id="tests:toy")


class DrawnEnv(gymnasium.Env):
    """An image as observation, and what its author says of drawing."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 6, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, *, drawn=None):
        self.render_mode, self._drawn = render_mode, drawn

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.full((8, 6, 1), 7, np.uint8), {}

    def step(self, action):
        return np.full((8, 6, 1), 7, np.uint8), 0.0, False, False, {}

    def render(self):
        if isinstance(self._drawn, str):
            raise RuntimeError("no screen")
        return self._drawn


class UndrawnEnv(DrawnEnv):
    """Nothing to see, and no word of render_mode."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        super().__init__()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}


def camera(make, env=ENV):
    group = make_watched_group(env.model_copy(update={"image": "HWC"}), 2, make=make)
    group.reset(1)
    return Camera(group)


def test_what_the_environment_draws_is_sent():
    """As raw pixels with their sizes before them."""
    drawn = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    frame = camera(lambda render_mode=None: DrawnEnv(render_mode, drawn=drawn)).capture()
    assert check_picture(frame) == (2, 3)
    assert frame[8:] == drawn.tobytes()


def test_only_the_lane_that_is_shown_is_made_for_drawing():
    """Some environments are slower in a render mode, even where they are not asked for pictures."""
    modes = []

    def make(render_mode=None):
        modes.append(render_mode)
        return DrawnEnv(render_mode)

    make_watched_group(ENV.model_copy(update={"image": "HWC"}), 3, make=make).reset(1)
    assert modes == ["rgb_array", None, None]


@pytest.mark.parametrize("drawn", [None, "raises"])
def test_an_environment_that_cannot_draw_shows_what_the_policy_sees(drawn):
    """If that is an image."""
    frame = camera(lambda render_mode=None: DrawnEnv(render_mode, drawn=drawn)).capture()
    assert check_picture(frame) == (8, 6)
    assert set(frame[8:]) == {7}


def test_without_anything_to_see_there_is_no_picture_and_no_failure():
    """It says why, once; the group works on."""
    blind = camera(UndrawnEnv)
    assert (blind.capture(), blind.capture()) == (None, None)
    assert "cannot be shown" in blind.problem


@pytest.mark.parametrize(
    "drawn", [np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), np.zeros((4, 4, 4), np.uint8)]
)
def test_what_is_no_picture_is_not_sent(drawn):
    """Whatever an author's render returns: nothing, or what the policy sees."""
    odd = camera(lambda render_mode=None: DrawnEnv(render_mode, drawn=drawn))
    frame = odd.capture()
    assert check_picture(frame) == (8, 6) if frame is not None else odd.problem


@pytest.mark.parametrize("shape", [(1, 1), (400, 400), (401, 10), (1080, 1920), (5, 4000), (4000, 3), (799, 801)])
def test_large_pictures_are_made_small(shape):
    """By whole factors, keeping their brightness; the result always fits a frame."""
    picture = np.full((*shape, 3), 200, np.uint8)
    small = shrink(picture)
    assert max(small.shape[:2]) <= 400
    assert small.shape[2] == 3
    assert small.size
    assert set(np.unique(small)) == {200}
    assert 8 + small.size <= MAX_PICTURE_BYTES
    if max(shape) <= 400:
        assert small is picture


def test_drawing_takes_no_more_than_its_share_of_the_time():
    """A slow renderer makes pictures rare, not evaluations slow."""
    seconds = iter([0.0, 0.5, 0.6, 4.9, 5.1, 5.2])
    group = make_watched_group(ENV.model_copy(update={"image": "HWC"}), 2, make=DrawnEnv)
    group.reset(1)
    slow = Camera(group, clock=lambda: next(seconds))
    shot = [slow.capture() is not None for _ in range(4)]  # begins at 0.0, ends at 0.5; asked at 0.6, 4.9 and 5.1
    assert shot == [True, False, False, True]


def test_a_player_sees_every_step():
    """However long drawing takes."""
    seconds = iter(range(100))
    group = make_watched_group(ENV.model_copy(update={"image": "HWC"}), 1, make=DrawnEnv)
    group.reset(1)
    shown = Camera(group, max_share=1.0, clock=lambda: float(next(seconds)))
    assert all(shown.capture() is not None for _ in range(5))


def test_a_watched_group_plays_the_same_episodes():
    """Being watched changes no observation: the same environments, seeds and order."""
    env = EnvConfig(id="CartPole-v1")
    plain, watched = make_group(env, 3), make_watched_group(env, 3)
    assert plain.seeding == watched.seeding
    actions = [np.array([0, 1, 0])]
    for group in (plain, watched):
        group.reset(5)
    for _ in range(30):
        rows = [group.step(actions) for group in (plain, watched)]
        assert rows[0].payload == rows[1].payload
    assert check_picture(Camera(watched).capture()) == (200, 300)
    for group in (plain, watched):
        group.close()
