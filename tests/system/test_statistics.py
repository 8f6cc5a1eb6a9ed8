"""An environment's own statistic through whole runs: in every figure, ending a run, asked for by a wrong name."""

import json
import os
import subprocess
import sys

from seedbed.learner_svc.run.history import read_metrics

ENV = '[env]\nid = "seedbed.services.memory.env:make"\nkwargs = {cues = 2, min_delay = 0, max_delay = 1}\n'
WORDS = (
    "actor.lanes=8", "learner.unroll_length=8", "learner.batch=16", "learner.max_policy_lag=1000",
    "learner.metrics_every_s=0.2", "learner.precision=fp32", "policy.hidden=[16]", "eval.episodes=8", "eval.lanes=4",
    "launch.video=false",
)  # fmt: skip


def train(tmp_path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, without a terminal."""
    file = tmp_path / "two.toml"
    file.write_text(ENV)
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "train",
        str(file),
        "--run-dir",
        str(tmp_path / "run"),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    return subprocess.run([*command, *words, *WORDS], env=environment, capture_output=True, text=True, timeout=140)


def test_a_statistic_is_in_every_figure_and_ends_a_run_that_was_resumed(tmp_path):
    """Columns of training and evaluation, summary, events, terminal; a resumed run goes on in the same columns."""
    ended = train(tmp_path, "--steps", "6000")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    run = tmp_path / "run"
    first = json.loads((run / "summary.json").read_text())
    assert first["eval_success_mean"] == first["eval_return_mean"]  # it is what this environment rewards
    assert 0.0 < first["episode_success_mean"] <= 1.0
    assert any(line.split()[1:2] == ["success"] for line in ended.stdout.splitlines())
    head = list(read_metrics(run / "metrics.csv")[0])

    ended = train(tmp_path, "--resume", "--steps", "100000000", "--until", "success >= 0.2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    second = json.loads((run / "summary.json").read_text())
    assert (second["finished"], second["reason"]) == (True, "until")
    rows = read_metrics(run / "metrics.csv")
    assert list(rows[0])[: len(head)] == head
    assert any(float(row["eval_success_mean"] or -1) == round(second["eval_success_mean"], 6) for row in rows)
    assert {row["epoch"] for row in rows if row["episode_success_mean"]} == {"1", "2"}


def test_a_condition_on_a_statistic_that_is_not_there_ends_the_run_before_it_trains(tmp_path):
    """With the names that there are, and the exit status of a wrong setting."""
    ended = train(tmp_path, "--until", "wins >= 0.9")
    assert ended.returncode == 78
    told = (tmp_path / "run" / "logs" / "learner.stderr").read_text()
    assert "run.until: the environment reports no statistic 'wins'; it reports return, length, success" in told
    assert not (tmp_path / "run" / "checkpoints").exists() or not list((tmp_path / "run" / "checkpoints").iterdir())
