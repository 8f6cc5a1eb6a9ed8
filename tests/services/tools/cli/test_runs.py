"""Runs as users name them, and as they are listed."""

import json
import os
from pathlib import Path

import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.completion import offer_experiments, offer_runs, offer_settings
from seedbed.services.tools.cli.listing import list_experiments, list_runs
from seedbed.services.tools.cli.run_state import HeldRun, RunStatus, State
from seedbed.services.tools.cli.runs import Need, resolve_run, runs_of
from seedbed.shared.errors import ConfigError
from tests.support.run_folders import row, write_run

GOOD, FAILED = "toy-20260101-000000", "toy-20260102-000000"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a good run and a newer one that failed at its start."""
    monkeypatch.chdir(tmp_path)
    good = write_run(tmp_path / "runs" / GOOD, [row(number) for number in range(1, 9)], finished=True)
    os.utime(good / "config.toml", (1, 1))
    add_checkpoint(good, 7)
    fail(write_run(tmp_path / "runs" / FAILED, []))
    return tmp_path / "runs"


def add_checkpoint(run: Path, step: int) -> None:
    """As far as names tell."""
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / f"{step:08d}-latest-step{step}.json").touch()


def fail(run: Path) -> None:
    """As its launcher keeps it."""
    (run / "services").mkdir(exist_ok=True)
    (run / "services" / "experiment.toml").write_text('[env]\nid = "Toy-v0"\n')
    with HeldRun(run) as held:
        held.end(RunStatus(state=State.FAILED, service="actor-0", reason="died 5 times", last_words="OSError: no"))


@pytest.mark.parametrize("need", Need)
def test_a_newer_run_that_failed_is_passed_over_and_the_user_is_told(runs: Path, need: Need) -> None:
    """With its cause: it might have been meant."""
    told: list[str] = []
    assert resolve_run("toy", need, tell=told.append) == runs / GOOD
    assert len(told) == 1
    assert FAILED in told[0]
    assert "OSError: no" in told[0]


def test_an_experiment_has_only_the_runs_that_are_called_after_it_and_a_time(runs: Path) -> None:
    """Another one's name may begin alike, and a user's own folders may too."""
    for name in ("toy-3", "toy-5-20260301-000000", "toys-20260301-000000"):
        add_checkpoint(write_run(runs / name, [row(1)]), 1)
    newest = write_run(runs / "toy-20260103-000000-2", [row(1)])
    add_checkpoint(newest, 1)
    assert [run.name for run in runs_of("toy")] == [newest.name, FAILED, GOOD]
    assert resolve_run("toy", Need.POLICY) == newest
    assert resolve_run("toy-3", Need.POLICY) == runs / "toy-3"


def test_an_evaluation_that_lies_far_back_is_listed_all_the_same(runs: Path) -> None:
    """Newer than what a summary of an earlier life says."""
    rows = [row(1, evaluated="9.25"), *(row(number) for number in range(2, 4000))]
    write_run(runs / "toy-20260104-000000", rows, finished=False)
    assert next(run for run in list_runs() if run.name == "toy-20260104-000000").eval_return_mean == 9.25


def test_a_checkpoint_of_untrained_weights_makes_no_good_run(runs: Path) -> None:
    """A run whose services died before the first update leaves one."""
    add_checkpoint(runs / FAILED, 0)
    assert resolve_run("toy", Need.POLICY, tell=lambda _: None) == runs / GOOD
    add_checkpoint(runs / FAILED, 1)
    told: list[str] = []
    assert resolve_run("toy", Need.POLICY, tell=told.append) == runs / FAILED
    assert told == []


def test_a_run_that_has_just_begun_can_be_followed(runs: Path) -> None:
    """It has no row yet, and will have some soon; a policy it has not."""
    with HeldRun(runs / FAILED):
        assert resolve_run("toy", Need.METRICS) == runs / FAILED
        assert resolve_run("toy", Need.POLICY, tell=lambda _: None) == runs / GOOD


def test_a_folder_is_taken_as_it_is_named(runs: Path) -> None:
    """Whoever names one means that one."""
    assert resolve_run(FAILED, Need.POLICY) == runs / FAILED


def test_if_no_run_has_what_is_needed_the_newest_says_why(runs: Path) -> None:
    """State and cause in the error."""
    (runs / GOOD / "checkpoints" / "00000007-latest-step7.json").unlink()
    with pytest.raises(ConfigError, match=rf"of its 2 runs.*{FAILED} failed \(actor-0 died 5 times: OSError: no\)"):
        resolve_run("toy", Need.POLICY)


@pytest.mark.parametrize(("name", "hint"), [("toyy", "did you mean toy?"), ("zzz", GOOD)])
def test_a_wrong_name_is_answered_with_those_that_are_there(runs: Path, name: str, hint: str) -> None:
    """The nearest, or all."""
    with pytest.raises(ConfigError) as raised:
        resolve_run(name, Need.POLICY)
    assert hint in str(raised.value)


def test_runs_are_listed_with_state_cause_and_result(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first; the same for programs."""
    assert main(["runs", "--json"]) == 0
    failed, good = json.loads(capsys.readouterr().out)
    assert (failed["name"], failed["state"], failed["trained_steps"]) == (FAILED, "failed", None)
    assert "OSError: no" in failed["cause"]
    assert (good["name"], good["state"], good["env_id"], good["experiment"]) == (GOOD, "finished", "Toy-v0", "toy")
    assert (good["return_mean"], good["eval_return_mean"], good["checkpoint_update"]) == (4.0, 9.5, 7)
    assert main(["runs"]) == 0
    text = capsys.readouterr().out
    assert text.index(FAILED) < text.index(GOOD), "whole names, also through a pipe"
    assert "OSError: no" in text
    assert main(["runs", "other"]) == 0
    assert "no runs of other" in capsys.readouterr().out


def test_a_running_run_is_listed_as_far_as_it_came(runs: Path) -> None:
    """By its table, which is newer than an earlier life's summary."""
    with HeldRun(runs / GOOD):
        running = next(run for run in list_runs() if run.name == GOOD)
    assert running.status.state is State.RUNNING
    assert running.trained_steps == 800
    assert running.eval_return_mean == 9.5


def test_runs_of_seeds_are_listed_too(runs: Path) -> None:
    """They lie a folder deeper."""
    write_run(runs / "toy-20260103-000000" / "seed-1", [row(1)])
    assert "toy-20260103-000000/seed-1" in [run.name for run in list_runs("toy-20260103")]


def test_damaged_runs_are_listed(runs: Path) -> None:
    """With what can be read of them."""
    for name in ("config.toml", "summary.json", "metrics.csv", "run.json"):
        (runs / GOOD / name).write_bytes(b"\xff\x00,[")
    (found,) = list_runs(GOOD)
    assert (found.env_id, found.trained_steps) == ("", None)


def test_experiments_are_listed_with_those_of_the_working_directory(tmp_path: Path) -> None:
    """A line for each; files that name no environment are none."""
    (tmp_path / "mine.toml").write_text('# A walk. And more.\n[env]\nid = "mine:make"\n')
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    found = {item.name: item for item in list_experiments(tmp_path)}
    mine = found[str(tmp_path / "mine.toml")]
    assert (mine.env_id, mine.about) == ("mine:make", "A walk")
    assert found["cartpole"].about
    assert str(tmp_path / "pyproject.toml") not in found


def test_a_shell_is_offered_experiments_runs_and_settings(runs: Path) -> None:
    """Names behind Tab; a setting's values behind its `=`."""
    assert [word for word, _ in offer_experiments("cart")] == ["cartpole", "cartpole_appo", "cartpole_r2d2"]
    assert [word for word, _ in offer_runs("to")] == ["toy", FAILED, GOOD]
    assert [word for word, _ in offer_settings("learner.bat")] == ["learner.batch=", "learner.batch=32"]
    assert ("eval.greedy=false", "") in offer_settings("eval.greedy=")
    assert offer_settings("learner.batch=") == []
    assert len(offer_settings("learner.")) > 10
