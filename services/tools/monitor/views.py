"""What the page is told, as JSON values: the list of runs, one run, its curves. Pure; NaN and infinity become null.

No view has a clock of its own, so the same state is the same text, and a page that has it is told so (ETag).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from seedbed.services.tools.cli.run_state import RunStatus
from seedbed.services.tools.monitor import lag
from seedbed.services.tools.monitor.alerts import Alert
from seedbed.services.tools.monitor.curves import Array
from seedbed.services.tools.monitor.health import ServiceHealth
from seedbed.services.tools.monitor.logs import LogLine
from seedbed.services.tools.monitor.reading import RunReader
from seedbed.services.tools.monitor.settings import differences, flatten, hide_secrets
from seedbed.services.tools.monitor.table import JUDGED
from seedbed.shared.figures import columns, inference, learner
from seedbed.shared.figures.panels import Panel
from seedbed.shared.protocol.statistics import evaluation_column, own_statistics, training_column
from seedbed.shared.runtime.env_name import EnvName

SUMMARY_NAMES = {  # in the summary → here
    "seconds": columns.SECONDS.name,
    "trained_steps": columns.TRAINED_STEPS.name,
    "env_steps": columns.ENV_STEPS.name,
    "updates": columns.UPDATES.name,
    "episodes": columns.EPISODES.name,
    "episode_return_mean": columns.RETURN_MEAN.name,
    "eval_return_mean": columns.EVAL_RETURN_MEAN.name,
    "trained_steps_per_s": columns.TRAINED_STEPS_PER_S.name,
    "env_steps_per_s": columns.ENV_STEPS_PER_S.name,
    "policy_lag_mean": columns.LAG_MEAN.name,
    "policy_lag_max": columns.LAG_MAX.name,
}
RATES = (columns.TRAINED_STEPS_PER_S.name, columns.ENV_STEPS_PER_S.name)
MAX_KWARGS = 4  # that stand beside an environment's name
MAX_DIFFERENCES = 8  # that a run in the list shows


def panels_view(panels: Iterable[Panel]) -> list[dict[str, Any]]:
    """The charts that the page draws, each with its lines, as JSON values."""
    return [
        {
            "title": panel.title,
            "unit": panel.unit,
            "note": panel.note,
            "isOptional": panel.is_optional,
            "lines": [
                {"column": line.column.name, "name": line.label, "style": line.style, "scale": line.scale,
                 "unit": line.unit, "isRate": line.is_rate}
                for line in panel.lines
            ],
        }
        for panel in panels
    ]  # fmt: skip


def run_view(run: RunReader) -> dict[str, Any]:
    """One run in the list: who it is, where it is, its figures."""
    facts, config = run.facts, run.facts.config
    table = config.get("run", {})
    return {
        "name": run.name,
        "experiment": _text(table.get("name")),
        "env": env_label(config),
        "seed": _number(table.get("seed")),
        "created": facts.created,
        "cause": hide_secrets(facts.status.cause) if not run.is_live else "",
        "ended_at": facts.status.at if not run.is_live else None,
        "differs": [],
        "changed_at": facts.changed_at,
        "state": run.state_word,
        "is_live": run.is_live,
        "services_up": run.num_up,
        "goal": {name: _number(table.get(name)) for name in ("steps", "seconds")},
        "figures": run_figures(run),
        "statistics": statistic_figures(run),
    }


def run_figures(run: RunReader) -> dict[str, float | None]:
    """Its figures: from the live services, else the table's last rows, else the summary."""
    summary = run.facts.summary
    figures = {name: _number(summary.get(key)) for key, name in SUMMARY_NAMES.items()}
    if run.table is not None and (run.is_live or not summary):
        curves = run.table.curves
        last = {name: _number(curves.last(name)) for name in SUMMARY_NAMES.values()}
        if not run.is_live:
            last |= {name: _number(curves.last_at_work(name)) for name in RATES}
        figures |= {name: value for name, value in last.items() if value is not None}
    live = run.live
    if live is not None:
        now = {
            columns.SECONDS: live.last(learner.SECONDS),
            columns.TRAINED_STEPS: live.total(learner.TRAINED_STEPS),
            columns.ENV_STEPS: live.total(learner.ENV_STEPS),
            columns.UPDATES: live.total(learner.UPDATES),
            columns.RETURN_MEAN: live.last(learner.RETURN_MEAN),
            columns.EVAL_RETURN_MEAN: live.evaluated_return,
            columns.TRAINED_STEPS_PER_S: live.rate(learner.TRAINED_STEPS),
            columns.ENV_STEPS_PER_S: live.rate(inference.ACTED_STEPS),
            columns.LAG_MEAN: live.last(learner.LAG_MEAN),
            columns.LAG_MAX: live.last(learner.LAG_MAX),
        }
        figures |= {column.name: number for column, value in now.items() if (number := _number(value)) is not None}
    return figures


def statistic_figures(run: RunReader) -> dict[str, list[float | None]]:
    """The means of the environment's own statistics, [training, evaluation]: from where the other figures are."""
    summary, table, live = run.facts.summary, run.table, run.live
    found: dict[str, list[float | None]] = {
        name: [_number(summary.get(training_column(name))), _number(summary.get(evaluation_column(name)))]
        for name in own_statistics(summary)
    }
    if table is not None and (run.is_live or not summary):
        curves = table.curves
        for name in table.statistics:
            found[name] = [curves.last(training_column(name)), curves.last(evaluation_column(name))]
    if live is not None:
        for name in live.statistics:
            found[name] = [_number(live.last(metric, name)) for metric in (learner.STATISTIC, learner.EVAL_STATISTIC)]
    return found


def env_label(config: Mapping[str, Mapping[str, Any]]) -> str:
    """What a run's environment is called: for a function, which could make anything, what it was told to make."""
    tasks = config.get("tasks", {})
    if tasks:
        return f"tasks {', '.join(tasks)}"
    env = config.get("env", {})
    env_id, given = _text(env.get("id")), env.get("kwargs")
    kwargs = given if EnvName.of(env_id).is_function and isinstance(given, dict) else {}
    named = [text if isinstance(kwargs.get(key), str) else f"{key}={text}" for key, text in flatten(kwargs).items()]
    return " · ".join([env_id, *named][: 1 + MAX_KWARGS])


def overview(
    runs: Sequence[RunReader], alerts: Iterable[Alert], *, folder: str, num_left_out: int, problem: str
) -> dict[str, Any]:
    """All runs as the page lists them, the newest first."""
    listed = [run_view(run) for run in runs]
    like: defaultdict[str, list[int]] = defaultdict(list)
    for place, view in enumerate(listed):
        like[view["experiment"]].append(place)
    for places in like.values():
        for place, differs in zip(places, differences([runs[place].settings for place in places]), strict=True):
            listed[place]["differs"] = list(differs.items())[:MAX_DIFFERENCES]
    return {
        "folder": folder,
        "problem": problem,
        "num_left_out": num_left_out,
        "runs": listed,
        "alerts": [asdict(alert) for alert in alerts],
    }


def detail(run: RunReader) -> dict[str, Any]:
    """One run's services and histogram of policy lag."""
    return {
        "name": run.name,
        "is_live": run.is_live,
        "services": [service_view(service) for service in run.services],
        "lag": lag.view(run.lag_histogram, run.max_policy_lag, is_recent=run.is_live),
        "videos": list(run.facts.videos),
        "ended": ended(run.facts.status) if not run.is_live else None,
    }


def ended(status: RunStatus) -> dict[str, str]:
    """How a run ended, and what the service that failed it said last."""
    words = {"state": status.state.value, "cause": status.cause, "last_words": status.last_words}
    return {name: hide_secrets(text) for name, text in words.items()}


def settings_view(run: RunReader) -> dict[str, Any]:
    """Every setting of a run, without secrets."""
    return {"name": run.name, "settings": list(run.settings.items())}


def logs_view(name: str, lines: Sequence[LogLine]) -> dict[str, Any]:
    """The last lines of a run's logs."""
    return {"name": name, "lines": [asdict(line) for line in lines]}


def service_view(service: ServiceHealth) -> dict[str, Any]:
    """One service. Figures are rounded as they are shown, so that an idle run's answer does not change."""
    view = asdict(service)
    for name, digits in (("cpu_percent", 0), ("memory_bytes", -5), ("loop_lag_ms", 1)):
        value = _number(view[name])
        view[name] = None if value is None else round(value, digits)
    return view


def curves_view(run: RunReader) -> dict[str, Any]:
    """Every column that has a value, as [mean] or, where buckets hold several rows, [mean, low, high], f32 [N]."""
    table = run.read_table()
    curves = table.curves
    drawn: dict[str, list[Array]] = {}
    for column in curves.columns:
        if column in JUDGED:
            continue
        curve = curves.curve(column)
        if not np.isfinite(curve.mean).any():
            continue
        parts = (curve.mean,) if curves.stride == 1 else (curve.mean, curve.low, curve.high)
        with np.errstate(over="ignore"):  # seven digits are enough; what is beyond f32 is infinite, null in JSON
            drawn[column] = [part.astype(np.float32) for part in parts]
    return {
        "name": run.name,
        "rows": curves.num_rows,
        "rows_per_point": curves.stride,
        "share_read": round(table.share_read, 3),
        "problem": run.table_problem,
        "tasks": list(table.tasks),
        "ranks": list(table.ranks),
        "statistics": list(table.statistics),
        "columns": drawn,
    }


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
