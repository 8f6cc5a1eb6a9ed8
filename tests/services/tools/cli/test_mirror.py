"""`seedbed wandb`: what of a run folder comes to Weights & Biases, live, afterwards and twice."""

import json
import shutil
import sys

import pytest

from seedbed.learner_svc.run.folder import RunFolder
from seedbed.services.tools.cli.mirror import follow, send_run
from seedbed.shared.errors import ConfigError, MissingExtraError
from tests.support.deployment import wait_until

HEADER = "seconds,trained_steps,return_mean\n"


class Logged:
    """What stands for wandb's run: keeps what it is given."""

    def __init__(self, step=0):
        self.step, self.rows, self.summary = step, [], {}

    def log(self, row, step):
        """As wandb: steps grow."""
        assert step >= self.step
        self.step = step + 1
        self.rows.append((step, row))


@pytest.fixture
def run(tmp_path):
    """A run that ended, of three rows."""
    folder = tmp_path / "pong-1"
    folder.mkdir()
    (folder / "config.toml").write_text("[learner]\nbatch = 64\n")
    (folder / "run.json").write_text(json.dumps({"run_id": "c0ffee"}))
    (folder / "summary.json").write_text(json.dumps({"finished": True, "eval_return_mean": 20.5}))
    (folder / "metrics.csv").write_text(HEADER + "1,100,\n2,200,nan\n3,300,-7.5\n")
    return folder


def test_rows_and_summary_come_and_what_is_no_number_is_left_out(run):
    """An empty cell is no zero."""
    logged = Logged()
    assert follow(run, logged, is_live=True) == 3
    assert logged.rows == [
        (0, {"seconds": 1, "trained_steps": 100}),
        (1, {"seconds": 2, "trained_steps": 200}),
        (2, {"seconds": 3, "trained_steps": 300, "return_mean": -7.5}),
    ]
    assert logged.summary["eval_return_mean"] == 20.5


def test_a_second_call_sends_only_what_is_new(run):
    """By the step that the first one had reached."""
    logged = Logged(step=2)
    assert follow(run, logged, is_live=False) == 1
    assert [step for step, _ in logged.rows] == [2]


def test_a_run_that_trains_is_followed_to_its_end(run):
    """Its table grows, is replaced by a resumed run's and gets a column; each row comes once."""
    (run / "summary.json").unlink()
    logged, table = Logged(), run / "metrics.csv"

    def resumed():
        table.unlink()
        rows = ("1,100,,1", "2,200,,1", "3,300,-7.5,1", "4,400,-7,1", "5,500,-6,.5")
        table.write_text("\n".join(("seconds,trained_steps,return_mean,loss", *rows, "")))

    def ended():
        (run / "summary.json").write_text(json.dumps({"finished": True}))

    def grown():
        with table.open("a") as file:
            file.write("4,400,-7\n5,50")

    happens = iter([grown, resumed, ended])
    assert follow(run, logged, is_live=True, wait=lambda _: next(happens)()) == 5
    assert [row["trained_steps"] for _, row in logged.rows] == [100, 200, 300, 400, 500]
    assert logged.rows[-1][1]["loss"] == 0.5


def test_a_run_that_was_stopped_is_not_waited_for(run):
    """Nobody holds its folder, and nothing new comes."""
    (run / "summary.json").write_text(json.dumps({"finished": False, "eval_return_mean": 3.0}))
    with RunFolder(run) as held:
        waits = iter([lambda: None, held.close])
        logged = Logged()
        assert follow(run, logged, is_live=True, wait=lambda _: next(waits)()) == 3
    assert logged.summary["eval_return_mean"] == 3.0


def test_a_run_without_a_table_is_waited_for_and_once_sends_nothing_of_it(run):
    """Training has not begun."""
    (run / "metrics.csv").unlink()
    logged = Logged()
    assert follow(run, logged, is_live=False) == 0


def test_the_real_library_keeps_a_run_where_there_is_no_network(run, tmp_path, monkeypatch):
    """What it would send later lies in the folder that it names; settings are its configuration."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    sent, _ = send_run(run, "tried", is_live=True)
    assert sent == 3
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-c0ffee.wandb")
    words = (b"return_mean", b"-7.5", b"eval_return_mean", b"batch", b"tried")
    wait_until(lambda: all(word in kept.read_bytes() for word in words), "the library's own process has written it")


def test_a_folder_that_is_called_like_the_library_is_not_taken_for_it(run, tmp_path, monkeypatch):
    """The library itself makes such a folder where it is called."""
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(MissingExtraError, match=r"pip install 'seedbed\[wandb\]'"):
        send_run(run, "tried", is_live=False)


def test_a_folder_that_is_no_run_is_refused(run):
    """Before anything is made there."""
    pytest.importorskip("wandb")
    (run / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"run\.json cannot be read"):
        send_run(run, "tried", is_live=False)
    shutil.rmtree(run)
    with pytest.raises(ConfigError, match="cannot be read"):
        send_run(run, "tried", is_live=False)
