"""The reference tables of the site, read from the code: commands, settings, columns and metrics."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import typer

from seedbed.services.tools.cli.app import app
from seedbed.services.tools.cli.settings import list_settings
from seedbed.shared.figures import actor, inference, learner, monitor, service
from seedbed.shared.figures.columns import COLUMNS, RANK_COLUMNS
from seedbed.shared.figures.declare import Column, declared

SECTIONS = {
    "run": "What is trained, and when it ends.",
    "env": "The environment. A run with several environments has a table `[tasks.NAME]` for each.",
    "tasks": "One table for each task, see [Several tasks, one policy](../tasks.md).",
    "actor": "The processes that step environments.",
    "inference": "The service that runs the policy.",
    "learner": "The service that trains the policy.",
    "algorithm": "The [loss](../algorithms.md) and the optimiser; [how to set them](../tuning.md).",
    "policy": "The network, see [A network of your own](../networks.md).",
    "eval": "Evaluations, during training and at its end.",
    "launch": "What `seedbed train` starts.",
    "runtime": "Settings of every service: keys, logs, its own metrics.",
    "monitor": "The [web page](../monitor.md).",
}


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


def metrics(module: ModuleType) -> str:
    """Return the table of the metrics that a module declares."""
    rows = [
        (f"`{item.sample}`", item.kind, ", ".join(f"`{label}`" for label in item.labels), _cell(item.meaning))
        for item in declared(module)
    ]
    return _table(("metric", "kind", "labels", "meaning"), rows)


def columns(declared_columns: Sequence[Column]) -> str:
    """Columns of metrics.csv as a table."""
    rows = ((f"`{item.name}`", item.unit, item.meaning) for item in declared_columns)
    return _table(("column", "unit", "meaning"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "columns": partial(columns, COLUMNS),
    "rank_columns": partial(columns, RANK_COLUMNS),
    "actor_metrics": partial(metrics, actor),
    "inference_metrics": partial(metrics, inference),
    "learner_metrics": partial(metrics, learner),
    "service_metrics": partial(metrics, service),
    "monitor_metrics": partial(metrics, monitor),
}


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
