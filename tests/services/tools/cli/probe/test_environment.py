"""Looking at an environment: what it is, and every way in which its author's code may fail, told by file and line."""

import time

import pytest

from seedbed.services.tools.cli.probe.ask import probe_environment
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig

MINE = """
import os, time
import gymnasium
import numpy as np

class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, how):
        print("said by the environment")
        self.how = how
    def reset(self, seed=None, options=None):
        return np.zeros(3, np.float32), {}
    def step(self, action):
        if self.how == "raise": raise KeyError("oops")  # line 15
        if self.how == "shape": return np.zeros(4, np.float32), 0.0, False, False, {}
        if self.how == "abort": os.abort()  # line 17
        if self.how == "leave": os._exit(3)
        if self.how == "hang": time.sleep(1000)  # line 19
        return np.zeros(3, np.float32), 0.0, False, False, {}

def make(how="well"):
    if how == "divide": 1 / 0  # line 23
    return Env(how)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with modules of a user's own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def mine(how: str = "well") -> EnvConfig:
    """The user's environment."""
    return EnvConfig(id="mine:make", kwargs={"how": how})


def test_an_environment_is_made_stepped_and_described(here):
    """Spaces, what steps it, how fast; what it prints disturbs nobody."""
    found = probe_environment(mine(), 30.0)
    assert found.spec.observation.leaves()[0].shape == (3,)
    assert (found.backend, found.lanes, found.about.layers) == ("function", 1, ("Env",))
    assert 0 < found.tick_s < 1
    assert not found.failure


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", r"KeyError: 'oops' \(mine\.py, line 15\)"),
        ("shape", r"shape \(4,\), its space says \(3,\)"),
        ("abort", r"SIGABRT \(mine\.py, line 17\)"),
        ("leave", "exit status 3"),
        ("divide", r"ZeroDivisionError: .* \(mine\.py, line 23\)"),
    ],
)
def test_what_its_author_did_wrong_is_told_by_place(here, how, said):
    """Whatever it does to its own process."""
    with pytest.raises(ConfigError, match=said):
        probe_environment(mine(how), 30.0)


def test_an_environment_that_hangs_is_given_up(here):
    """After its time, with where it hung."""
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"longer than 2 s .*\(mine\.py, line 19\)"):
        probe_environment(mine("hang"), 2.0)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1 +", r"SyntaxError: .*\(broken\.py, line 1\)"),
        ("import os\nimport no_such_thing", r"'no_such_thing' \(broken\.py, line 2\); install 'no_such_thing'"),
        ("from shared.constants import X", r"\(broken\.py, line 1\); install 'shared', or fix the import"),
        ("maker = print", r"did you mean broken:maker"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_by_place(here, text, said):
    """The mistake first, not what might be missing."""
    (here / "broken.py").write_text(text)
    with pytest.raises(ConfigError, match=said):
        probe_environment(EnvConfig(id="broken:make"), 30.0)


def test_an_id_that_nobody_has_is_answered_with_the_nearest():
    """Whoever has it."""
    with pytest.raises(ConfigError, match="did you mean 'CartPole-v1'"):
        probe_environment(EnvConfig(id="CartPol-v1"), 30.0)


def test_an_id_that_was_replaced_is_not_stepped_by_somebody_else():
    """EnvPool's older environment of the same name is another task."""
    with pytest.raises(ConfigError, match="Taxi-v4"):
        probe_environment(EnvConfig(id="Taxi-v3"), 30.0)
