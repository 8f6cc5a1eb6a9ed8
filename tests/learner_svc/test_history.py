"""metrics.csv, events and curves."""

import math
import resource
import threading
from pathlib import Path

import pytest

from seedbed.learner_svc.run.history import FIRST_COLUMNS, History, draw_curves, read_metrics, task_panels
from seedbed.shared.errors import StorageError
from tests.support.full_disk import full_disk


def a_row(updates: int, **others: float | None) -> dict[str, float | int | None]:
    return {"seconds": 1.5 * updates, "epoch": 1, "updates": updates, "trained_steps": 10 * updates, **others}


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    """Columns begin with those that everyone looks for; what is not finite or unknown stays empty."""
    history = History(tmp_path, tensorboard=False)
    history.append(a_row(1, loss=0.25, entropy=math.nan, return_mean=None))
    (row,) = read_metrics(tmp_path / "metrics.csv")
    assert tuple(row)[: len(FIRST_COLUMNS)] == FIRST_COLUMNS
    assert (row["updates"], row["seconds"], row["loss"]) == ("1", "1.5", "0.25")
    assert (row["entropy"], row["return_mean"], row["episodes"]) == ("", "", "")


def test_a_new_column_is_empty_above(tmp_path: Path) -> None:
    """An evaluation's figures come in mid-run."""
    history = History(tmp_path, tensorboard=False)
    history.append(a_row(1))
    history.append(a_row(2, eval_return_mean=5.0))
    history.append(a_row(3))
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [row["eval_return_mean"] for row in rows] == ["", "5", ""]


def test_a_resumed_run_drops_what_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    """Rows of lost updates, and a row that was cut off by the crash."""
    history = History(tmp_path, tensorboard=False)
    for updates in (1, 2, 3, 4):
        history.append(a_row(updates, loss=float(updates)))
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("7.5,1,5,5")
    resumed = History(tmp_path, updates=2, tensorboard=False)
    resumed.append(a_row(3, loss=9.0))
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [(row["updates"], row["loss"]) for row in rows] == [("1", "1"), ("2", "2"), ("3", "9")]


def test_a_run_that_begins_anew_has_no_rows(tmp_path: Path) -> None:
    """Without a checkpoint nothing that was written counts."""
    History(tmp_path, tensorboard=False).append(a_row(1))
    History(tmp_path, tensorboard=False)
    assert read_metrics(tmp_path / "metrics.csv") == []


def test_curves_are_drawn_from_the_rows(tmp_path: Path) -> None:
    """A picture once there is a row."""
    history = History(tmp_path, tensorboard=False)
    assert not draw_curves(tmp_path)
    history.append(a_row(1, return_mean=2.0, entropy=0.5))
    assert draw_curves(tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_every_task_has_a_panel_and_all_share_one(tmp_path: Path) -> None:
    """Named by the columns; a run with one environment has neither."""
    assert task_panels(["return_mean", "entropy"]) == []
    panels = task_panels(["return_mean", "return_mean/a", "eval_return_mean/a", "share/a", "return_mean/b.2"])
    assert [dict(panel.lines) for panel in panels] == [
        {"return_mean/a": "training", "eval_return_mean/a": "evaluated"},
        {"return_mean/b.2": "training", "eval_return_mean/b.2": "evaluated"},
        {"share/a": "a", "share/b.2": "b.2"},
    ]
    history = History(tmp_path, tensorboard=False)
    for step in (1, 2):
        history.append(a_row(step) | {"return_mean/a": 1.0 * step, "share/a": 1.0})
    assert draw_curves(tmp_path)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # TensorBoard's own thread
@pytest.mark.parametrize("tensorboard", [False, True])
def test_a_row_is_written_whole_or_not_at_all(tmp_path: Path, tensorboard: bool) -> None:
    """A full disk costs the rows that came while it was full, also where half of one would still have fitted."""
    others = set(threading.enumerate())
    history = History(tmp_path, tensorboard=tensorboard)
    history.append(a_row(1, loss=1.0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.csv").stat().st_size + 5, hard))
    try:
        with pytest.raises(StorageError, match="ulimit -f"):
            history.append(a_row(2, loss=2.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with full_disk(), pytest.raises(StorageError):
        history.append(a_row(3, loss=3.0, eval_return_mean=1.0))
    history.append(a_row(4, loss=4.0, eval_return_mean=2.0))
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [(row["updates"], row["loss"], row["eval_return_mean"]) for row in rows] == [("1", "1", ""), ("4", "4", "2")]
    history.close()
    for thread in set(threading.enumerate()) - others:  # one that failed may tell so after it told its writer
        thread.join()


def test_a_table_that_was_deleted_begins_again(tmp_path: Path) -> None:
    """With its columns' names."""
    history = History(tmp_path, tensorboard=False)
    history.append(a_row(1))
    (tmp_path / "metrics.csv").unlink()
    history.append(a_row(2))
    assert [row["updates"] for row in read_metrics(tmp_path / "metrics.csv")] == ["2"]


@pytest.mark.parametrize(
    "content", [b"\xff\x00\xfe\n\x80,\x81\n", b"a,b\n1,2\n", b"updates,loss\nx,1\n", b"x" * 200_000 + b"\n"]
)
def test_a_table_that_is_garbage_does_not_stop_a_resumed_run(tmp_path: Path, content: bytes) -> None:
    """Whatever was done to the file; rows come after it."""
    (tmp_path / "metrics.csv").write_bytes(content)
    resumed = History(tmp_path, updates=2, tensorboard=False)
    resumed.append(a_row(3))
    assert [row["updates"] for row in read_metrics(tmp_path / "metrics.csv")] == ["3"]


def test_a_damaged_line_costs_that_line_alone(tmp_path: Path) -> None:
    """An open quote reaches no farther than its line, however long the table goes on."""
    table = tmp_path / "metrics.csv"
    table.write_text('updates,loss\n1,"1\n2,0.5\n' + "9,1\n" * 50_000)
    History(tmp_path, updates=2, tensorboard=False)
    assert read_metrics(table) == [{"updates": "2", "loss": "0.5"}]


def test_events_of_a_resumed_run_withdraw_only_what_is_lost(tmp_path: Path) -> None:
    """They are told by trained steps, and those behind the checkpoint stay."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    history = History(tmp_path)
    for updates in (1, 2, 3, 4):
        history.append(a_row(updates, loss=float(updates)))
    history.close()
    resumed = History(tmp_path, updates=2, trained_steps=20)
    resumed.append(a_row(3, loss=9.0))
    resumed.close()
    told = accumulator.EventAccumulator(str(tmp_path / "events")).Reload().Scalars("loss")
    assert [(event.step, event.value) for event in told] == [(10, 1.0), (20, 2.0), (30, 9.0)]
