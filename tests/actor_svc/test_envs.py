"""From configuration to groups: which back-end, which seeds, and what is said when it cannot be."""

from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from seedbed.actor_svc.backends.lanes import LaneBackend
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.actor_svc.envs import describe_backend, make_backend, make_group, newer_id
from seedbed.services.tools.cli.env.bare import make_bare
from seedbed.shared.errors import ConfigError, EnvError
from seedbed.shared.runtime.config import EnvConfig
from tests.support import toy_envs


def play(group, seed, ticks, actions_seed=5):
    """All that a group sends over some ticks of random actions."""
    generator = np.random.default_rng(actions_seed)
    sent = [group.reset(seed).payload]
    sent += [group.step(group.random_actions(generator)).payload for _ in range(ticks)]
    return sent


@pytest.mark.parametrize("backend", ["vector", "gymnasium"])
def test_same_seed_same_episodes(backend):
    """A group's seed decides everything, whatever was played before; another seed plays others."""
    env = EnvConfig(id="CartPole-v1", backend=backend)
    once, again = make_group(env, 4), make_group(env, 4)
    first = play(once, 7, 60)
    play(again, 3, 10)
    assert play(again, 7, 60) == first
    assert play(again, 8, 60) != first
    once.close()
    again.close()


@pytest.mark.parametrize("backend", ["vector", "gymnasium"])
def test_lanes_of_a_group_differ(backend):
    """No two lanes begin alike, nor do groups with neighbouring seeds share a lane."""
    env = EnvConfig(id="CartPole-v1", backend=backend)
    starts = []
    for seed in (1, 2):
        group = make_group(env, 8)
        group.reset(seed)
        starts += group.views.observation[0].tolist()
    assert len({tuple(row) for row in starts}) == 16


def test_vector_cartpole_equals_single_environments():
    """Started in the same states, the vector form and single environments send the same rows until the lanes reset."""
    vector = make_group(EnvConfig(id="CartPole-v1", backend="vector"), 8)
    vector.reset(3)
    singles = [gymnasium.make("CartPole-v1") for _ in range(8)]
    for single, state in zip(singles, vector._backend._env.state.T, strict=True):
        single.reset()
        single.unwrapped.state = state.copy()
    generator = np.random.default_rng(1)
    alive, lengths, totals = set(range(8)), {}, np.zeros(8)
    for _ in range(200):
        (actions,) = vector.random_actions(generator)
        vector.advance([actions])
        for lane in sorted(alive):
            observation, reward, terminated, truncated, _ = singles[lane].step(int(actions[lane]))
            np.testing.assert_allclose(vector.views.observation[0][lane], observation, atol=1e-6)
            assert vector.views.reward[lane] == reward
            assert vector.views.flags[lane] == terminated + 2 * truncated
            totals[lane] += reward
            if terminated or truncated:
                alive.discard(lane)
                row = vector.ended_statistics[vector.ended_lanes.tolist().index(lane)]
                lengths[lane] = row.tolist()
    assert not alive
    assert [lengths[lane] for lane in range(8)] == [[total, total] for total in totals]


def test_vector_and_single_forms_have_one_specification():
    """A policy trained on one form acts on the other."""
    specs = [make_group(EnvConfig(id="CartPole-v1", backend=name), 2).spec for name in ("vector", "gymnasium")]
    assert specs[0] == specs[1]
    assert specs[0].digest() == specs[1].digest()


def test_auto_takes_the_vector_form_where_there_is_one():
    """CartPole has one, Acrobot has none; a picture comes from single environments."""
    assert isinstance(make_backend(EnvConfig(id="CartPole-v1"), 2), VectorBackend)
    assert isinstance(make_backend(EnvConfig(id="Acrobot-v1"), 2), LaneBackend)
    group = make_group(EnvConfig(id="CartPole-v1"), 1, render=True)
    group.reset(1)
    picture = group.render()
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    group.close()


@pytest.mark.parametrize("backend", ["vector", "gymnasium"])
def test_max_episode_steps_truncates(backend):
    """The configured limit ends episodes as truncated."""
    group = make_group(EnvConfig(id="CartPole-v1", backend=backend, max_episode_steps=5), 2)
    group.reset(1)
    for _ in range(5):
        group.advance([np.array([0, 1])])
    assert group.views.flags.tolist() == [2, 2]
    assert group.ended_statistics.tolist() == [[5, 5], [5, 5]]


def test_function_of_a_module():
    """module:function gives an environment, with env.kwargs, and env.max_episode_steps around it."""
    env = EnvConfig(id="tests.support.toy_envs:CountingEnv", kwargs={"limit": 9}, max_episode_steps=2)
    group = make_group(env, 2)
    assert group.seeding == "lane"
    assert group.spec.settings == (("kwargs", '{"limit": 9}'), ("max_episode_steps", "2"))
    group.reset(1)
    for _ in range(2):
        group.advance([np.zeros(2, np.int64)])
    assert group.ended_lanes.tolist() == [0, 1]
    assert make_group(EnvConfig(id="tests.support.toy_envs:counting_vector"), 2).seeding == "group"


@pytest.mark.parametrize("function", ["LimitedVectorEnv", "counting_sync"])
def test_function_that_takes_num_envs_keeps_the_limit(function):
    """It gets env.max_episode_steps where it takes that; Gymnasium's own loop is limited in any case."""
    group = make_group(EnvConfig(id=f"tests.support.toy_envs:{function}", max_episode_steps=2), 3)
    group.reset(1)
    for _ in range(2):
        group.advance([np.zeros(3, np.int64)])
    assert group.ended_lanes.tolist() == [0, 1, 2]


def test_limit_that_a_function_cannot_keep_is_refused():
    """It would be ignored without a word."""
    with pytest.raises(ConfigError, match=r"env\.max_episode_steps: tests\.support\.toy_envs:counting_vector"):
        make_group(EnvConfig(id="tests.support.toy_envs:counting_vector", max_episode_steps=2), 3)


def test_function_that_takes_lanes_returns_a_backend():
    """It gets the number of lanes, env.kwargs, and env.max_episode_steps where it takes that."""
    name = "tests.support.toy_envs:counting_backend"
    for env in (EnvConfig(id=name, kwargs={"limit": 2}), EnvConfig(id=name, max_episode_steps=2)):
        group = make_group(env, 3)
        group.reset(1)
        for _ in range(2):
            group.advance([np.zeros(3, np.int64)])
        assert group.ended_lanes.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="max_episode_steps"):
        make_group(EnvConfig(id="toy", max_episode_steps=2), 1, make=lambda lanes: None)


REGISTERS = """
import gymnasium

gymnasium.register("own/{name}-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=2)
"""


def test_id_that_a_module_registers(tmp_path, monkeypatch):
    """module:Name-v0 is made by its registration, wherever the id is looked at first."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, look in (
        ("made", lambda env: None),
        ("described", lambda env: describe_backend(env)),
        ("bare", lambda env: make_bare(env, 1).close()),
    ):
        (tmp_path / f"registers_{name}.py").write_text(REGISTERS.format(name=name))
        env = EnvConfig(id=f"registers_{name}:own/{name}-v0")
        look(env)
        group = make_group(env, 2)
        group.reset(1)
        for _ in range(2):
            group.advance([np.zeros(2, np.int64)])
        assert group.ended_lanes.tolist() == [0, 1]
        assert describe_backend(env) == "gymnasium"


def test_newest_version_of_an_id_that_a_module_registers(tmp_path, monkeypatch):
    """It is named as the run names the older one."""
    monkeypatch.syspath_prepend(tmp_path)
    code = REGISTERS.format(name="newer")
    (tmp_path / "registers_newer.py").write_text(code + code.replace("-v0", "-v1"))
    assert describe_backend(EnvConfig(id="registers_newer:own/newer-v1")) == "gymnasium"
    assert newer_id("registers_newer:own/newer-v0") == "registers_newer:own/newer-v1"
    assert newer_id("registers_newer:own/newer-v1") == ""


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("no_such_module:Mine-v0", "No module named 'no_such_module'"),
        ("tests.support.toy_envs:Mine-v0", "no environment is called"),
        ("fails_to_register:Mine-v0", r"importing fails_to_register failed: RuntimeError: boom \(.*line 1\)"),
    ],
)
def test_id_that_no_module_registers(tmp_path, monkeypatch, env_id, said):
    """The module or the id is named, with the place of the mistake."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "fails_to_register.py").write_text("raise RuntimeError('boom')")
    for look in (make_group, lambda env, lanes: describe_backend(env), make_bare):
        with pytest.raises(ConfigError, match=said):
            look(EnvConfig(id=env_id), 1)


def test_lanes_may_be_a_setting_of_the_environment():
    """A function that takes lanes and returns no backend is told the way out, which works."""
    name = "tests.support.toy_envs:LaneChange"
    with pytest.raises(ConfigError, match=r"returned a LaneChange.*set lanes in env\.kwargs"):
        make_group(EnvConfig(id=name), 2)
    group = make_group(EnvConfig(id=name, kwargs={"lanes": 1}), 2)
    group.reset(1)
    group.advance([np.zeros(2, np.int64)])
    assert group.ended_lanes.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"id": "CartPol-v1"}, "CartPol"),
        ({"id": "CartPole-v1", "kwargs": {"gravy": 1}}, "gravy"),
        ({"id": "Acrobot-v1", "backend": "vector"}, "no vector form"),
        ({"id": "tests.support.toy_envs:nothing"}, "nothing"),
        ({"id": "no.such.module:make"}, "no.such"),
        ({"id": "tests.support.toy_envs:np"}, "no function"),
        ({"id": "builtins:dict"}, "returned a dict"),
    ],
)
def test_configuration_that_names_no_environment(env, said):
    """The error says what in [env] to look at."""
    with pytest.raises(ConfigError, match=said):
        make_group(EnvConfig(**env), 1)


def test_missing_package_of_a_module_is_told(tmp_path, monkeypatch):
    """What the module itself imports is not searched for in the working directory."""
    (tmp_path / "needy.py").write_text("import no_such_simulator\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match=r"No module named 'no_such_simulator' \(.*needy\.py, line 1\); install 'no_such_simulator'"
    ):
        make_group(EnvConfig(id="needy:make"), 1)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("def make(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_at_import_is_told(tmp_path, monkeypatch, code, said):
    """Whatever its code does; no restart helps."""
    name = f"failing_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"importing {name} failed: {said}"):
        make_group(EnvConfig(id=f"{name}:make"), 1)


def test_environment_that_cannot_be_made():
    """What an author's own code raises is told as it is."""

    def make():
        raise RuntimeError("simulator licence expired")

    with pytest.raises(EnvError, match="licence expired"):
        make_group(EnvConfig(id="broken"), 1, make=make)


@pytest.mark.skipif(find_spec("mujoco") is not None, reason="mujoco is installed")
@pytest.mark.skipif(find_spec("envpool") is None, reason="envpool is not installed")
def test_auto_falls_to_envpool_where_gymnasiums_own_lacks_its_package():
    """HalfCheetah-v5 is Gymnasium's by name, but steps with a library that is not there."""
    group = make_group(EnvConfig(id="HalfCheetah-v5"), 2)
    try:
        group.reset(1)
        assert group.spec.observation.leaves()[0].shape == (17,)
    finally:
        group.close()
    with pytest.raises(ConfigError, match=r"env\.backend = 'envpool'"):
        make_group(EnvConfig(id="HalfCheetah-v5", backend="gymnasium"), 2)


class BadPainter(toy_envs.CountingEnv):
    """Draws something else than a picture."""

    def __init__(self, painting):
        super().__init__()
        self.painting = painting

    def render(self):
        return self.painting


@pytest.mark.parametrize(
    ("painting", "said"),
    [
        ("a wall", "a str"),
        ([], r"an array \[0\]"),
        (np.zeros((4, 5), np.uint8), r"an array \[4, 5\]"),
        ([[1, 2], [3]], "inhomogeneous"),
    ],
)
def test_what_is_no_picture_is_named(painting, said):
    """With what it should be."""
    group = make_group(EnvConfig(id="painter"), 1, make=lambda: BadPainter(painting))
    with pytest.raises(EnvError, match=said):
        group.render()
    group.close()


def test_image_layout_comes_from_the_environment():
    """uint8 of rank 3 needs metadata['image']; without it the error says so."""

    class Camera(toy_envs.CountingEnv):
        metadata = {"image": "HWC"}  # noqa: RUF012

        def __init__(self):
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

        def reset(self, *, seed=None, options=None):
            return np.zeros((8, 8, 3), np.uint8), {}

    class Silent(Camera):
        metadata = {}  # noqa: RUF012

    group = make_group(EnvConfig(id="camera"), 1, make=Camera)
    assert group.spec.observation.leaf.image == "HWC"
    with pytest.raises(ConfigError, match="channels"):
        make_group(EnvConfig(id="camera"), 1, make=Silent)


def test_pendulum_takes_a_continuous_action():
    """A Box action reaches the environment as its dtype and shape; every end is a truncation."""
    group = make_group(EnvConfig(id="Pendulum-v1", max_episode_steps=3), 2)
    group.reset(1)
    generator = np.random.default_rng(1)
    for _ in range(3):
        actions = group.random_actions(generator)
        assert actions[0].shape == (2, 1)
        assert actions[0].dtype == np.float32
        group.advance(actions)
    assert group.views.flags.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"id": "CartPole-v1"}, "vector"),
        ({"id": "CartPole-v1", "backend": "gymnasium"}, "gymnasium"),
        ({"id": "Acrobot-v1"}, "gymnasium"),
        ({"id": "ALE/Pong-v5", "backend": "ale_sync"}, "ale_sync"),
        ({"id": "seedbed.services.memory.env:make"}, "function"),
    ],
)
def test_what_steps_the_lanes_has_a_name(env, name):
    """For benchmarks, which are compared by it."""
    assert describe_backend(EnvConfig(**env)) == name
