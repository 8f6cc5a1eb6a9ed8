"""Turns the fields of an OpenEnv action, by JSON schema or settings, into spaces, and values of these into JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pydantic import Field

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import Section

FREE = ("metadata",)  # fields that every OpenEnv action has and no policy sets


class ActionSetting(Section):
    """`env.kwargs.action.<field>`: one of `n`, `values`, `low` with `high`, or `constant`."""

    n: int | None = Field(None, ge=1, description="Integers from `start` on, so many.")
    start: int = Field(0, description="The first of them.")
    values: list[Any] | None = Field(None, min_length=1, description="Any JSON values, of which the policy takes one.")
    low: float | None = Field(None, description="Least number.")
    high: float | None = Field(None, description="Greatest number.")
    shape: list[int] = Field([], description="Of an array of numbers or integers; none: a single one.")
    constant: Any = Field(None, description="Sent with every action.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionField:
    """One field of an action that the policy chooses."""

    name: str
    space: gymnasium.Space[Any]
    values: tuple[Any, ...] | None = None  # what the numbers of a Discrete space stand for

    def to_json(self, value: Any) -> Any:
        """Return a value of the space as the JSON that the server takes."""
        return np.asarray(value).tolist() if self.values is None else self.values[int(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """The form of an action: the fields that the policy chooses, and the constants sent with every action."""

    fields: tuple[ActionField, ...]
    constants: Mapping[str, Any]

    @property
    def space(self) -> gymnasium.Space[Any]:
        """A Dict space by field name, or the field's own space if there is only one."""
        if len(self.fields) == 1:
            return self.fields[0].space
        return spaces.Dict({field.name: field.space for field in self.fields})

    def to_json(self, action: Any) -> dict[str, Any]:
        """Return a value of the space as the JSON fields of an action, with the constants."""
        named = {self.fields[0].name: action} if len(self.fields) == 1 else action
        return {**self.constants, **{field.name: field.to_json(named[field.name]) for field in self.fields}}


def action_form(schema: Mapping[str, Any], said: Mapping[str, ActionSetting]) -> ActionForm:
    """Return the form of actions with this JSON schema.

    Args:
      schema: the server's JSON schema of an action.
      said: settings by field; they override the schema.
    Raises: ConfigError naming a field whose values are not known, or a setting for a field that does not exist.
    """
    properties: Mapping[str, Any] = schema.get("properties", {})
    if unknown := sorted(said.keys() - properties.keys()):
        raise ConfigError(f"env.kwargs.action: this server's actions have no {unknown[0]!r}; known: {list(properties)}")
    fields: list[ActionField] = []
    constants: dict[str, Any] = {}
    for name, own in properties.items():
        found: ActionField | None
        if name in said and "constant" in said[name].model_fields_set:
            constants[name] = said[name].constant
            continue
        if name in said:
            found = _from_setting(name, said[name])
        elif name in FREE:
            continue
        else:
            own = _resolve(own, schema)
            if "const" in own:
                constants[name] = own["const"]
                continue
            found = _from_schema(name, own)
            if found is None and name not in schema.get("required", ()):
                continue  # the server has a default
        if found is None:
            raise ConfigError(
                f"env.kwargs.action: the server does not say which values {name!r} may have: set {name} = "
                '{n = 4}, {values = ["left", "right"]}, {low = -1.0, high = 1.0} or {constant = 0}'
            )
        fields.append(found)
    if not fields:
        raise ConfigError("env.kwargs.action: no field is left for the policy")
    return ActionForm(fields=tuple(fields), constants=constants)


def _from_setting(name: str, setting: ActionSetting) -> ActionField:
    is_box = setting.low is not None and setting.high is not None
    if (setting.n is not None) + (setting.values is not None) + is_box != 1:
        raise ConfigError(f"env.kwargs.action.{name}: give one of n, values, low with high, or constant")
    if setting.values is not None:
        return ActionField(name=name, space=spaces.Discrete(len(setting.values)), values=tuple(setting.values))
    if setting.n is not None:
        return ActionField(name=name, space=_integers(setting.n, setting.start, tuple(setting.shape)))
    return ActionField(name=name, space=_numbers(setting.low, setting.high, tuple(setting.shape)))


def _integers(count: int, start: int, shape: tuple[int, ...]) -> gymnasium.Space[Any]:
    if not shape:
        return spaces.Discrete(count, start=start)
    return spaces.MultiDiscrete(np.full(shape, count), start=np.full(shape, start))


def _numbers(low: Any, high: Any, shape: tuple[int, ...]) -> gymnasium.Space[Any]:
    if not low < high:
        raise ConfigError(f"env.kwargs.action: the bounds {low} and {high} are not ascending")
    return spaces.Box(low, high, shape, np.float32)


def _resolve(own: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a property of the schema with its reference to `$defs` replaced by what it refers to."""
    reference = own.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return own
    found: Mapping[str, Any] = schema.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return {**_resolve(found, schema), **{name: value for name, value in own.items() if name != "$ref"}}


def _from_schema(name: str, own: Mapping[str, Any]) -> ActionField | None:
    """Return the action field that a property of the schema describes, or None if it does not bound its values."""
    values: Sequence[Any] | None = own.get("enum")
    if own.get("type") == "boolean":
        values = [False, True]
    if values:
        return ActionField(name=name, space=spaces.Discrete(len(values)), values=tuple(values))
    shape: tuple[int, ...] = ()
    if own.get("type") == "array" and own.get("minItems") and own.get("minItems") == own.get("maxItems"):
        own, shape = own.get("items", {}), (int(own["minItems"]),)
    if own.get("type") == "integer":
        low = own.get("minimum", own.get("exclusiveMinimum", -np.inf) + 1)
        high = own.get("maximum", own.get("exclusiveMaximum", np.inf) - 1)
        if np.isfinite([low, high]).all():
            return ActionField(name=name, space=_integers(int(high - low) + 1, int(low), shape))
    if own.get("type") == "number":
        low = own.get("minimum", own.get("exclusiveMinimum"))
        high = own.get("maximum", own.get("exclusiveMaximum"))
        if low is not None and high is not None:
            return ActionField(name=name, space=_numbers(low, high, shape))
    return None
