"""How a run went: `metrics.csv` row by row, TensorBoard events beside it, `curves.png` at the end. Blocking.

A resumed run goes on in the same file: rows that tell of updates behind its checkpoint are dropped, for those updates
no longer exist. Columns only get more: one that is new in mid-run is empty in the rows above.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog

from learner_svc.durable import write_durably

FIRST_COLUMNS = ("seconds", "epoch", "updates", "trained_steps", "env_steps", "episodes", "return_mean", "length_mean")
PANELS = (  # (title, columns) of the picture
    ("return", ("return_mean", "eval_return_mean")),
    ("episode length, steps", ("length_mean",)),
    ("steps per second", ("env_steps_per_s", "trained_steps_per_s")),
    ("entropy", ("entropy",)),
    ("explained variance", ("explained_variance",)),
    ("policy lag, updates", ("lag_mean", "lag_max")),
)
log = structlog.get_logger(__name__)


class Events(Protocol):
    """What is used of TensorBoard's writer."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Add one point."""
        ...

    def close(self) -> None:
        """Write the rest."""
        ...


class History:
    """The metrics of one run. Owned by one thread; memory: the column names."""

    def __init__(self, folder: Path, *, updates: int = 0, tensorboard: bool = True) -> None:
        """Go on after update number `updates`; 0 begins anew."""
        self._file = folder / "metrics.csv"
        self._columns: list[str] = []
        self._cut(updates)
        self._events = open_events(folder / "events", updates) if tensorboard else None

    def append(self, row: Mapping[str, float | int | None]) -> None:
        """Add one row; a figure that is not finite stays empty."""
        missing = [name for name in row if name not in self._columns]
        if missing:
            self._widen(missing)
        cells = [_cell(row.get(name)) for name in self._columns]
        with self._file.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(cells)
        if self._events is not None:
            step = int(row.get("trained_steps") or 0)
            for name, value in row.items():
                if name not in FIRST_COLUMNS[:4] and value is not None and math.isfinite(value):
                    self._events.add_scalar(name, float(value), step)

    def close(self) -> None:
        """Write the rest of the events. Idempotent."""
        if self._events is not None:
            self._events.close()
            self._events = None

    def _cut(self, updates: int) -> None:
        """Drop rows of updates that are lost, and a last row that was cut off."""
        if not updates or not self._file.exists():
            self._columns = list(FIRST_COLUMNS)
            self._rewrite([])
            return
        rows = read_metrics(self._file)
        self._columns = list(rows[0]) if rows else list(FIRST_COLUMNS)
        self._rewrite([row for row in rows if float(row["updates"] or 0) <= updates])

    def _widen(self, names: Sequence[str]) -> None:
        rows = read_metrics(self._file)
        self._columns += names
        self._rewrite(rows)

    def _rewrite(self, rows: Sequence[Mapping[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_durably(self._file, text.getvalue())


def read_metrics(file: Path) -> list[dict[str, str]]:
    """Complete rows of a metrics.csv, as text by column."""
    with file.open(newline="") as stream:
        lines = stream.read().split("\n")[:-1]  # what has no line break was cut off
    rows = list(csv.DictReader(lines))
    return [row for row in rows if None not in row and None not in row.values()]


def open_events(folder: Path, updates: int) -> Events | None:
    """TensorBoard's writer, or None where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        log.info("tensorboard_skipped", reason="not installed")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    writer: Any = SummaryWriter(str(folder), purge_step=updates or None)
    events: Events = writer
    return events


def draw_curves(folder: Path) -> bool:
    """Draw `curves.png` from `metrics.csv`; whether it was: matplotlib may be missing, and a run may have no row."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        log.info("curves_skipped", reason="matplotlib is not installed")
        return False
    rows = read_metrics(folder / "metrics.csv")
    if not rows:
        return False
    panels = [*PANELS, *task_panels(list(rows[0]))]
    height = math.ceil(len(panels) / 3)
    figure = Figure(figsize=(14, 3.5 * height), layout="constrained")
    for place, (title, columns) in enumerate(panels, 1):
        axes = figure.add_subplot(height, 3, place)
        for name in columns:
            points = [(float(row["trained_steps"]), float(row[name])) for row in rows if row.get(name)]
            if points:
                kind, _, task = name.partition("/")
                marker = "o" if kind.startswith("eval_") else None
                label = task if kind == "share" else kind
                axes.plot(*zip(*points, strict=True), label=label, marker=marker, linewidth=1)
        axes.set_title(title)
        axes.set_xlabel("trained steps")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="small", loc="upper left")  # looking for the best place takes longer than the rest
    figure.savefig(folder / "curves.png", dpi=100)
    return True


def task_panels(columns: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
    """A panel for each task's returns, and one for the shares of the batches; none in a run with one environment."""
    tasks = [name.partition("/")[2] for name in columns if name.startswith("return_mean/")]
    panels: list[tuple[str, tuple[str, ...]]] = [
        (f"return, {task}", (f"return_mean/{task}", f"eval_return_mean/{task}")) for task in tasks
    ]
    return [*panels, ("share of the batches", tuple(f"share/{task}" for task in tasks))] if tasks else []


def _cell(value: float | int | None) -> str:
    if value is None or not math.isfinite(value):
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6g}"
