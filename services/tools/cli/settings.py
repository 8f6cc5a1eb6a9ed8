"""Every setting by its name, with its default and what it is for: read from the models that check them."""

import difflib
import re
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.table import Table
from rich.text import Text

from seedbed.services.tools.cli.experiment import LaunchSettings
from seedbed.services.tools.monitor.config import MonitorConfig
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.tasks import TaskConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting as a user names it."""

    name: str  # section.key
    values: str
    default: str
    description: str


def list_settings(prefix: str = "") -> list[Setting]:
    """All settings, those of one section ("learner"), or one ("learner.batch").

    Raises: ConfigError with the nearest name if there is none.
    """
    sections = {name: _models(field.annotation) for name, field in LaunchSettings.model_fields.items()}
    sections |= {"tasks": [TaskConfig], "monitor": [MonitorConfig]}
    found = [setting for section, models in sections.items() for setting in _of_section(section, models)]
    chosen = [item for item in found if not prefix or item.name == prefix or item.name.startswith(f"{prefix}.")]
    if not chosen:
        known = [*sections, *(item.name for item in found)]
        near = difflib.get_close_matches(prefix, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sections)}"
        raise ConfigError(f"no section or setting {prefix!r}; {hint}")
    return chosen


def render_settings(settings: Sequence[Setting]) -> Table:
    """The settings as a table for a terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("setting", no_wrap=True)
    table.add_column("default", overflow="fold", max_width=24)
    table.add_column("values", overflow="fold", max_width=24)
    table.add_column("what it is for", ratio=1)
    for item in settings:
        table.add_row(item.name, Text(item.default), Text(item.values, style="dim"), Text(item.description))
    return table


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that a section can be: one, or several that are told apart by a name."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return [annotation]
    models = [get_args(tagged)[0] for tagged in get_args(annotation)]
    return [model for model in models if model.model_config.get("extra") != "allow"]  # whose settings are the user's


def _of_section(section: str, models: Sequence[type[BaseModel]]) -> list[Setting]:
    """The settings of a section; where its models differ, a setting says which of them has it, or what else it is."""
    prefix = "tasks.NAME" if section == "tasks" else section
    found: list[Setting] = []
    for key in dict.fromkeys(key for model in models for key in model.model_fields):
        having = [model for model in models if key in model.model_fields]
        variants = {_describe_field(model.model_fields[key]): model for model in reversed(having)}
        for (values, default, description), model in reversed(variants.items()):
            is_common = len(variants) == 1 and len(having) == len(models)
            name = "" if is_common or key == "name" else f"{model.model_fields['name'].default}: "
            found.append(
                Setting(
                    name=f"{prefix}.{key}", values=values, default=default, description=name + _sentence(description)
                )
            )
    return found


def _describe_field(field: FieldInfo) -> tuple[str, str, str]:
    """A field as (values, default, description), for people."""
    default = "" if field.default in (None, PydanticUndefined) else _text(field.default)
    return _values(field.annotation), default, field.description or ""


def _values(annotation: Any) -> str:
    """A type as its possible values, or its name."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _values(inner[0])
    if origin is Literal:
        return " | ".join(map(str, inner))
    if origin in (Union, types.UnionType):
        return " | ".join(_values(item) for item in inner if item is not type(None))
    if origin in (tuple, list):
        return f"list of {_values(inner[0])}"
    if origin is not None:
        return "table"
    return {"Path": "path", "str": "text", "int": "integer", "float": "number", "bool": "true | false"}.get(
        getattr(annotation, "__name__", str(annotation)), "table"
    )


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _sentence(text: str) -> str:
    """A description as a sentence begins; a symbol or a value that stands at its start keeps its case."""
    return (text[:1].upper() + text[1:] if re.match(r"[a-z]+('s)? ", text) else text).rstrip(".")
