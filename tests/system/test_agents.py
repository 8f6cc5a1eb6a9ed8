"""A whole run of several agents in one world, some of which die: lanes without an agent pass through every service."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.learner_svc.run.history import read_metrics
from tests.support.deployment import living

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")

ROOT = Path(__file__).parents[2]  # where tests.support is found
EXPERIMENT = """
[run]
name = "agents"

[env]
id = "seedbed.services.pettingzoo.env:make"
kwargs = { env = "tests.support.arena:Arena", options = { limit = 6, mask = "info" } }
"""
WORDS = (
    "actor.lanes=12", "learner.unroll_length=8", "learner.batch=12", "learner.max_policy_lag=1000",
    "learner.metrics_every_s=0.2", "learner.tensorboard=false", "learner.precision=fp32", "policy.hidden=[16]",
    "eval.episodes=6", "eval.lanes=6", "eval.every_s=0", "launch.video=false",
)  # fmt: skip


@pytest.mark.slow
def test_agents_that_die_train_with_those_that_live(tmp_path):
    """Nobody's episode is aborted, ends come early where an agent died, and an evaluation counts every agent's."""
    experiment, folder = tmp_path / "agents.toml", tmp_path / "run"
    experiment.write_text(EXPERIMENT)
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "train",
        str(experiment),
        "--run-dir",
        str(folder),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    ended = subprocess.run(
        [*command, "--steps", "3000", *WORDS], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["finished"], summary["aborted_episodes"], summary["eval_episodes"]) == (True, 0, 6)
    assert summary["trained_steps"] >= 3000
    lengths = [float(row["length_mean"]) for row in read_metrics(folder / "metrics.csv") if row["length_mean"]]
    assert 1 < min(lengths) < 6
    assert living(folder) == []
