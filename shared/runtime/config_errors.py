"""What is wrong with a setting, as the user wrote it: source, section and key, and the nearest known name."""

import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Tag, ValidationError
from pydantic_core import ErrorDetails

ENVIRONMENT_PREFIX = "SEEDBED_"
QUOTED = re.compile(r"'([^']*)'")  # the values in a message of pydantic
MAX_LISTED = 40  # most names that an error message lists


def describe(
    model: type[BaseModel], detail: ErrorDetails, origins: Mapping[tuple[str, ...], str], file: Path | None
) -> str:
    """Return one validation error as "<source>: [section] key: what is wrong"."""
    loc = tuple(str(part) for part in detail["loc"])
    if not loc:  # of several sections, which the message names
        return f"{file or 'configuration'}: {detail['msg'].removeprefix('Value error, ')}"
    _, path = _follow(model, loc)
    path += ("name",) if detail["type"] == "union_tag_invalid" else ()
    origin = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), None)
    section, key = path[0], ".".join(path[1:])
    where = f"{origin or file or 'configuration'}: [{section}]" + (f" {key}" if key else "")
    if detail["type"] == "extra_forbidden":
        owner, _ = _follow(model, loc[:-1])
        if others := _tags_with(model, loc[:-2], path[-1]):
            return f"{where}: a key of name = {' or '.join(map(repr, others))}, not of name = {loc[-2]!r}"
        return f"{where}: unknown key{suggest(path[-1], tuple(owner.model_fields) if owner else ())}"
    if detail["type"] == "union_tag_invalid":
        value, known = detail["ctx"]["tag"], QUOTED.findall(detail["ctx"]["expected_tags"])
        hint = _nearest(value, known) or f"; `seedbed settings {section}` lists what each can be told"
        return f"{where}: {value!r} is none of {', '.join(known)}{hint}"
    if detail["type"] == "literal_error":
        return f"{where}: {detail['input']!r} is none of {detail['ctx']['expected']}{_nearest_quoted(detail)}"
    if detail["type"] == "missing":
        variable = f"{ENVIRONMENT_PREFIX}{section}__{'__'.join(path[1:])}".upper()
        return f"{where}: must be set, in the file, as {variable}, or as {section}.{key or 'key'}=…"
    message = detail["msg"].removeprefix("Value error, ")
    return (
        f"{where}: {message}" if isinstance(detail["input"], dict) else f"{where}: {message}, not {detail['input']!r}"
    )


def is_inherited(detail: ErrorDetails, error: ValidationError) -> bool:
    """Whether a task's error only repeats one of [env], which is reported there."""
    said = {(item["loc"], item["type"]) for item in error.errors()}
    return detail["loc"][:1] == ("tasks",) and (detail["loc"][2:], detail["type"]) in said


def _follow(model: type[BaseModel], path: Sequence[str]) -> tuple[type[BaseModel] | None, tuple[str, ...]]:
    """Return the model in which an error's path ends, and the path as a user writes it.

    It follows `X | None` and tables by name. If the models of a field are distinguished by a tag, the tag is in the
    path of the error, but in no file.
    """
    found: type[BaseModel] | None = model
    written: list[str] = []
    by_name: Any = None  # the type of the entries of a table by name
    tagged: dict[str, type[BaseModel]] = {}  # the models of a tagged union, by tag
    for name in path:
        if name in tagged:
            found, tagged = tagged[name], {}
            continue
        written.append(name)
        field = found.model_fields.get(name) if found is not None else None
        annotation: Any = by_name if by_name is not None else field.annotation if field is not None else None
        by_name = typing.get_args(annotation)[1] if typing.get_origin(annotation) is dict else None
        options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
        tagged = {tag.tag: item for item, tag in map(_tagged, options) if tag is not None}
        models = (item for item, _ in map(_tagged, options) if isinstance(item, type) and issubclass(item, BaseModel))
        found = next(models, None)
    return found, tuple(written)


def _tags_with(model: type[BaseModel], path: Sequence[str], key: str) -> list[str]:
    """Return the tags of those models at a path that have this key, if they are distinguished by tags."""
    owner, _ = _follow(model, path[:-1])
    field = owner.model_fields.get(path[-1]) if owner is not None and path else None
    options = typing.get_args(field.annotation) if field is not None and _is_union(field.annotation) else ()
    return [tag.tag for item, tag in map(_tagged, options) if tag is not None and key in item.model_fields]


def _tagged(annotation: Any) -> tuple[Any, Tag | None]:
    """Return a type, and its tag in a union, if it has one."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation, None
    inner, *metadata = typing.get_args(annotation)
    return inner, next((item for item in metadata if isinstance(item, Tag)), None)


def _is_union(annotation: Any) -> bool:
    """Whether a field's type is a union, written either way."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def suggest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?` if a known name is similar, else `; known: …` unless that list is empty or long."""
    if near := _nearest(name, known):
        return near
    return f"; known: {', '.join(known)}" if 0 < len(known) <= MAX_LISTED else ""


def _nearest_quoted(detail: ErrorDetails) -> str:
    """Return the same as `_nearest`, among the quoted values that an error expects."""
    return _nearest(str(detail["input"]), QUOTED.findall(detail["ctx"]["expected"]))


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?` with the most similar known name; "" if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
