"""What limits a run, for `seedbed explain` and for the page, from the curves of its metrics.csv."""

import math
from pathlib import Path
from typing import Any

from seedbed.services.tools.cli.explain import Signals, diagnose, summarise
from seedbed.services.tools.monitor.table import MetricsTable
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference


def judge(table: MetricsTable, max_policy_lag: float | None) -> dict[str, Any]:
    """Bottleneck, evidence, what to turn, and what else was noticed; or why nothing can be said."""
    try:
        signals = signals_of(table, max_policy_lag)
    except ConfigError as error:
        return {"problem": str(error)}
    diagnosis = diagnose(signals)
    return {
        "bottleneck": diagnosis.bottleneck.value,
        "evidence": diagnosis.evidence,
        "knobs": list(diagnosis.knobs),
        "remarks": list(diagnosis.remarks),
        "busy": {
            "learner": signals.figures[columns.UPDATE_BUSY_SHARE],
            "inference": signals.inference_busy_share,
            "environments": signals.figures[inference.ENV_BUSY.column],
            "machine": signals.figures[columns.MACHINE_BUSY_SHARE],
        },
    }


def read_signals(run_dir: Path, max_policy_lag: float | None = None) -> Signals:
    """The signals of a run, whose table may be long or damaged: its curves are read, which are bounded.

    Raises: ConfigError if the table cannot be read, or the run has not got far enough.
    """
    file = run_dir / "metrics.csv"
    table = MetricsTable(file)
    if not file.is_file():
        raise ConfigError(f"{file}: there is no such file; is this a run folder?")
    try:
        table.advance(math.inf)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    if table.problem:
        raise ConfigError(f"{file.parent}: {table.problem}")
    return signals_of(table, max_policy_lag, source=str(file))


def signals_of(table: MetricsTable, max_policy_lag: float | None, source: str = "metrics.csv") -> Signals:
    """The signals of what was read of a table. Raises: ConfigError if the run has not got far enough."""
    curves = table.curves
    of_ranks = {column.of(rank) for column in columns.RANK_COLUMNS for rank in table.ranks}
    names = [name for name in curves.columns if "/" not in name or name in of_ranks]
    points = {name: curves.curve(name).mean.tolist() for name in names}
    points[columns.LAG_MAX.name] = curves.curve(columns.LAG_MAX.name).high.tolist()
    rows = [
        {name: repr(value) for name, value in zip(points, values, strict=True)}
        for values in zip(*points.values(), strict=True)
    ]
    return summarise(rows, source=source, max_policy_lag=max_policy_lag)
