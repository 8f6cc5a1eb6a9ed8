"""Reads settings from recipe, experiment file, environment variables and command line into one checked model.

Precedence, weakest first: the recipe that `run.recipe` names, the TOML file, `SEEDBED_SECTION__KEY` variables, and
`section.key=value` words. A service reads the sections of its model and ignores those of other services. An unknown
section or key is an error.
"""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, create_model

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime import recipes
from seedbed.shared.runtime.config_errors import ENVIRONMENT_PREFIX, describe, is_inherited, suggest

S = TypeVar("S", bound=BaseModel)

KNOWN_SECTIONS = (
    "run", "env", "tasks", "actor", "inference", "learner", "policy", "algorithm", "eval", "launch", "runtime",
    "monitor",
)  # fmt: skip


def load_settings(
    model: type[S],
    file: Path | None,
    overrides: Sequence[str] = (),
    *,
    below: recipes.Tables | None = None,
) -> S:
    """Return the model, filled from recipe, file, environment variables and words, the later over the earlier.

    Where variables or words name another algorithm than the file, the file's settings of its own are left out, as
    those of a recipe are (`recipes.lay`).

    Args:
      model: the model whose fields are the sections that the caller reads.
      file: the experiment's TOML file, or None.
      overrides: words like "learner.batch=32"; the value is TOML, or else a plain string.
      below: tables of settings to use in place of those of the recipe that `run.recipe` names.
    Raises: ConfigError naming source and key, with the nearest known name.
    """
    merged: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    if file is not None:
        for section, table in read_toml(file).items():
            _check_section(section, f"{file}: [{section}]", section in model.model_fields)
            if not isinstance(table, dict):
                name = "tasks.NAME" if section == "tasks" else section
                raise ConfigError(f"{file}: {section} is a table: write [{name}] and its keys below")
            merged[section] = table
    placed: list[tuple[list[str], str, str]] = []  # path, text and origin
    for variable, text in sorted(os.environ.items()):
        _check_underscores(variable)
        if variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable:
            path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            placed.append((path, text, f"environment variable {variable}"))
    for word in overrides:
        name, equals, text = word.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"{word!r} is not section.key=value, for example learner.batch=32")
        placed.append((name.strip().split("."), text, f"command line {word!r}"))
    named = [text for path, text, _ in placed if path == ["algorithm", "name"]]
    if named:
        merged = recipes.fitting_algorithm(merged, {"name": parse_value(named[-1])})
    for path, text, origin in placed:
        _place(merged, origins, path, text, origin, model)
    merged = recipes.lay(merged, over=_find_recipe(merged) if below is None else below)
    chosen = {
        name: merged.get(name, {})
        for name, field in model.model_fields.items()
        if name in merged or (field.is_required() and name in KNOWN_SECTIONS)
    }
    try:
        return model.model_validate(chosen)
    except ValidationError as error:
        told = [detail for detail in error.errors() if not is_inherited(detail, error)]
        problems = [describe(model, detail, origins, file) for detail in told]
        raise ConfigError("\n".join(problems)) from error


def read_section(section: str, model: type[S], values: Mapping[str, Any]) -> S:
    """Return one section's values as a checked model. Raises: ConfigError naming section and key."""
    whole = create_model("Whole", **{section: (model, ...)})  # type: ignore[call-overload]
    try:
        found: S = getattr(whole.model_validate({section: dict(values)}), section)
    except ValidationError as error:
        raise ConfigError("\n".join(describe(whole, detail, {}, None) for detail in error.errors())) from error
    return found


def _find_recipe(merged: Mapping[str, Any]) -> recipes.Tables:
    """Return the settings of the recipe that `run.recipe` names; empty if it names none.

    Raises: ConfigError if the recipe is still to be chosen: only `seedbed train` looks at the environment.
    """
    run = merged.get("run", {})
    name = run.get("recipe", "") if isinstance(run, dict) else ""
    if recipes.is_open(name):
        raise ConfigError(
            f"[run] recipe = {name!r}: only `seedbed train` looks at the environment to choose one. For services that "
            "are started one by one write its name there; `seedbed recipes EXPERIMENT` tells it"
        )
    return recipes.read_recipe(name) if recipes.is_named(name) else {}


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises: ConfigError if it is missing or broken."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # Windows' editors put a mark before the text
    except FileNotFoundError as error:
        near = sorted(path.name for path in file.parent.glob("*.toml")) if file.parent.is_dir() else []
        raise ConfigError(f"{file}: no such file{suggest(file.name, near)}") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def _check_underscores(variable: str) -> None:
    """Refuse a variable such as SEEDBED_LEARNER_BATCH, which would be ignored silently.

    Kubernetes' own variables are allowed: a service named seedbed-learner gives every pod SEEDBED_LEARNER_PORT.
    """
    section, one, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("_")
    is_ours = variable.startswith(ENVIRONMENT_PREFIX) and section.lower() in KNOWN_SECTIONS
    if is_ours and one and not key.startswith(("_", "SERVICE_", "PORT")):
        meant = f"{ENVIRONMENT_PREFIX}{section}__{key}"
        raise ConfigError(f"environment variable {variable}: write {meant}, with two underscores after the section")


def _check_section(section: str, where: str, is_read: bool) -> None:
    """Refuse a section that no service knows."""
    if not is_read and section not in KNOWN_SECTIONS:
        raise ConfigError(f"{where}: unknown section{suggest(section, KNOWN_SECTIONS)}")


def _place(
    merged: dict[str, Any],
    origins: dict[tuple[str, ...], str],
    path: Sequence[str],
    text: str,
    origin: str,
    model: type[BaseModel],
) -> None:
    """Put one value, given as text, at its path, replacing what is there."""
    _check_section(path[0], origin, path[0] in model.model_fields)
    table: Any = merged
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} is a value, not a table")
    table[path[-1]] = value = parse_value(text)
    origins[tuple(path)] = origin
    if path[0] == "env" and isinstance(merged.get("tasks"), dict):
        for task in merged["tasks"].values():
            _give_way(task.get("env") if isinstance(task, dict) else None, path[1:], value)


def _give_way(own: Any, path: Sequence[str], value: Any) -> None:
    """Remove a key that a word or variable sets for all tasks from a task's own [env]; of `kwargs`, only its keys."""
    if not isinstance(own, dict) or not path:
        return
    if path[0] != "kwargs":
        own.pop(path[0], None)
    elif isinstance(own.get("kwargs"), dict):
        said = path[1:2] or (value if isinstance(value, dict) else ())
        own["kwargs"] = {key: kept for key, kept in own["kwargs"].items() if key not in said}


def parse_value(text: str) -> Any:
    """Return the value of a word: TOML, a JSON object, or else the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return _parse_object(text)
    value = parsed.pop("value", None)
    if parsed or not isinstance(value, (bool, int, float, str, list, dict)):
        return text  # a second key after a line break, or a date
    return value


def _parse_object(text: str) -> Any:
    """Return a JSON object, which other programs write instead of a TOML table; else the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text
