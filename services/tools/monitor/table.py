"""`metrics.csv` as curves, read incrementally; lines that are no rows are counted, not fatal. Blocking."""

import csv
import io
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seedbed.services.tools.cli import explain
from seedbed.services.tools.monitor.curves import Array, Curves
from seedbed.services.tools.monitor.tail import LineTail
from seedbed.shared.figures import columns
from seedbed.shared.figures.panels import PANELS
from seedbed.shared.protocol.statistics import evaluation_column, own_statistics, training_column

PIECE_BYTES = 1 << 20
AXES = (columns.SECONDS.name, columns.TRAINED_STEPS.name)
DRAWN = (*AXES, *(line.column.name for panel in PANELS for line in panel.lines))
SHOWN = (  # as numbers, beside the charts
    columns.ENV_STEPS.name, columns.UPDATES.name, columns.EPISODES.name, columns.EVAL_RETURN_STD.name,
    columns.DROPPED_STEPS.name, columns.RHO_CLIPPED_SHARE.name, columns.LEARNING_RATE.name,
)  # fmt: skip
JUDGED = (*(name for name in explain.COLUMNS if name not in {*DRAWN, *SHOWN}), columns.ABORTED_EPISODES.name)
COLUMNS = (*DRAWN, *SHOWN, *JUDGED)  # others are not kept
TASK_COLUMNS = (columns.RETURN_MEAN.name, columns.EVAL_RETURN_MEAN.name)  # of a task: with a slash and its name
MAX_STATISTICS = 12  # of the environment's own, a chart each
MAX_TASKS = 32  # as many lines as can be told apart; of more the first ones


class MetricsTable:
    """One run's metrics.csv. Owned by one thread at a time; memory: its curves."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tail = LineTail(file)
        self._outliers: list[Array] = []  # axes of rows that were drawn until later rows contradicted them
        self._begin()
        self.version = 0  # rises whenever there is something new
        self.share_read = 0.0  # of the file

    def _begin(self) -> None:
        self.curves = Curves(COLUMNS)
        self.tasks: tuple[str, ...] = ()  # in the table's order; none in a run with one environment
        self.ranks: tuple[str, ...] = ()  # of the learner, "0" is the chief; none in a run with one
        self.statistics: tuple[str, ...] = ()  # of the environment's own
        self.problem = ""  # why nothing can be shown
        self.broken_lines = 0
        self._header: list[str] = []
        self._last_axes: Array = np.full((1, len(AXES)), -np.inf)  # of the last rows as they were read, [≤ 3, 2]

    def advance(self, until: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Read on to the end of the file, or until the clock says `until`; whether the end was reached.

        One piece is always read. Raises: OSError if the file cannot be read.
        """
        while True:
            piece = self._tail.read(PIECE_BYTES)
            self.share_read = piece.share
            if piece.restarted:
                self._outliers.clear()
                self._begin()
            if piece.restarted or piece.data:
                self.version += 1
                self._take(piece.data)
            if not piece.data:
                return True
            if clock() >= until:
                return self.share_read == 1.0

    def _take(self, data: bytes) -> None:
        if data and not self._header:
            line, _, data = data.partition(b"\n")
            self._header = line.decode(errors="replace").strip().split(",")
            missing = [name for name in AXES if name not in self._header]
            if missing:
                self.problem = f"metrics.csv: its first line names no column {' and no '.join(missing)}"
            self.tasks = tuple(columns.RETURN_MEAN.members(self._header))[:MAX_TASKS]
            self.ranks = tuple(columns.RANK_BATCH_WAIT.members(self._header))
            self.statistics = tuple(own_statistics(self._header))[:MAX_STATISTICS]
            own = [column(name) for name in self.statistics for column in (training_column, evaluation_column)]
            of_tasks = [f"{column}/{task}" for task in self.tasks for column in (*TASK_COLUMNS, *own)]
            of_ranks = [column.of(rank) for rank in self.ranks for column in columns.RANK_COLUMNS]
            self.curves = Curves((*COLUMNS, *own, *of_tasks, *of_ranks))
        if self.problem or not data:
            return
        places = [self._header.index(name) if name in self._header else -1 for name in self.curves.columns]
        cells, broken = parse_rows(data, len(self._header))
        self.broken_lines += broken
        rows = np.where(np.array(places) >= 0, cells[:, places], np.nan)
        self._add(rows)

    def _add(self, rows: Array) -> None:
        """Draw rows whose axes neither fall nor are missing; others cannot be drawn and count as broken."""
        places = [COLUMNS.index(name) for name in AXES]
        axes = rows[:, places]
        good = np.asarray(np.isfinite(axes).all(axis=1))
        for outlier in self._outliers:
            good &= (axes != outlier).any(axis=1)
        seen, num_seen = np.concatenate([self._last_axes, axes[good]]), len(self._last_axes)
        wrong = are_outliers(seen)
        if wrong[:num_seen].any():
            self._read_again_without(seen[:num_seen][wrong[:num_seen]])
            return
        self._last_axes = seen[~wrong][-3:]
        good[good] = ~wrong[num_seen:]
        last = self.curves.recent[-1:, places]
        rising = np.concatenate([last, axes[good]])
        good[good] = (rising == np.maximum.accumulate(rising)).all(axis=1)[len(last) :]
        self.broken_lines += int((~good).sum())
        self.curves.add(rows[good])

    def _read_again_without(self, outliers: Array) -> None:
        """Begin anew: a row that has been drawn cannot be taken back."""
        self._outliers += list(outliers)
        self._tail, self.share_read = LineTail(self._file), 0.0
        self._begin()


def are_outliers(axes: Array) -> NDArray[np.bool_]:
    """Which rows are too high: the next two are lower, and in order with each other and with the row before.

    Args:
      axes: float64 [R, number of axes], without NaN.
    Returns: bool [R]; False for the first row and the last two, of which nobody can tell.
    """
    found = np.zeros(len(axes), bool)
    before, row, after, second = axes[:-3], axes[1:-2], axes[2:-1], axes[3:]
    is_lower = ~_in_order(row, after) & ~_in_order(row, second)
    found[1:-2] = is_lower & _in_order(before, after) & _in_order(after, second)
    return found


def _in_order(earlier: Array, later: Array) -> NDArray[np.bool_]:
    return np.asarray((earlier <= later).all(axis=1))


def parse_rows(data: bytes, num_columns: int) -> tuple[Array, int]:
    """Rows of numbers from complete lines of CSV.

    Returns: float64 [R, num_columns], NaN for an empty cell or one that is not finite; and how many lines are no rows.
    """
    num_lines = data.count(b"\n")
    if data.count(b",") == num_lines * (num_columns - 1):
        filled = data.replace(b",,", b",nan,").replace(b",,", b",nan,").replace(b",\n", b",nan\n")
        if filled.startswith(b","):
            filled = b"nan" + filled
        try:
            text = io.StringIO(filled.replace(b"\n,", b"\nnan,").decode("ascii"))
            rows = np.loadtxt(text, delimiter=",", ndmin=2, comments=None)
        except (ValueError, UnicodeDecodeError):
            pass  # some line is no row: look at each
        else:
            if rows.shape == (num_lines, num_columns):
                rows[~np.isfinite(rows)] = np.nan
                return rows, 0
    return _parse_lines(data, num_columns)


def _parse_lines(data: bytes, num_columns: int) -> tuple[Array, int]:
    """Parse as `parse_rows` does, line by line, where a line is damaged."""
    rows: list[list[float]] = []
    broken = 0
    for line in data.decode(errors="replace").splitlines():
        try:
            cells = next(csv.reader([line]), [])
            row = [float(cell) if cell else math.nan for cell in cells]
        except (ValueError, csv.Error):
            row = []
        if len(row) == num_columns:
            rows.append([value if math.isfinite(value) else math.nan for value in row])
        else:
            broken += 1
    return np.array(rows, dtype=np.float64).reshape(len(rows), num_columns), broken
