"""Environments in this process: good ones, and one broken in each way that a row or value can be."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from seedbed.services.tools.cli.env.in_process import CheckOptions, check_environment
from seedbed.services.tools.cli.env.verdicts import RuleVerdict, has_failed
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig

QUICK = CheckOptions(lanes=3, soak_steps=60)
HERE = "tests.services.tools.cli.env.test_in_process"


class Walk(gymnasium.Env[Any, Any]):
    """Ten steps on a line; it starts somewhere. `fault` breaks one rule."""

    def __init__(self, fault: str = "") -> None:
        self.observation_space: spaces.Space[Any] = spaces.Box(-20.0, 20.0, (1,), np.float32)
        if fault == "category":
            self.observation_space = spaces.Discrete(4)
        if fault != "no action space":
            self.action_space = spaces.Discrete(2)
        self.fault = fault
        self.metadata = {"statistics": ("reachd" if fault == "statistic" else "reached",)}
        if fault == "made":
            raise RuntimeError("no display")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        generator = np.random.default_rng() if self.fault == "seeds" else self.np_random
        self.at, self.left = generator.uniform(-1, 1), 10
        if self.fault == "no info":
            return self._observe()
        return self._observe(), {"info is none": None, "mask": {"action_mask": [1, 0, 1]}}.get(self.fault, {})

    def step(self, action: Any) -> Any:
        self.at += 2 * int(action) - 1
        self.left -= 1
        if self.fault == "raise" and self.left == 5:
            raise ValueError("lost my way")
        reward = np.nan if self.fault == "reward" and self.left == 5 else 1.0
        terminated: Any = int(self.left == 0) if self.fault == "terminated" else self.left == 0
        if self.fault == "four":
            return self._observe(), reward, terminated, {}
        return self._observe(), reward, terminated, False, {"reached": self.at} if terminated else {}

    def _observe(self) -> Any:
        if self.fault == "shape":
            return np.zeros(2, np.float32)
        if self.fault == "category":
            return 4 if self.left == 5 else 0
        value = np.nan if self.fault == "nan" and self.left == 5 else self.at + 100 * (self.fault == "bounds")
        return np.full(1, value, np.float64 if self.fault == "dtype" else np.float32)


def make(fault: str = "") -> Any:
    """For env.id."""
    return {"speed": 3} if fault == "no environment" else Walk(fault)


def make_none(num_envs: int) -> Any:
    """A vector environment whose simulator does not start."""
    raise RuntimeError(f"no display for {num_envs}")


def make_vector(num_envs: int) -> Any:
    """Too few environments, whatever is asked."""
    return gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")


def checked(env_id: str, **kwargs: Any) -> dict[str, Any]:
    """Results by rule."""
    return {item.name: item for item in check_environment(EnvConfig(id=env_id, kwargs=kwargs), QUICK)}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "seedbed.services.memory.env:make", f"{HERE}:make"])
def test_good_environments_keep_every_rule(env_id):
    """A vector form, a shipped one and a plain one; speed is told."""
    results = checked(env_id)
    assert not has_failed(list(results.values())), results
    assert results["seeds"].verdict is RuleVerdict.PASS
    assert "steps/s" in results["soak"].found


def test_a_statistic_that_no_episode_has_is_warned_of():
    """It breaks no rule; one that is there is named."""
    assert checked(f"{HERE}:make")["own statistics"].verdict is RuleVerdict.PASS
    found = checked(f"{HERE}:make", fault="statistic")["own statistics"]
    assert (found.verdict, "reachd" in found.found) == (RuleVerdict.WARN, True)


@pytest.mark.parametrize(
    ("fault", "rule", "found"),
    [
        ("made", "made", "no display"),
        ("shape", "dtypes", "shape (2,), its space says (1,)"),
        ("category", "values", "which is not in Discrete(4)"),
        ("four", "answers", "step returned 4 values, not 5"),
        ("no info", "answers", "reset returned a ndarray"),
        ("info is none", "answers", "reset returned an info of type NoneType"),
        ("mask", "masks", "reset: action_mask has 3 entries"),
        ("no environment", "made", "returned a dict"),
        ("no action space", "made", "action_space"),
        ("dtype", "dtypes", "is float64, its space says float32"),
        ("terminated", "dtypes", "terminated is a int, not a bool"),
        ("bounds", "bounds", "its space says -20.0 to 20.0"),
        ("nan", "no rebuilt lanes", "NaN"),
        ("reward", "no rebuilt lanes", "NaN"),
        ("raise", "no rebuilt lanes", "ValueError: lost my way"),
        ("seeds", "seeds", "observation differs 0 ticks after the reset"),
    ],
)
def test_a_fault_is_found_by_its_rule(fault, rule, found):
    """With the words of the cause."""
    result = checked(f"{HERE}:make", fault=fault)[rule]
    assert result.verdict is RuleVerdict.FAIL
    assert found in result.found


def test_without_autoreset_no_copy_is_stepped_past_its_end():
    """Its values are looked at as an environment with autoreset's are."""
    results = checked("tests.support.toy_envs:strict_vector")
    assert results["dtypes"].verdict is RuleVerdict.PASS
    assert results["no rebuilt lanes"].verdict is RuleVerdict.PASS


def test_a_vector_environment_that_cannot_be_made_is_told_with_its_place():
    """File and line of the author's code."""
    result = checked(f"{HERE}:make_none")["made"]
    assert result.verdict is RuleVerdict.FAIL
    assert "RuntimeError: no display" in result.found
    assert "test_in_process.py, line" in result.found


def test_a_vector_environment_of_another_size_is_found():
    """Its author ignored num_envs."""
    results = checked(f"{HERE}:make_vector")
    assert has_failed(list(results.values()))
    assert "(2, 4)" in " ".join(item.found for item in results.values()) or "2" in results["made"].found


def test_a_function_that_is_not_there_stops_at_once():
    """A mistake of the user's, not of the environment."""
    with pytest.raises(ConfigError, match="no_such"):
        checked(f"{HERE}:no_such")
