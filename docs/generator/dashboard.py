"""Writes Grafana's dashboard anew, from the metrics that `seedbed.shared.figures` declares.

.venv/bin/python -m docs.generator.dashboard
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seedbed.shared.figures import actor, inference, learner, monitor, service
from seedbed.shared.figures.declare import Metric, Quotient
from seedbed.shared.figures.panels import PANELS, Panel

FILE = Path(__file__).resolve().parents[2] / "compose" / "grafana" / "dashboards" / "seedbed.json"
SOURCE = {"type": "prometheus", "uid": "seedbed-prometheus"}
RUN = '{run=~"$run"}'
WINDOW = "[1m]"
COLUMNS, WIDTH, HEIGHT = 3, 8, 8  # of panels, and of one in Grafana's grid
CURVES = {"fillOpacity": 8, "lineWidth": 1, "showPoints": "never"}
CURVE_OPTIONS = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
UP_OR_DOWN = {
    "color": {"mode": "thresholds"},
    "thresholds": {"mode": "absolute", "steps": [{"color": "red", "value": None}, {"color": "green", "value": 1}]},
    "mappings": [{"type": "value", "options": {"0": {"text": "down"}, "1": {"text": "up"}}}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One panel: (expression, legend) for each of its queries."""

    title: str
    queries: Sequence[tuple[str, str]]
    description: str = ""
    unit: str = "none"
    kind: str = "timeseries"
    width: int = WIDTH
    custom: dict[str, Any] = field(default_factory=lambda: CURVES)
    defaults: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=lambda: CURVE_OPTIONS)


def value(metric: Metric | str) -> str:
    """Return the expression of a metric's present value; a text is the name of a metric of Prometheus' own."""
    return (metric if isinstance(metric, str) else metric.sample) + RUN


def rate(metric: Metric | str, by: str = "") -> str:
    """Return the expression of a counter's rise in a second."""
    risen = f"rate({value(metric)}{WINDOW})"
    return f"sum by ({by}) ({risen})" if by else risen


def mean(figure: Metric | Quotient) -> str:
    """Return the expression of the mean of a quotient's or a histogram's values."""
    if isinstance(figure, Quotient):
        return f"{rate(figure.total)} / {rate(figure.count)}"
    return f"{rate(f'{figure.family}_sum')} / {rate(f'{figure.family}_count')}"


def quantile(share: float, figure: Metric, by: str) -> str:
    """Return the expression of a quantile of a histogram's values."""
    return f"histogram_quantile({share}, {rate(f'{figure.family}_bucket', by)})"


def chart(panel: Panel) -> Chart:
    """Return a chart of the page as Grafana shows it: the newest values of its columns."""
    return Chart(
        title=panel.title,
        description=f"{panel.unit}; {panel.note}" if panel.note else panel.unit,
        queries=[
            (
                f'{learner.COLUMN.sample}{{run=~"$run",column="{line.column.name}"}}',
                " ".join(filter(None, ("{{run}}", line.label))),
            )
            for line in panel.lines
        ],
    )


CHARTS = (  # of metrics that are no columns of metrics.csv, or that say more than these
    Chart(
        title="Return",
        description="Sum of an episode's rewards: last 100 training episodes, and the last evaluation.",
        queries=[(value(learner.RETURN_MEAN), "{{run}}"), (value(learner.EVAL_RETURN_MEAN), "{{run}} evaluated")],
    ),
    Chart(
        title="Speed",
        description="Agent steps per second.",
        unit="short",
        queries=[
            (rate(inference.ACTED_STEPS, "run"), "{{run}} acted"),
            (rate(learner.TRAINED_STEPS, "run"), "{{run}} trained"),
        ],
    ),
    Chart(
        title="Alerts",
        description="What the monitor thinks is wrong; its page says what to do.",
        queries=[(f"sum by (run, alert) ({value(monitor.ALERTS)}) > 0", "{{run}} {{alert}}")],
    ),
    Chart(
        title="Policy lag",
        description="Updates between acting and learning, of every transition that came to an update.",
        kind="heatmap",
        custom={},
        options={
            "calculate": False,
            "yAxis": {"unit": "none"},
            "color": {"mode": "scheme", "scheme": "Viridis", "steps": 64},
            "cellGap": 1,
            "legend": {"show": True},
            "tooltip": {"mode": "single"},
        },
        queries=[(f"sum by (le) (increase({value(f'{learner.POLICY_LAG.family}_bucket')}{WINDOW}))", "{{le}}")],
    ),
    Chart(
        title="Policy lag, quantiles",
        description="Updates.",
        queries=[
            (quantile(0.5, learner.POLICY_LAG, "run, le"), "{{run}} p50"),
            (quantile(0.99, learner.POLICY_LAG, "run, le"), "{{run}} p99"),
            (value(learner.LAG_MAX), "{{run}} max"),
        ],
    ),
    Chart(
        title="Dropped",
        description="Per second.",
        unit="short",
        queries=[
            (rate(learner.DROPPED_STEPS), "{{run}} too old"),
            (rate(learner.LOST_EPOCH_STEPS), "{{run}} of a lost epoch"),
            (rate(learner.REFUSED_MESSAGES), "{{run}} refused at the learner"),
            (rate(inference.REFUSED_MESSAGES), "{{run}} refused at {{name}}"),
            (rate(inference.LOST_GROUPS), "{{run}} groups lost at {{name}}"),
        ],
    ),
    Chart(
        title="Batch fill",
        description="Lanes in a forward pass.",
        queries=[
            (mean(inference.BATCH_FILL), "{{run}} {{name}}"),
            (value(inference.LANES), "{{run}} {{name}} all lanes"),
        ],
    ),
    Chart(
        title="Inference",
        description="How long a group waits for its batch, and how long a batch takes.",
        unit="s",
        queries=[
            (mean(inference.QUEUE_WAIT), "{{name}} queue"),
            (mean(inference.FORWARD_SECONDS), "{{name}} forward"),
            (quantile(0.99, inference.FORWARD_SECONDS, "name, le"), "{{name}} forward p99"),
        ],
    ),
    Chart(
        title="Update",
        unit="s",
        queries=[
            (mean(learner.UPDATE_SECONDS), "{{run}} mean"),
            (quantile(0.99, learner.UPDATE_SECONDS, "run, le"), "{{run}} p99"),
        ],
    ),
    Chart(
        title="Busy",
        description="Share of the time.",
        unit="percentunit",
        queries=[
            (rate(f"{learner.UPDATE_SECONDS.family}_sum"), "{{run}} updates"),
            (rate(inference.FORWARD.total), "{{name}} forward"),
            (rate(actor.BUSY_SECONDS), "{{name}} environments"),
        ],
    ),
    Chart(
        title="Processor",
        description="1 is a whole core.",
        unit="percentunit",
        queries=[(rate("process_cpu_seconds_total"), "{{name}}")],
    ),
    Chart(title="Memory", unit="bytes", queries=[(value("process_resident_memory_bytes"), "{{name}}")]),
    Chart(
        title="Services",
        description="Green: answers.",
        kind="state-timeline",
        width=2 * WIDTH,
        custom={"fillOpacity": 70},
        defaults=UP_OR_DOWN,
        options={"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}, "rowHeight": 0.8},
        queries=[(value(monitor.UP), "{{run}} {{name}}")],
    ),
    Chart(
        title="Loop lag",
        description="How late the event loop's last timer was.",
        unit="s",
        queries=[(value(service.LOOP_LAG), "{{name}}")],
    ),
    Chart(
        title="The environment's own statistics",
        description="Means of the statistics that the environment declares: over the last 100 training episodes, and "
        "of the last evaluation.",
        width=2 * WIDTH,
        queries=[
            (value(learner.STATISTIC), "{{run}} {{statistic}}, training"),
            (value(learner.EVAL_STATISTIC), "{{run}} {{statistic}}, evaluated"),
        ],
    ),
)


BOARD = (*CHARTS, *(chart(panel) for panel in PANELS if panel.title not in {made.title for made in CHARTS}))


def dashboard() -> dict[str, Any]:
    """Return the dashboard as JSON values."""
    runs = {
        "name": "run", "label": "run", "type": "query", "datasource": SOURCE,
        "query": {"query": f"label_values({service.INFO.sample}, run)", "refId": "run"},
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".+", "sort": 2,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip
    return {
        "uid": "seedbed", "title": "seedbed", "description": "Runs of seedbed, from the monitor's /metrics.",
        "tags": ["seedbed"], "timezone": "browser", "schemaVersion": 39, "version": 1, "editable": True,
        "refresh": "5s", "time": {"from": "now-30m", "to": "now"}, "templating": {"list": [runs]},
        "annotations": {"list": []}, "links": [], "panels": _panels(),
    }  # fmt: skip


def _panels() -> list[dict[str, Any]]:
    panels, x, y = [], 0, 0
    for number, chart in enumerate(BOARD, 1):
        if x + chart.width > COLUMNS * WIDTH:
            x, y = 0, y + HEIGHT
        place = {"x": x, "y": y, "w": chart.width, "h": HEIGHT}
        x += chart.width
        panels.append(
            {
                "id": number, "type": chart.kind, "title": chart.title, "description": chart.description,
                "datasource": SOURCE, "gridPos": place,
                "fieldConfig": {
                    "defaults": {"unit": chart.unit, "custom": chart.custom, **chart.defaults}, "overrides": [],
                },
                "options": chart.options, "targets": _targets(chart),
            }
        )  # fmt: skip
    return panels


def _targets(chart: Chart) -> list[dict[str, Any]]:
    more = {"format": "heatmap"} if chart.kind == "heatmap" else {}
    return [
        {"datasource": SOURCE, "expr": expression, "legendFormat": legend, "refId": chr(ord("A") + place), **more}
        for place, (expression, legend) in enumerate(chart.queries)
    ]


def text() -> str:
    """The content of the file."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
