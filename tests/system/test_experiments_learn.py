"""The experiments that come with seedbed, trained by `seedbed train` until they reach what docs/benchmarks.md says."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment import living

ROOT = Path(__file__).parents[2]
needs_envpool = pytest.mark.skipif(importlib.util.find_spec("envpool") is None, reason="envpool is not installed")


def train(folder, experiment, *words, seconds):
    """The figures of one seed: trained, evaluated, and played again on seeds that no evaluation has seen."""
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "train", experiment, *words, "--seeds", "1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    ended = subprocess.run(
        [*command, "--run-dir", str(folder), "--seconds", str(seconds), "launch.video=false"],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=3 * seconds + 600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert living(folder) == []
    (figures,) = json.loads((folder / "seeds.json").read_text())["seeds"]
    return figures


@pytest.mark.learning
@pytest.mark.parametrize(
    ("experiment", "asked", "fresh", "seconds"),
    [
        ("cartpole", 475.0, 475.0, 60),
        ("memory", 0.95, 0.95, 180),
        ("cartpole_appo", 475.0, 450.0, 60),
        ("cartpole_r2d2", 475.0, 400.0, 180),
        ("memory_r2d2", 0.95, 0.9, 180),
        ("acrobot", -90.0, -95.0, 180),
        ("pendulum", -200.0, -200.0, 180),
        pytest.param("mujoco", 950.0, 900.0, 600, marks=needs_envpool),
        pytest.param("doom", 3.0, 3.0, 1800, marks=needs_envpool),
        pytest.param("football", 0.95, 0.9, 1800, marks=needs_envpool),
    ],
)
def test_a_shipped_experiment_learns(tmp_path, capsys, experiment, asked, fresh, seconds):
    """To its threshold, in its time; on fresh seeds nearly as well, for no threshold chose those."""
    figures = train(tmp_path / "run", experiment, seconds=seconds)
    with capsys.disabled():
        print("\n" + json.dumps({"experiment": experiment} | figures))
    assert figures["eval_return_mean"] >= asked
    assert figures["fresh_return_mean"] >= fresh


@pytest.mark.learning
def test_without_memory_the_cue_is_guessed(tmp_path):
    """A quarter of four: what the LSTM's run shows is the LSTM's."""
    figures = train(tmp_path / "run", "memory", "policy.lstm=0", "run.steps=1000000", seconds=180)
    for name in ("eval_return_mean", "fresh_return_mean"):
        assert figures[name] == pytest.approx(0.25, abs=0.1)  # three standard errors of 200 episodes
