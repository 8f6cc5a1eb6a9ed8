"""Reading a table that grows, is rewritten, cut, broken or deleted, into curves of bounded size."""

import os

import numpy as np
import pytest

from seedbed.services.tools.monitor.curves import RECENT_ROWS, Curves
from seedbed.services.tools.monitor.table import MAX_TASKS, MetricsTable, parse_rows
from seedbed.services.tools.monitor.tail import LineTail
from tests.support.run_folders import HEADER, row, write_run, write_tasks_run

FOREVER = float("inf")


def steps_of(table):
    return table.curves.curve("trained_steps").mean.tolist()


def test_a_growing_file_is_read_once_and_only_in_whole_lines(tmp_path):
    """Half a line waits for its end."""
    file = tmp_path / "file"
    file.write_bytes(b"one\ntw")
    tail = LineTail(file)
    assert tail.read(1000).data == b"one\n"
    assert tail.read(1000).data == b""
    with file.open("ab") as stream:
        stream.write(b"o\nthree\n")
    piece = tail.read(1000)
    assert (piece.data, piece.restarted, piece.share) == (b"two\nthree\n", False, 1.0)


def test_a_long_file_comes_in_pieces(tmp_path):
    """Each ends with a line, and says how far it got."""
    file = tmp_path / "file"
    file.write_bytes(b"0123456\n" * 100)
    tail = LineTail(file)
    first = tail.read(204)
    assert (first.data, first.share) == (b"0123456\n" * 25, 0.25)
    assert len(tail.read(10_000).data) == 600


@pytest.mark.parametrize("replace", ["renamed over", "cut in place", "rewritten in place"])
def test_a_rewritten_file_is_read_anew(tmp_path, replace):
    """Even when it is longer than what had been read."""
    file = tmp_path / "file"
    file.write_bytes(b"old\nrows\n")
    tail = LineTail(file)
    tail.read(1000)
    content = {
        "renamed over": b"new\nrows\nmore\n",
        "cut in place": b"old\n",
        "rewritten in place": b"new\nrows\nmore\n",
    }
    if replace == "renamed over":
        (tmp_path / "other").write_bytes(content[replace])
        os.replace(tmp_path / "other", file)
    else:
        file.write_bytes(content[replace])
    piece = tail.read(1000)
    assert (piece.data, piece.restarted) == (content[replace], True)


def test_a_deleted_file_voids_what_was_read(tmp_path):
    """Once; then it is simply not there, and may come back."""
    file = tmp_path / "file"
    file.write_bytes(b"a\n")
    tail = LineTail(file)
    tail.read(1000)
    file.unlink()
    assert tail.read(1000).restarted
    assert not tail.read(1000).restarted
    file.write_bytes(b"b\n")
    assert tail.read(1000).data == b"b\n"


def test_a_pipe_in_the_place_of_a_file_holds_nobody(tmp_path):
    """It is refused at once."""
    os.mkfifo(tmp_path / "file")
    with pytest.raises(OSError, match="not a regular file"):
        LineTail(tmp_path / "file").read(100)


def test_bytes_without_a_line_break_do_not_stop_the_reading(tmp_path):
    """They are passed over, piece by piece, for the reader to count as broken."""
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000 + b"\nend\n")
    tail = LineTail(file)
    read = b"".join(tail.read(300).data for _ in range(5))
    assert read.endswith(b"\nend\n")


@pytest.mark.parametrize("pieces", [[1000], [1] * 1000, [7, 400, 593], [999, 1]])
def test_buckets_do_not_depend_on_how_the_rows_came(pieces):
    """Mean, least and greatest of every bucket are those of its rows, in any portions."""
    values = np.random.default_rng(1).normal(size=(1000, 2))
    values[::3, 1] = np.nan
    curves = Curves(("a", "b"), max_buckets=16)
    start = 0
    for number in pieces:
        curves.add(values[start : start + number])
        start += number
    assert (curves.num_rows, curves.stride) == (1000, 64)
    for place, name in enumerate(("a", "b")):
        curve = curves.curve(name)
        parts = [values[at : at + 64, place] for at in range(0, 1000, 64)]
        np.testing.assert_allclose(curve.mean, [np.nanmean(part) for part in parts])
        np.testing.assert_array_equal(curve.low, [np.nanmin(part) for part in parts])
        np.testing.assert_array_equal(curve.high, [np.nanmax(part) for part in parts])


def test_a_single_spike_in_a_million_rows_is_still_seen():
    """Decimation keeps every bucket's extremes; memory is that of the buckets."""
    values = np.zeros((1_000_000, 1))
    values[765_432] = 9.0
    curves = Curves(("a",))
    for part in np.array_split(values, 10):
        curves.add(part)
    curve = curves.curve("a")
    assert len(curve.mean) <= 600
    assert curve.high.max() == 9.0
    assert len(curves.recent) == RECENT_ROWS


def test_columns_without_a_value_stay_unknown():
    """And never warn."""
    curves = Curves(("a", "b"))
    curves.add(np.array([[1.0, np.nan], [2.0, np.nan]]))
    assert np.isnan(curves.curve("b").mean).all()
    assert (curves.last("a"), curves.last("b")) == (2.0, None)


def test_empty_cells_at_every_place_are_no_values():
    """First, last, several in a row."""
    rows, broken = parse_rows(b",,3\n1,,\n,,\n1,2,3\n", 3)
    np.testing.assert_array_equal(rows, [[np.nan, np.nan, 3], [1, np.nan, np.nan], [np.nan, np.nan, np.nan], [1, 2, 3]])
    assert broken == 0


@pytest.mark.parametrize("line", [b"1,2", b"1,2,3,4", b"1,x,3", b"\xff\xfe\x00", b"", b'"1,2,3'])
def test_a_line_that_is_no_row_is_counted_and_left_out(line):
    """The rows around it stay."""
    rows, broken = parse_rows(b"1,2,3\n" + line + b"\n4,inf,6\n", 3)
    np.testing.assert_array_equal(rows, [[1, 2, 3], [4, np.nan, 6]])
    assert broken == 1


def test_two_broken_lines_that_make_up_for_each_other_are_both_told():
    """A row too short and one too long have the right number of commas together."""
    rows, broken = parse_rows(b"1,2\n1,2,3,4\n", 3)
    assert (len(rows), broken) == (0, 2)


def test_a_table_follows_its_run(tmp_path):
    """New rows are added, with a new version; without any the version stays."""
    run = write_run(tmp_path / "run", [row(1), row(2)])
    table = MetricsTable(run / "metrics.csv")
    assert table.advance(FOREVER)
    version = table.version
    table.advance(FOREVER)
    assert table.version == version
    with (run / "metrics.csv").open("a") as file:
        file.write(row(3) + "4,1,4,40")
    table.advance(FOREVER)
    assert steps_of(table) == [100, 200, 300]
    assert table.version > version


def test_a_resumed_run_loses_its_lost_rows(tmp_path):
    """And one that got a column is read by its new header."""
    run = write_run(tmp_path / "run", [row(1), row(2), row(3)])
    table = MetricsTable(run / "metrics.csv")
    table.advance(FOREVER)
    (run / ".tmp").write_text(f"{HEADER},entropy\n" + row(1).strip() + ",0.5\n")
    os.replace(run / ".tmp", run / "metrics.csv")
    table.advance(FOREVER)
    assert steps_of(table) == [100]
    assert table.curves.last("entropy") == 0.5


def test_the_tasks_of_a_run_are_columns_of_their_own(tmp_path):
    """In the table's order, as many as can be told apart; a table that gets them in mid-run is read anew."""
    run = write_run(tmp_path / "run", [row(1)])
    table = MetricsTable(run / "metrics.csv")
    table.advance(FOREVER)
    assert table.tasks == ()
    (run / "metrics.csv").unlink()
    write_tasks_run(run, {"pong": 21.0, "a.b-2": 5.0}, num_rows=2)
    table.advance(FOREVER)
    assert table.tasks == ("pong", "a.b-2")
    assert table.curves.curve("return_mean/pong").mean.tolist() == [10.5, 21.0]
    assert table.curves.last("eval_return_mean/a.b-2") == 5.0
    assert steps_of(table) == [100, 200]
    write_tasks_run(run, {f"level-{number}": 1.0 for number in range(MAX_TASKS + 9)})
    table.advance(FOREVER)
    assert len(table.tasks) == MAX_TASKS
    assert "return_mean/level-31" in table.curves.columns
    assert "return_mean/level-32" not in table.curves.columns


def test_rows_that_go_back_are_broken(tmp_path):
    """An axis only rises; what does not cannot be drawn over it."""
    run = write_run(tmp_path / "run", [row(1), row(5), row(3), ",1,6,600,600,1,,1,1,0\n", row(7)])
    table = MetricsTable(run / "metrics.csv")
    table.advance(FOREVER)
    assert steps_of(table) == [100, 500, 700]
    assert table.broken_lines == 2


@pytest.mark.parametrize("outlier", ["5.5,1,5,99999999999", "1e9,1,5,0", "1e9,1,5,99999999999"])
@pytest.mark.parametrize("piece_bytes", [None, *range(120, 160, 3)])
def test_a_row_that_is_too_high_hides_no_later_rows(tmp_path, monkeypatch, outlier, piece_bytes):
    """It is left out, whether the rows come one by one (None), or wherever a piece of the file ends."""
    lines = [f"{HEADER}\n", *(row(n) for n in range(1, 6)), f"{outlier},1,1,,1,1,0\n", *(row(n) for n in range(6, 30))]
    table = MetricsTable(tmp_path / "metrics.csv")
    if piece_bytes is None:
        for line in lines:
            with (tmp_path / "metrics.csv").open("a") as file:
                file.write(line)
            table.advance(FOREVER)
    else:
        monkeypatch.setattr("seedbed.services.tools.monitor.table.PIECE_BYTES", piece_bytes)
        (tmp_path / "metrics.csv").write_text("".join(lines))
        assert table.advance(FOREVER)
    assert steps_of(table) == [100 * n for n in range(1, 30)]
    assert table.broken_lines == 1


def test_a_file_that_is_no_table_is_told(tmp_path):
    """It is named, and nothing is drawn."""
    (tmp_path / "metrics.csv").write_bytes(os.urandom(1000).replace(b"\n", b"") + b"\nabc\n")
    table = MetricsTable(tmp_path / "metrics.csv")
    table.advance(FOREVER)
    assert "metrics.csv" in table.problem
    assert table.curves.num_rows == 0


def test_a_long_table_is_read_in_turns(tmp_path):
    """A turn ends when its time is over; the share says how far it got, the rows so far are there."""
    lines = "".join(row(number) for number in range(60_000))
    (tmp_path / "metrics.csv").write_text(f"{HEADER}\n{lines}")
    table = MetricsTable(tmp_path / "metrics.csv")
    assert not table.advance(0.0, clock=lambda: 1.0)
    assert 0 < table.share_read < 1
    assert 0 < table.curves.num_rows < 60_000
    assert table.advance(FOREVER)
    assert table.curves.num_rows == 60_000


def test_the_learner_ranks_of_a_run_are_columns_of_their_own(tmp_path):
    """In the table's order."""
    file = tmp_path / "metrics.csv"
    file.write_text(
        "seconds,trained_steps,rank_batch_wait_share/0,rank_lanes_per_s/0,rank_batch_wait_share/1\n1,10,0.5,64,0.25\n"
    )
    table = MetricsTable(file)
    table.advance(FOREVER)
    assert table.ranks == ("0", "1")
    assert table.curves.last("rank_batch_wait_share/1") == 0.25


def test_statistics_of_the_environments_own_are_columns_of_the_run_and_of_each_task(tmp_path):
    """Whatever they are called; the run's own figures are none of them."""
    own = ["episode_success_mean", "eval_success_mean", "episode_success_mean/pong", "eval_success_mean/pong"]
    head = f"{HEADER},return_mean/pong,eval_return_mean/pong,{','.join(own)}"
    (tmp_path / "metrics.csv").write_text(f"{head}\n{row(1).strip()},1,,0.5,,0.25,\n")
    table = MetricsTable(tmp_path / "metrics.csv")
    table.advance(FOREVER)
    assert (table.statistics, table.tasks) == (("success",), ("pong",))
    assert table.curves.last("episode_success_mean") == 0.5
    assert table.curves.last("episode_success_mean/pong") == 0.25
    assert table.curves.last("eval_success_mean/pong") is None


def test_a_rate_is_told_of_the_last_row_in_which_something_was_done():
    """The last rows of a run that ends are of its evaluation; a rate that was always 0 is 0."""
    curves = Curves(("a", "b"))
    curves.add(np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 0.0]]))
    assert (curves.last_at_work("a"), curves.last("a"), curves.last_at_work("b")) == (3.0, 0.0, 0.0)
