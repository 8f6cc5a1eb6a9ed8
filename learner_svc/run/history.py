"""The metrics of a run on disk: `metrics.csv`, TensorBoard events, and `curves.png` at the end. Blocking.

A resumed run continues the same file, without the rows of updates after its checkpoint, which no longer exist. Columns
are only ever added: a column that is new in mid-run is empty in earlier rows.
"""

import contextlib
import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog

from seedbed.learner_svc.run.atomic_write import write_durably
from seedbed.shared.errors import StorageError
from seedbed.shared.figures import columns
from seedbed.shared.figures.panels import PICTURE, RETURN, Panel
from seedbed.shared.protocol.statistics import evaluation_column, own_statistics, training_column
from seedbed.shared.runtime.files import writing

FIRST_COLUMNS = tuple(
    column.name
    for column in (
        columns.SECONDS, columns.EPOCH, columns.UPDATES, columns.TRAINED_STEPS, columns.ENV_STEPS, columns.EPISODES,
        columns.RETURN_MEAN, columns.LENGTH_MEAN,
    )
)  # fmt: skip
MAX_LINES_ABOVE = 3  # a longer legend has no room beside the title
MAX_LINE = 100_000  # characters; the csv module reads no longer lines
log = structlog.get_logger(__name__)


class Events(Protocol):
    """The part of TensorBoard's writer that is used."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Add one point of a curve, at this step."""
        ...

    def close(self) -> None:
        """Write what TensorBoard still buffers, and close its file."""
        ...


class History:
    """The metrics of one run. Owned by one thread; memory: the column names. Its methods raise StorageError."""

    def __init__(self, folder: Path, *, updates: int = 0, trained_steps: int = 0, tensorboard: bool = True) -> None:
        """Continue after update number `updates` and this many trained steps; 0 starts new files."""
        self._file = folder / "metrics.csv"
        self._columns: list[str] = []
        self._cut(updates)
        self._events_folder = folder / "events" if tensorboard else None
        self._events: Events | None = None
        self._open_events(trained_steps)

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Add one row, completely or not at all; a value that is not finite is left empty."""
        if not self._file.exists():  # deleted in mid-run
            self._rewrite([])
        missing = [name for name in row if name not in self._columns]
        if missing:
            self._widen(missing)
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([_cell(row.get(name)) for name in self._columns])
        with writing(self._file):
            _append_whole(self._file, line.getvalue().encode())
        self._append_events(row)

    def close(self) -> None:
        """Write the events that are still buffered. Idempotent."""
        events, self._events = self._events, None
        if events is not None and self._events_folder is not None:
            with writing(self._events_folder):
                events.close()

    def _append_events(self, row: Mapping[str, float | int | None]) -> None:
        """Add a row to TensorBoard's events; if the writer reports an earlier failure, use a new one."""
        try:
            self._write_events(row)
        except StorageError:
            self._write_events(row)

    def _write_events(self, row: Mapping[str, float | int | None]) -> None:
        """Pass the row to the writer; if it fails, drop the writer."""
        step = int(row.get(columns.TRAINED_STEPS.name) or 0)
        if self._events is None:
            self._open_events(step)
        if self._events is None or self._events_folder is None:
            return
        try:
            with writing(self._events_folder):
                for name, value in row.items():
                    if name not in FIRST_COLUMNS[:4] and value is not None and math.isfinite(value):
                        self._events.add_scalar(name, float(value), step)
        except StorageError:
            events, self._events = self._events, None
            with contextlib.suppress(OSError):
                events.close()
            raise

    def _open_events(self, trained_steps: int) -> None:
        if self._events_folder is not None:
            with writing(self._events_folder):
                self._events = open_events(self._events_folder, trained_steps)
            if self._events is None:  # TensorBoard is not installed
                self._events_folder = None

    def _cut(self, updates: int) -> None:
        """Drop the rows of updates that no longer exist, and an incomplete last row."""
        if not updates or not self._file.exists():
            self._columns = list(FIRST_COLUMNS)
            self._rewrite([])
            return
        with writing(self._file):
            names, rows = _read_table(self._file)
            if columns.UPDATES.name not in names and self._file.stat().st_size:
                aside = self._file.with_suffix(".broken")
                self._file.replace(aside)
                log.error("metrics_unreadable", file=str(self._file), moved_to=str(aside))
                rows = []
        self._columns = list(rows[0]) if rows else list(FIRST_COLUMNS)
        self._rewrite([row for row in rows if _number(row[columns.UPDATES.name]) <= updates])

    def _widen(self, names: Sequence[str]) -> None:
        with writing(self._file):
            rows = read_metrics(self._file)
        before = self._columns
        self._columns = [*before, *names]
        try:
            self._rewrite(rows)
        except StorageError:
            self._columns = before  # the file still has the old columns
            raise

    def _rewrite(self, rows: Sequence[Mapping[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_durably(self._file, text.getvalue())


def read_metrics(file: Path) -> list[dict[str, str]]:
    """Return the complete rows of a metrics.csv, as text by column; other lines are skipped."""
    return _read_table(file)[1]


def _read_table(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return columns and complete rows. Each line is parsed alone, so that a damaged one affects no other."""
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        lines = stream.read().split("\n")[:-1]  # a last line without a line break is incomplete
    names, *rows = [_cells(line) for line in lines if len(line) < MAX_LINE] or [[]]
    return names, [dict(zip(names, row, strict=True)) for row in rows if row and len(row) == len(names)]


def _cells(line: str) -> list[str]:
    """Return the cells of one line; empty if it cannot be parsed."""
    try:
        return next(csv.reader([line], strict=True), []) if '"' in line else line.split(",") if line else []
    except csv.Error:
        return []


def open_events(folder: Path, trained_steps: int) -> Events | None:
    """Return TensorBoard's writer; None if it is not installed. Events after `trained_steps` are purged."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("tensorboard_skipped", reason="not installed")
        return None
    folder.mkdir(exist_ok=True)
    writer: Any = SummaryWriter(str(folder), purge_step=trained_steps + 1 if trained_steps else None)
    events: Events = writer
    return events


def draw_curves(folder: Path) -> bool:
    """Draw `curves.png` from `metrics.csv`; return False without matplotlib or without rows."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("curves_skipped", reason="matplotlib is not installed")
        return False
    rows = read_metrics(folder / "metrics.csv")
    if not rows:
        return False
    names = list(rows[0])
    panels = [*map(_plotted, PICTURE), *statistic_panels(names), *task_panels(names)]
    panels = [panel for panel in panels if any(row.get(name) for name in panel.lines for row in rows)]
    height = math.ceil(len(panels) / 3)
    figure = Figure(figsize=(14, 3.4 * height + 0.4), layout="constrained")
    figure.suptitle(folder.resolve().name, fontsize="medium")
    for place, panel in enumerate(panels, 1):
        _draw_panel(figure.add_subplot(height, 3, place), panel, rows)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    write_durably(folder / "curves.png", picture.getvalue())
    return True


@dataclass(frozen=True, slots=True)
class PlottedPanel:
    """One panel of the picture: its title, its columns with the labels of their lines, and whether they are rates."""

    title: str
    lines: Mapping[str, str]
    is_rate: bool = False


def _plotted(panel: Panel) -> PlottedPanel:
    title = f"{panel.title}, {panel.unit}"
    return PlottedPanel(title, {line.column.name: line.label for line in panel.lines}, panel.lines[0].is_rate)


def _training_and_evaluation(title: str, training: str, evaluation: str) -> PlottedPanel:
    labels = (line.label for line in RETURN.lines)
    return PlottedPanel(title, dict(zip((training, evaluation), labels, strict=True)))


def statistic_panels(names: Sequence[str]) -> list[PlottedPanel]:
    """Return a panel for each of the environment's own statistics."""
    return [
        _training_and_evaluation(name, training_column(name), evaluation_column(name)) for name in own_statistics(names)
    ]


def task_panels(names: Sequence[str]) -> list[PlottedPanel]:
    """Return a panel for the returns of each task, and one for their shares of the batches; none without tasks."""
    tasks = columns.RETURN_MEAN.members(names)
    if not tasks:
        return []
    returns = [
        _training_and_evaluation(f"Return, {task}", columns.RETURN_MEAN.of(task), columns.EVAL_RETURN_MEAN.of(task))
        for task in tasks
    ]
    return [*returns, PlottedPanel("Share of the batches", {columns.SHARE.of(task): task for task in tasks})]


def _draw_panel(axes: Any, panel: PlottedPanel, rows: Sequence[Mapping[str, str]]) -> None:
    """Draw a line for each column that has a value, with markers for evaluations, and a legend outside the curves."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, ScalarFormatter

    for name, label in panel.lines.items():
        if points := _points(rows, name, is_rate=panel.is_rate):
            marks = {"marker": "o", "markersize": 4} if name.startswith("eval_") else {}
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.2, **marks)
    axes.set_title(panel.title, loc="left", fontsize="medium")
    axes.set_xlabel("trained steps")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(EngFormatter(sep="") if panel.is_rate else ScalarFormatter(useOffset=False))
    axes.grid(alpha=0.3)
    num_lines = len(axes.get_legend_handles_labels()[0])
    if num_lines > MAX_LINES_ABOVE:
        axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
    elif num_lines > 1:
        place = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.2, "ncols": num_lines}
        axes.legend(fontsize="small", frameon=False, **place)


def _points(rows: Sequence[Mapping[str, str]], column: str, *, is_rate: bool) -> list[tuple[float, float]]:
    """Return (trained steps, value) of the rows that have a value; of a rate, only up to the last trained step."""
    steps = [_number(row[columns.TRAINED_STEPS.name]) for row in rows]
    end = 1 + next((at for at in range(len(rows) - 1, 0, -1) if steps[at] > steps[at - 1]), 0) if is_rate else len(rows)
    return [(steps[at], _number(rows[at][column])) for at in range(end) if rows[at].get(column)]


def _append_whole(file: Path, line: bytes) -> None:
    """Append a line to an existing file; if the disk is full, cut an incomplete line off again."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        whole = os.fstat(descriptor).st_size
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError:
            os.ftruncate(descriptor, whole)
            raise
    finally:
        os.close(descriptor)


def _number(text: str) -> float:
    """Return the number in a cell; infinite if it holds none, so that its row is dropped."""
    try:
        return float(text or 0)
    except ValueError:
        return math.inf


def _cell(value: float | int | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
