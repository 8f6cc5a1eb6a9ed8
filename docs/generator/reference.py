"""The reference tables of the site, read from the code: commands, settings and metrics."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import typer

import seedbed.actor_svc.tally
import seedbed.inference_svc.metrics
import seedbed.learner_svc.metrics
from seedbed.services.cli.app import app
from seedbed.services.cli.settings import list_settings

PREFIX = "seedbed_"
SECTIONS = {
    "run": "What is trained, and when it ends.",
    "env": "The environment; `[tasks.NAME]` in place of it where a run has several.",
    "tasks": "One table for each task, see [Several tasks, one policy](../tasks.md).",
    "actor": "The processes that step environments.",
    "inference": "The service that runs the policy.",
    "learner": "The service that trains it.",
    "algorithm": "The [loss](../algorithms.md) and the optimiser; [how to set them](../tuning.md).",
    "policy": "The network, see [A network of your own](../networks.md).",
    "eval": "Evaluations, during training and at its end.",
    "launch": "What `seedbed train` starts.",
    "runtime": "What every service has: keys, logs, its own metrics.",
    "monitor": "The [web page](../monitor.md).",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric as Prometheus sees it."""

    name: str
    kind: str
    labels: Sequence[str]
    description: str


class MetricNames:
    """Takes the place of `seedbed.shared.runtime.metrics.Metrics`, and keeps what is registered."""

    def __init__(self) -> None:
        self.found: list[Metric] = []

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> MagicMock:
        """As `Metrics.counter`."""
        return self._keep("counter", name, description, labels)

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> MagicMock:
        """As `Metrics.gauge`."""
        return self._keep("gauge", name, description, labels)

    def histogram(self, name: str, description: str, labels: Sequence[str] = (), **_more: object) -> MagicMock:
        """As `Metrics.histogram`."""
        return self._keep("histogram", name, description, labels)

    def read_counter(self, name: str, description: str, _read: object) -> None:
        """As `Metrics.read_counter`."""
        self._keep("counter", name, description)

    def read_gauge(self, name: str, description: str, _read: object) -> None:
        """As `Metrics.read_gauge`."""
        self._keep("gauge", name, description)

    def read_histogram(self, name: str, description: str, _bounds: object, _read: object) -> None:
        """As `Metrics.read_histogram`."""
        self._keep("histogram", name, description)

    def read_counters(self, name: str, description: str, labels: str | tuple[str, ...], _read: object) -> None:
        """As `Metrics.read_counters`."""
        self._keep("counter", name, description, (labels,) if isinstance(labels, str) else labels)

    def read_gauges(self, name: str, description: str, labels: str | tuple[str, ...], _read: object) -> None:
        """As `Metrics.read_gauges`."""
        self._keep("gauge", name, description, (labels,) if isinstance(labels, str) else labels)

    def _keep(self, kind: str, name: str, description: str, labels: Sequence[str] = ()) -> MagicMock:
        full = PREFIX + name + ("_total" if kind == "counter" else "")
        self.found.append(Metric(name=full, kind=kind, labels=labels, description=description))
        return MagicMock()


def metrics_of(*registers: Callable[..., Any]) -> list[Metric]:
    """What functions register that take a `Metrics` and then objects whose figures are read only when scraped."""
    names = MetricNames()
    for register in registers:
        register(names, *(MagicMock() for _ in range(register.__code__.co_argcount - 1)))
    return names.found


def settings() -> str:
    """All settings, a table for each section."""
    sections = defaultdict(list)
    for item in list_settings():
        sections[item.name.split(".")[0]].append(item)
    parts = []
    for section, items in sections.items():
        rows = [(f"`{item.name}`", _code(item.default), _cell(item.values), _cell(item.description)) for item in items]
        parts += [f"## `[{section}]`", SECTIONS[section], _table(("setting", "default", "values", "meaning"), rows)]
    return "\n\n".join(parts)


def commands() -> str:
    """All commands, with their arguments and options."""
    return "\n\n".join(_sections(typer.main.get_command(app), "seedbed"))


def actor_metrics() -> str:
    """Those of an actor."""
    return _metrics_table(metrics_of(seedbed.actor_svc.tally.register))


def inference_metrics() -> str:
    """Those of inference, with those of a policy that is served without a learner."""
    return _metrics_table(
        metrics_of(seedbed.inference_svc.metrics.register, seedbed.inference_svc.metrics.register_audience)
    )


def learner_metrics() -> str:
    """Those of the learner, those of tasks included."""
    return _metrics_table(metrics_of(seedbed.learner_svc.metrics.register))


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "actor_metrics": actor_metrics,
    "inference_metrics": inference_metrics,
    "learner_metrics": learner_metrics,
}


def _metrics_table(metrics: Iterable[Metric]) -> str:
    rows = [
        (f"`{item.name}`", item.kind, ", ".join(f"`{label}`" for label in item.labels), _cell(item.description))
        for item in metrics
    ]
    return _table(("metric", "kind", "labels", "meaning"), rows)


def _sections(command: Any, path: str) -> Iterator[str]:
    """A heading, what the command does and its parameters; then the same for its subcommands."""
    context = command.make_context(path, [], resilient_parsing=True)
    inner = getattr(command, "commands", {})
    if " " in path:
        yield f"{'#' * (1 + path.count(' '))} `{path}`"
    yield _markdown(command.help or "")
    if not inner:
        words = [item.metavar or item.name.upper() for item in command.params if _is_word(item)]
        yield f"```text\n{' '.join([path, *words, '[OPTIONS]'])}\n```"
    rows = [_parameter(item, context) for item in command.params]
    if rows:
        yield _table(("word or option", "meaning"), rows)
    for name in inner:
        yield from _sections(inner[name], f"{path} {name}")


def _parameter(parameter: Any, context: Any) -> tuple[str, str]:
    """A row: how it is written on the command line, and what it means."""
    name, meaning = parameter.get_help_record(context)
    if _is_word(parameter):
        name = parameter.metavar or parameter.name.upper()
    return f"<code>{_cell(name)}</code>", _cell(meaning)


def _is_word(parameter: Any) -> bool:
    return str(parameter.param_type_name) == "argument"


def _markdown(text: str) -> str:
    return " ".join(text.replace("[bold]", "`").replace("[/]", "`").split())


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cell(text: str) -> str:
    """Text that is no table's nor HTML's own."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return plain.replace("|", "&#124;").replace("[", "&#91;").replace("*", "&#42;").replace("_", "&#95;")
