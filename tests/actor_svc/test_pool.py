"""EnvPool's environments as lanes: rows, seeds, spaces, statistics, and what is said about wrong options."""

import glob
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from seedbed.actor_svc.backends.pool import Pool
from seedbed.actor_svc.envs import make_group
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig

envpool = pytest.importorskip("envpool")

FAMILIES = {  # id → shapes of its observation leaves, kind of its action
    "CartPole-v1": ([(4,)], "discrete"),
    "HalfCheetah-v5": ([(17,)], "box"),
    "WalkerWalk-v1": ([(), (14,), (9,)], "box"),
    "MiniGrid-DoorKey-8x8-v0": ([(), (7, 7, 3), (96,)], "discrete"),
    "CoinrunEasy-v0": ([(3, 64, 64)], "discrete"),
    "D1Basic-v1": ([(84, 84)], "discrete"),
    "gfootball/academy_corner-v1": ([(4, 72, 96)], "discrete"),
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """ViZDoom writes into the working directory."""
    monkeypatch.chdir(tmp_path)


def make(env_id, lanes=2, *, render=False, **env):
    if "Coinrun" in env_id:
        skip_without_qt()
    return make_group(EnvConfig(id=env_id, backend="envpool", **env), lanes, threads=1, render=render)


def skip_without_qt():
    import envpool.procgen

    try:
        envpool.procgen.ProcgenEnvSpec  # noqa: B018  it raises where the libraries are missing
    except ImportError as error:
        pytest.skip(str(error))


def play(group, seed, ticks):
    """All that the group sends over some ticks of random actions, and flags [ticks, L] and rewards of the rows."""
    generator = np.random.default_rng(0)
    sent, flags, rewards = [group.reset(seed).payload], [], []
    for _ in range(ticks):
        sent.append(group.step(group.random_actions(generator)).payload)
        flags.append(group.views.flags.tolist())
        rewards.append(group.views.reward.tolist())
    return sent, flags, rewards


@pytest.mark.parametrize("env_id", FAMILIES)
def test_rows_of_every_family(env_id):
    """Truncated by the configured limit, then a reset row without a reward; the seed decides all of it."""
    obeys_limit = "Coinrun" not in env_id
    group = make(env_id, max_episode_steps=3 if obeys_limit else None)
    shapes, action = FAMILIES[env_id]
    assert [leaf.shape for leaf in group.spec.observation.leaves()] == shapes
    assert group.spec.action.kind == action
    sent, flags, rewards = play(group, 1, 5)
    if obeys_limit:
        assert flags == [[0, 0], [0, 0], [Flags.TRUNCATED] * 2, [Flags.FIRST] * 2, [0, 0]]
        assert rewards[3] == [0, 0]
    assert play(group, 1, 5)[0] == sent
    assert play(group, 2, 5)[0] != sent
    assert group.counters().rebuilds == 0
    group.close()


def test_lanes_and_neighbouring_seeds_share_nothing():
    """EnvPool itself seeds lane i with seed + i, so that two groups would play the same lanes."""
    group = make("CartPole-v1", 8)
    starts = []
    for seed in (1, 2):
        group.reset(seed)
        starts += group.views.observation[0].tolist()
    assert len({tuple(row) for row in starts}) == 16


def test_id_that_only_envpool_has_needs_no_backend():
    """Gymnasium is asked first."""
    group = make_group(EnvConfig(id="Catch-v0"), 2)
    group.reset(1)
    assert group.views.observation[0].shape == (2, 10, 5)


def test_termination_is_kept_apart_from_truncation():
    """CartPole falls long before its limit."""
    group = make("CartPole-v1", 1)
    group.reset(1)
    while not group.ended_lanes.size:
        group.advance([np.zeros(1, np.int64)])
    assert group.views.flags[0] == Flags.TERMINATED
    angle = group.views.observation[0][0, 2]
    assert abs(angle) > 0.2  # the final observation, not the next episode's first


def test_bounds_that_envpool_leaves_out_are_infinite():
    """It says the smallest positive and the largest number for them."""
    leaf = make("BipedalWalker-v3").spec.observation.leaf
    assert set(leaf.low_array()) == {-math.inf}
    assert set(leaf.high_array()) == {math.inf}


def test_integer_actions_of_several_elements_are_multi_discrete():
    """Jumanji's Tetris takes a rotation and a column."""
    group = make("Tetris-v0")
    assert group.spec.action.leaf.nvec == (4, 10)
    play(group, 1, 2)
    assert group.counters().rebuilds == 0


def test_options_reach_the_environment():
    """env.kwargs, and a statistic of the last row of an episode."""
    kwargs = {"exclude_current_positions_from_observation": False}
    group = make("HalfCheetah-v5", kwargs=kwargs, max_episode_steps=3)
    assert group.spec.statistics == ("return", "length", "x_position")
    play(group, 1, 3)
    np.testing.assert_allclose(group.ended_statistics[:, 2], group.views.observation[0][:, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"id": "HalfCheeta-v5"}, "did you mean 'HalfCheetah-v5'"),
        ({"id": "HalfCheetah-v5", "kwargs": {"ctrl_cost_wieght": 1}}, "did you mean 'ctrl_cost_weight'"),
        ({"id": "HalfCheetah-v5", "kwargs": {"num_envs": 4}}, "set actor.lanes instead"),
        ({"id": "HalfCheetah-v5", "kwargs": {"ctrl_cost_weight": "dear"}}, "HalfCheetah-v5"),
        ({"id": "D1Basic-v1", "kwargs": {"stack_num": 4}}, "set policy.stack instead"),
        ({"id": "Pong-v5"}, "write ALE/Pong-v5"),
        ({"id": "ALE/CartPole-v1"}, "no Atari game"),
        ({"id": "ALE/Pong-v5", "backend": "vector"}, "set it to 'envpool' or 'ale_sync'"),
        ({"id": "Catch-v0", "backend": "gymnasium"}, "set env.backend to 'auto' or 'envpool'"),
        ({"id": "ALE/Pong-v5", "kwargs": {"frame_skip": 2}}, "set env.frame_skip instead"),
        ({"id": "Go9x9-v1"}, "several players"),
        ({"id": "Catch-v0", "max_episode_steps": 5}, "max_episode_steps"),
        ({"id": "Cig-v1"}, "game_args"),
        ({"id": "VizdoomCustom-v1"}, "cfg_path"),
        ({"id": "D1Basic-v1", "kwargs": {"cfg_path": "maps/no.cfg"}}, "maps/no.cfg is no file"),
    ],
)
def test_what_cannot_be_made_is_a_configuration_error(env, said):
    """It names the key, and what is nearest or where it is set."""
    with pytest.raises(ConfigError, match=said):
        make_group(EnvConfig(**{"backend": "envpool"} | env), 1)


def test_missing_qt_is_told_with_its_packages(monkeypatch):
    """Procgen is linked to Qt 5, which no wheel brings."""

    def make_spec(*args, **kwargs):
        raise ImportError("libQt5Core.so.5: cannot open shared object file")

    monkeypatch.setattr(envpool, "make_spec", make_spec)
    with pytest.raises(ConfigError, match="libqt5core5a and libqt5gui5"):
        Pool("CoinrunEasy-v0", 1)


def test_doom_plays_a_scenario_of_files(tmp_path):
    """A .cfg and .wad by path, relative ones from the working directory."""
    maps = Path(envpool.registration.registry.specs["Basic-v1"][2]["wad_path"]).parent
    for name in ("basic.cfg", "basic.wad"):
        (tmp_path / name).write_bytes((maps / name).read_bytes())
    group = make("VizdoomCustom-v1", 1, render=True, kwargs={"cfg_path": "basic.cfg", "wad_path": "basic.wad"})
    assert group.spec.observation.leaf.shape == (3, 84, 84)  # this scenario is in colour
    assert group.spec.action.leaf.nvec == (6,)  # left, right or neither, times attack
    assert group.spec.statistics == ("return", "length", "kills", "frags", "health")
    group.reset(1)
    assert group.render().shape == (240, 320, 3)
    group.close()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv of util-linux is not installed")
def test_doom_ends_with_an_actor_that_is_killed():
    """Its processes are asked for by the kernel, not by the actor, which cannot any more."""
    code = (
        "from seedbed.actor_svc.backends.pool import Pool\n"
        "pool = Pool('D1Basic-v1', 1); pool.reset(seed=1); print('up', flush=True); input()"
    )
    root, before = str(Path(__file__).parents[2]), set(glob.glob("/dev/shm/ViZDoom*"))
    actor = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": root},
    )
    try:
        assert actor.stdout.readline() == b"up\n"
        games = psutil.Process(actor.pid).children(recursive=True)
        assert games
        actor.kill()
        _, alive = psutil.wait_procs(games, timeout=20)
        assert not alive
    finally:
        actor.kill()
        actor.communicate()
        for left in set(glob.glob("/dev/shm/ViZDoom*")) - before:
            os.unlink(left)


def test_doom_files_that_are_none_are_refused(tmp_path):
    """ViZDoom itself would play another map in their place."""
    (tmp_path / "bad.wad").write_bytes(b"nonsense")
    (tmp_path / "empty.cfg").touch()
    with pytest.raises(ConfigError, match=r"bad\.wad is no WAD"):
        make("Basic-v1", kwargs={"wad_path": "bad.wad"})
    with pytest.raises(ConfigError, match="available_buttons"):
        make("VizdoomCustom-v1", kwargs={"cfg_path": "empty.cfg"})


def test_mujoco_is_not_shown():
    """EnvPool's renderer would end the process where OpenGL cannot be loaded."""
    group = make("HalfCheetah-v5", 1, render=True)
    group.reset(1)
    assert group.render() is None
