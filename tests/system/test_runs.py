"""Whole runs by `seedbed train`: they end, say so when started again, and go on with --resume."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.learner_svc.run.history import read_metrics
from seedbed.services.tools.cli.run_state import State, read_status
from seedbed.services.tools.cli.runs import last_step
from seedbed.shared.figures.columns import COLUMNS
from tests.support.deployment import living

FIGURES = Path(__file__).parents[2] / "docs" / "figures.md"
WORDS = (
    "actor.lanes=8", "learner.unroll_length=8", "learner.batch=16", "learner.max_policy_lag=1000",
    "learner.metrics_every_s=0.2", "learner.tensorboard=false", "learner.precision=fp32", "policy.hidden=[16]",
    "eval.episodes=4", "eval.lanes=4", "eval.every_s=0", "run.until_return=1000", "launch.video=false",
)  # fmt: skip


def train(folder, *words: str) -> str:
    """Run to the end; what it printed."""
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "train",
        "cartpole",
        "--run-dir",
        str(folder),
        *words,
        *WORDS,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def exit_codes(folder) -> dict[str, int]:
    """How each service's newest life ended, by its own log."""
    codes = {}
    for file in (folder / "logs").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        ends = [line["exit_code"] for line in lines if line["event"] == "service_ended"]
        if ends:
            codes[file.stem] = ends[-1]
    return codes


def test_a_run_ends_says_so_and_goes_on_only_when_asked_for_more(tmp_path):
    """Everyone exits with 0; started again it is still finished; with more steps counters and epochs go on.

    Its evaluations have shorter episodes than training, by a setting of their own.
    """
    folder = tmp_path / "run"
    train(folder, "--steps", "4000", "eval.env={max_episode_steps=5}")
    first = json.loads((folder / "summary.json").read_text())
    assert (first["eval_return_mean"], first["episode_return_mean"] > 5) == (5.0, True)
    assert (first["finished"], first["reason"], first["eval_episodes"]) == (True, "steps", 4)
    assert first["trained_steps"] >= 4000
    assert exit_codes(folder) == dict.fromkeys(("learner", "inference-0", "actor-0", "eval-0"), 0)

    assert "had finished before" in train(folder, "--resume", "--steps", "4000")
    assert json.loads((folder / "summary.json").read_text()) == first

    train(folder, "--resume", "--steps", "8000")
    second = json.loads((folder / "summary.json").read_text())
    assert second["finished"]
    assert second["trained_steps"] >= 8000
    assert second["run_id"] == first["run_id"]
    rows = read_metrics(folder / "metrics.csv")
    for name in ("trained_steps", "updates", "seconds", "env_steps"):
        values = [float(row[name]) for row in rows]
        assert values == sorted(values), f"{name} went back"
    columns = {column.name for column in COLUMNS}
    assert set(rows[0]) <= columns, "a column that is not declared"
    assert set(second) <= columns | set(re.findall(r"`(\w+)`", FIGURES.read_text())), "a figure that nobody explains"
    assert int(rows[0]["epoch"]) == 1
    assert int(rows[-1]["epoch"]) > 1
    assert read_status(folder).state is State.FINISHED
    assert living(folder) == []


def test_the_final_evaluation_may_be_cut_short(tmp_path):
    """Ctrl-C during it ends a run that is trained to its end, and its folder says so; what was trained is saved."""
    folder = tmp_path / "run"
    words = ["--run-dir", str(folder), *WORDS, "--seconds", "0.5", "eval.episodes=1000000"]
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "train", "cartpole", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        assert any(re.search(r"evaluating  episode \d+ of 1000000", line) for line in run.stdout)
        run.send_signal(signal.SIGINT)
        said = run.stdout.read()
        assert run.wait(60) == 130
    assert "cut short" in said
    status = read_status(folder)
    assert (status.state, status.reason) == (State.STOPPED, "Ctrl-C, in the final evaluation")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["finished"], summary["reason"]) == (False, "seconds")
    assert summary["evaluation_seconds"] > 0
    assert last_step(folder) == summary["updates"]
    assert living(folder) == []


@pytest.mark.slow
def test_a_run_that_dies_at_the_same_place_again_and_again_ends_with_the_cause(tmp_path):
    """Each life acts some steps, so that only what is saved tells that nothing goes on."""
    folder = tmp_path / "run"
    words = ["algorithm.learning_rate=1e30", "algorithm.grad_clip=0", "--run-dir", str(folder)]
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "train", "cartpole", *words, *WORDS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert ended.returncode == 78, ended.stdout
    status = read_status(folder)
    assert (status.state, "gradient norm" in ended.stdout) == (State.FAILED, True), ended.stdout
    assert living(folder) == []
