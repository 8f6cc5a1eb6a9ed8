"""The memory task: what it shows, when it asks, what it pays."""

import numpy as np
from gymnasium.utils.env_checker import check_env

from seedbed.actor_svc.envs import make_group
from seedbed.services.memory.env import MemoryEnv
from seedbed.shared.runtime.config import EnvConfig


def episode(env, answer, seed=None):
    """Play one episode with `answer(cue)` at the question: its length, return and info."""
    observation, _ = env.reset(seed=seed)
    cue = int(observation.argmax())
    length, is_over, total = 0, False, 0.0
    while not is_over:
        asked = observation[-1] == 1
        observation, reward, is_over, truncated, info = env.step(np.int64(answer(cue) if asked else 0))
        length, total = length + 1, total + reward
        assert not truncated
    return length, total, info


def test_it_is_a_gymnasium_environment():
    """Gymnasium's own checks pass."""
    check_env(MemoryEnv(), skip_render_check=True)


def test_memory_earns_one_and_forgetting_nothing():
    """The right answer pays 1, any other 0, and success says so."""
    env = MemoryEnv()
    env.reset(seed=1)
    for _ in range(50):
        assert episode(env, lambda cue: cue)[1:] == (1.0, {"success": 1.0})
        assert episode(env, lambda cue: (cue + 1) % 4)[1:] == (0.0, {"success": 0.0})


def test_delay_is_random_between_its_bounds():
    """Between cue and question lie 5 to 15 empty rows: 7 to 17 steps, all of which occur."""
    env = MemoryEnv()
    env.reset(seed=1)
    lengths = {episode(env, lambda cue: 0)[0] for _ in range(300)}
    assert lengths == set(range(7, 18))


def test_cue_is_shown_once():
    """Nothing between the first row and the question tells the cue, and every cue occurs."""
    env = MemoryEnv(cues=3, min_delay=2, max_delay=2)
    seen = set()
    for seed in range(30):
        rows = [env.reset(seed=seed)[0]]
        rows += [env.step(np.int64(0))[0] for _ in range(3)]
        seen.add(int(rows[0].argmax()))
        assert rows[0][:3].sum() == 1
        assert [row.tolist() for row in rows[1:]] == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert seen == {0, 1, 2}


def test_group_reports_success():
    """As an experiment names it, with its figure beside return and length."""
    group = make_group(EnvConfig(id="seedbed.services.memory.env:make", kwargs={"min_delay": 0, "max_delay": 0}), 4)
    assert group.spec.statistics == ("return", "length", "success")
    group.reset(1)
    cues = group.views.observation[0].argmax(1)
    group.advance([cues])
    assert group.views.observation[0][:, -1].tolist() == [1, 1, 1, 1]
    group.advance([cues])
    assert group.ended_statistics.tolist() == [[1, 2, 1]] * 4


def test_what_is_right_and_what_it_pays_can_differ():
    """With a shift the answer is another cue; success is the same whatever is paid."""
    env = MemoryEnv(cues=4, min_delay=0, max_delay=2, reward=1000.0, shift=1)
    assert episode(env, lambda cue: (cue + 1) % 4, seed=1)[1:] == (1000.0, {"success": 1.0})
    assert episode(env, lambda cue: cue, seed=1)[1:] == (0.0, {"success": 0.0})
