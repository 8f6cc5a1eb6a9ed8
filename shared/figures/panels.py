"""The charts of the web page, each of some columns, and which of them curves.png shows."""

from dataclasses import dataclass

from seedbed.shared.figures import columns, inference
from seedbed.shared.figures.declare import Column


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart.

    Args:
      label: beside the run's name; empty where the chart has one curve.
      style: "line", "dashed" or "mark".
      scale: factor for the values shown.
      unit: shown after a value under the pointer; empty for none.
      is_rate: whether it is 0 while the final evaluation runs, so that its mean before that is shown instead.
    """

    column: Column
    label: str = ""
    style: str = "line"
    scale: float = 1.0
    unit: str = ""
    is_rate: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart of the page: its title, its curves and how they are drawn."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    note: str = ""  # under the title
    is_optional: bool = False  # of some algorithms alone: left out where no run that is shown has a value


def plotted(column: Column) -> Panel:
    """Return the chart of a column that is declared with one. Raises: ValueError if it is not."""
    if column.plot is None:
        raise ValueError(f"column {column.name} has no plot: give it one in shared/figures/columns.py")
    return Panel(column.plot.title, column.plot.unit, (Line(column),), column.plot.note, is_optional=True)


EPISODES = "training: of the last 100 episodes"

RETURN = Panel(
    "Return", "of an episode",
    (Line(columns.RETURN_MEAN, "training"), Line(columns.EVAL_RETURN_MEAN, "evaluated", "mark")), EPISODES,
)  # fmt: skip
NORMALISED = Panel(
    "Normalised score", "%: 0 random play, 100 a person",
    (
        Line(columns.EVAL_NORMALISED, "evaluated", "mark", 100.0, "%"),
        Line(columns.EVAL_NORMALISED_MEAN, "mean over tasks", "mark", 100.0, "%"),
        Line(columns.EVAL_NORMALISED_MEDIAN, "median", "mark", 100.0, "%"),
        Line(columns.EVAL_NORMALISED_CAPPED_MEAN, "capped mean", "mark", 100.0, "%"),
    ), is_optional=True,
)  # fmt: skip
SPEED = Panel(
    "Speed", "steps/s",
    (
        Line(columns.TRAINED_STEPS_PER_S, "trained", is_rate=True),
        Line(columns.ENV_STEPS_PER_S, "acted", "dashed", is_rate=True),
    ),
)  # fmt: skip
LENGTH = Panel("Episode length", "steps, mean", (Line(columns.LENGTH_MEAN),))
LAG = Panel("Policy lag", "updates", (Line(columns.LAG_MEAN, "mean"), Line(columns.LAG_MAX, "most", "dashed")))

PANELS = (  # of the page, in its order
    RETURN,
    NORMALISED,
    SPEED,
    LENGTH,
    LAG,
    Panel(
        "Batch fill", "lanes of a forward pass",
        (Line(inference.BATCH_FILL.column, "filled"), Line(inference.NUM_LANES.column, "all lanes", "dashed")),
    ),
    Panel(
        "Inference", "ms",
        (Line(inference.QUEUE_WAIT.column, "queue"), Line(inference.FORWARD.column, "forward", "dashed")),
    ),
    Panel(
        "Busy", "% of the time",
        (
            Line(columns.UPDATE_BUSY_SHARE, "updates", scale=100.0, unit="%", is_rate=True),
            Line(inference.ENV_BUSY.column, "environments", "dashed", 100.0, "%", is_rate=True),
        ),
    ),
    Panel("Dropped", "% of the steps, too old", (Line(columns.DROPPED_SHARE, scale=100.0, unit="%"),)),
    *(plotted(column) for column in columns.COLUMNS if column.plot is not None),
    Panel(
        "Q", "of the actions taken",
        (Line(columns.Q_MEAN, "Q"), Line(columns.Q_TARGET_MEAN, "target", "dashed")), is_optional=True,
    ),
    Panel(
        "TD error", "|target - Q|",
        (Line(columns.TD_ERROR_MEAN, "mean"), Line(columns.TD_ERROR_MAX, "most", "dashed")), is_optional=True,
    ),
    Panel(
        "Replay", "sequences",
        (Line(columns.REPLAY_SEQUENCES, "kept"), Line(columns.REPLAY_AGE, "age", "dashed")), is_optional=True,
    ),
    Panel(
        "Priorities", "of sequences",
        (Line(columns.REPLAY_PRIORITY_MEAN, "mean"), Line(columns.REPLAY_PRIORITY_MAX, "most", "dashed")),
        is_optional=True,
    ),
)  # fmt: skip
PICTURE = (  # of curves.png
    RETURN, LENGTH, SPEED, plotted(columns.ENTROPY), plotted(columns.EXPLAINED_VARIANCE), LAG,
)  # fmt: skip
