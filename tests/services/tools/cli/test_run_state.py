"""How a run's folder says where it is and how it ended."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seedbed.learner_svc.run.folder import RunFolder
from seedbed.services.tools.cli.launcher import Ended
from seedbed.services.tools.cli.plan import Process
from seedbed.services.tools.cli.run_state import LEARNER_LOCK, HeldRun, RunStatus, State, read_status
from seedbed.services.tools.cli.supervisor import Outcome
from seedbed.services.tools.cli.training import describe_end, tell_restarts
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.locks import take

FAILED = RunStatus(state=State.FAILED, service="learner", reason="died 5 times", last_words="\nmat1 and mat2\n  File x")
HOLD = """
import sys; from pathlib import Path; from seedbed.services.tools.cli.run_state import HeldRun
with HeldRun(Path(sys.argv[1])):
    print("held", flush=True); sys.stdin.read()
"""


def summarise(folder: Path, **summary: object) -> None:
    """As a learner that left in order."""
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_run_is_running_until_its_launcher_says_how_it_ended(tmp_path: Path) -> None:
    """The cause stays with the folder: service, reason, last words and time."""
    with HeldRun(tmp_path) as held:
        begun = read_status(tmp_path)
        assert begun.state is State.RUNNING
        assert begun.at == pytest.approx(time.time(), abs=60)
        held.end(FAILED)
    status = read_status(tmp_path)
    assert (status.state, status.service, status.reason) == (State.FAILED, "learner", "died 5 times")
    assert status.last_words == FAILED.last_words
    assert status.cause == "learner died 5 times: mat1 and mat2"
    assert status.at is not None
    assert begun.at is not None
    assert status.at >= begun.at


def test_a_launcher_that_was_killed_leaves_an_interrupted_run(tmp_path: Path) -> None:
    """It could write nothing, and nobody holds the folder any more."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "held\n"
        assert read_status(tmp_path).state is State.RUNNING
        with pytest.raises(ConfigError, match=r"is held by process \d+ on .* since"):
            HeldRun(tmp_path)
        launcher.kill()
        launcher.wait()
    status = read_status(tmp_path)
    assert status.state is State.INTERRUPTED
    assert status.cause


def test_a_folder_whose_learner_was_started_by_itself_is_refused(tmp_path: Path) -> None:
    """Before anything in it is changed."""
    held = take(tmp_path / LEARNER_LOCK)
    with pytest.raises(ConfigError, match=r"is held by process \d+"):
        HeldRun(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [LEARNER_LOCK]
    os.close(held)


def test_an_error_of_the_launcher_is_the_cause(tmp_path: Path) -> None:
    """A run that never came to its services has failed, too."""
    with pytest.raises(ConfigError), HeldRun(tmp_path):
        raise ConfigError("no room")
    status = read_status(tmp_path)
    assert (status.state, status.service) == (State.FAILED, "launcher")
    assert "no room" in status.cause


def test_a_run_that_goes_on_is_running_again(tmp_path: Path) -> None:
    """Whatever ended it before."""
    with HeldRun(tmp_path) as held:
        held.end(FAILED)
    with HeldRun(tmp_path) as held:
        assert read_status(tmp_path).state is State.RUNNING
        held.end(RunStatus(state=State.FINISHED, reason="steps"))
    assert read_status(tmp_path).cause == "steps"


def test_a_state_is_read_whatever_it_holds(tmp_path: Path) -> None:
    """Characters that cannot be written become "?"; a time beyond all measure makes it unknown."""
    state = {"state": "failed", "at": 1.0, "service": "learner", "reason": "\udcff", "epoch": 0}
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert read_status(tmp_path).cause == "learner ?"
    (tmp_path / "state.json").write_text(json.dumps(state | {"at": 10**400}))
    assert read_status(tmp_path).state is State.INTERRUPTED


def test_a_learner_without_launcher_is_judged_by_its_summary(tmp_path: Path) -> None:
    """Held: running. Without a word: interrupted. Else as its last summary says, if that is of its last life."""
    with RunFolder(tmp_path) as folder:
        folder.next_epoch()
        assert read_status(tmp_path).state is State.RUNNING
    assert read_status(tmp_path).state is State.INTERRUPTED
    summarise(tmp_path, finished=False, epoch=1)
    assert read_status(tmp_path).state is State.STOPPED
    summarise(tmp_path, finished=True, reason="seconds", epoch=1)
    assert read_status(tmp_path) == RunStatus(
        state=State.FINISHED, reason="seconds", at=(tmp_path / "summary.json").stat().st_mtime
    )
    with RunFolder(tmp_path) as folder:
        folder.next_epoch()
    assert read_status(tmp_path).state is State.INTERRUPTED


def test_a_learner_that_came_after_the_launcher_is_the_one_that_counts(tmp_path: Path) -> None:
    """A failed run that somebody goes on with by hand is no longer a failed one."""
    with HeldRun(tmp_path) as held:
        held.end(FAILED)
    with RunFolder(tmp_path) as folder:
        folder.next_epoch()
        assert read_status(tmp_path).state is State.RUNNING
    summarise(tmp_path, finished=True, reason="steps", epoch=1)
    assert read_status(tmp_path).state is State.FINISHED


@pytest.mark.parametrize("content", ["", "[]", '{"state": "odd", "at": 1}', '{"state": "failed", "at": []}'])
def test_a_damaged_record_is_as_none(tmp_path: Path, content: str) -> None:
    """What can be told without it is told."""
    (tmp_path / "state.json").write_text(content)
    summarise(tmp_path, finished=True, reason="steps")
    assert read_status(tmp_path).state is State.FINISHED


def test_the_launcher_tells_of_restarts_that_the_learner_could_not_know(tmp_path: Path) -> None:
    """Over all launches; what the learner knows more of stays."""
    processes = [
        Process(name=name, role=role, command=())
        for name, role in (("learner", "learner"), ("inference-0", "inference"), ("a", "actor"), ("b", "actor"))
    ]
    summarise(tmp_path, restarts={"learner": 5, "inference-0": 1, "actors": 1}, seed=3)
    launched = {"learner": 2, "inference-0": 2, "a": 3, "b": 1}
    tell_restarts(tmp_path, processes, {"learner": 1, "actors": 2}, launched)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {"restarts": {"learner": 5, "inference-0": 2, "actors": 6}, "seed": 3}


def test_a_run_without_a_summary_tells_of_no_restarts(tmp_path: Path) -> None:
    """Nothing is made up."""
    tell_restarts(tmp_path, [Process(name="learner", role="learner", command=())], {}, {"learner": 2})
    assert list(tmp_path.iterdir()) == []


STOPPED = Outcome(exit_code=130, reason="Ctrl-C")


@pytest.mark.parametrize(
    ("summary", "state", "reason"),
    [
        ({"finished": True, "reason": "steps"}, State.FINISHED, "steps"),
        ({"finished": False, "reason": "steps"}, State.STOPPED, "Ctrl-C, in the final evaluation"),
        ({"finished": False, "reason": ""}, State.STOPPED, "Ctrl-C"),
        ({}, State.STOPPED, "Ctrl-C"),
    ],
)
def test_a_run_that_is_stopped_ends_as_its_learner_said(summary, state, reason):
    """One that had finished and was still drawing its curves has finished."""
    status = describe_end(Ended(outcome=STOPPED, restarts={}, summary=summary))
    assert (status.state, status.reason) == (state, reason)
