"""What the page is told, as JSON values: the list of runs, one run, its curves. Pure; NaN and infinity become null.

No view has a clock of its own, so the same state is the same text, and a page that has it is told so (ETag).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from services.monitor import lag
from services.monitor.alerts import Alert
from services.monitor.curves import Array
from services.monitor.health import Service
from services.monitor.reading import RunReader
from services.monitor.table import MetricsTable

SUMMARY_NAMES = {  # in the summary → here
    "seconds": "seconds",
    "trained_steps": "trained_steps",
    "env_steps": "env_steps",
    "updates": "updates",
    "episodes": "episodes",
    "episode_return_mean": "return_mean",
    "eval_return_mean": "eval_return_mean",
    "trained_steps_per_s": "trained_steps_per_s",
    "env_steps_per_s": "env_steps_per_s",
    "policy_lag_mean": "lag_mean",
    "policy_lag_max": "lag_max",
}
TABLE_NAMES = (*SUMMARY_NAMES.values(), "inference_batch_fill", "inference_lanes", "inference_queue_wait_ms",
               "inference_forward_ms", "update_ms")  # fmt: skip


def run_view(run: RunReader) -> dict[str, Any]:
    """One run in the list: who it is, where it is, its figures."""
    facts, config = run.facts, run.facts.config
    table = config.get("run", {})
    return {
        "name": run.name,
        "experiment": _text(table.get("name")),
        "env_id": _text(config.get("env", {}).get("id")),
        "seed": _number(table.get("seed")),
        "created": facts.created,
        "changed_at": facts.changed_at,
        "state": run.state_word,
        "is_live": run.is_live,
        "services_up": run.num_up,
        "goal": {name: _number(table.get(name)) for name in ("steps", "seconds", "until_return")},
        "figures": run_figures(run),
    }


def run_figures(run: RunReader) -> dict[str, float | None]:
    """Its figures: from the live services, else the table's last rows, else the summary."""
    summary = run.facts.summary
    figures = {name: _number(summary.get(key)) for key, name in SUMMARY_NAMES.items()}
    if run.table is not None and (run.is_live or not summary):
        last = {name: _number(run.table.curves.last(name)) for name in TABLE_NAMES}
        figures |= {name: value for name, value in last.items() if value is not None}
    live = run.figures
    if live is not None:
        now = {
            "seconds": live.seconds,
            "trained_steps": live.trained_steps,
            "env_steps": live.env_steps,
            "updates": live.updates,
            "return_mean": live.return_mean,
            "eval_return_mean": live.eval_return_mean,
            "trained_steps_per_s": live.trained_steps_per_s,
            "env_steps_per_s": live.acted_steps_per_s,
            "lag_mean": live.lag_mean,
            "lag_max": live.lag_max,
        }
        figures |= {name: number for name, value in now.items() if (number := _number(value)) is not None}
    return figures


def overview(
    runs: Sequence[RunReader], alerts: Iterable[Alert], *, folder: str, num_left_out: int, problem: str
) -> dict[str, Any]:
    """All runs, the newest first."""
    return {
        "folder": folder,
        "problem": problem,
        "num_left_out": num_left_out,
        "runs": [run_view(run) for run in runs],
        "alerts": [asdict(alert) for alert in alerts],
    }


def detail(run: RunReader) -> dict[str, Any]:
    """One run's services and histogram of policy lag."""
    bound = _number(run.facts.setting("learner", "max_policy_lag"))
    return {
        "name": run.name,
        "is_live": run.is_live,
        "services": [service_view(service) for service in run.services],
        "lag": lag.view(run.lag_histogram, bound, is_recent=run.is_live),
    }


def service_view(service: Service) -> dict[str, Any]:
    """One service. Figures are rounded as they are shown, so that an idle run's answer does not change."""
    view = asdict(service)
    for name, digits in (("cpu_percent", 0), ("memory_bytes", -5), ("loop_lag_ms", 1)):
        value = _number(view[name])
        view[name] = None if value is None else round(value, digits)
    return view


def curves_view(name: str, table: MetricsTable, problem: str) -> dict[str, Any]:
    """Every column that has a value, as [mean] or, where buckets hold several rows, [mean, low, high], f32 [N]."""
    curves = table.curves
    columns: dict[str, list[Array]] = {}
    for column in curves.columns:
        curve = curves.curve(column)
        if not np.isfinite(curve.mean).any():
            continue
        parts = (curve.mean,) if curves.stride == 1 else (curve.mean, curve.low, curve.high)
        with np.errstate(over="ignore"):  # seven digits are enough; what is beyond f32 is infinite, null in JSON
            columns[column] = [part.astype(np.float32) for part in parts]
    return {
        "name": name,
        "rows": curves.num_rows,
        "rows_per_point": curves.stride,
        "share_read": round(table.share_read, 3),
        "problem": problem,
        "tasks": list(table.tasks),
        "columns": columns,
    }


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
