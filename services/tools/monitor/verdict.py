"""What limits a run, as `seedbed explain` says it, from the curves that the monitor holds anyway."""

from typing import Any

from seedbed.services.tools.cli.explain import diagnose, summarise
from seedbed.services.tools.monitor.table import MetricsTable
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference


def judge(table: MetricsTable, max_policy_lag: float | None) -> dict[str, Any]:
    """Bottleneck, evidence, what to turn, and what else was noticed; or why nothing can be said."""
    curves = table.curves
    of_ranks = {column.of(rank) for column in columns.RANK_COLUMNS for rank in table.ranks}
    names = [name for name in curves.columns if "/" not in name or name in of_ranks]
    points = {name: curves.curve(name).mean.tolist() for name in names}
    points[columns.LAG_MAX.name] = curves.curve(columns.LAG_MAX.name).high.tolist()
    rows = [
        {name: repr(value) for name, value in zip(points, values, strict=True)}
        for values in zip(*points.values(), strict=True)
    ]
    try:
        signals = summarise(rows, source="metrics.csv", max_policy_lag=max_policy_lag)
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
