"""Turns the fields of an OpenEnv observation, by an example and settings, into spaces, and JSON into their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from pydantic import Field

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import Section

LETTERS = "".join(chr(code) for code in range(32, 127))
FREE = ("metadata",)  # fields that every OpenEnv observation may have and that no policy needs
DEFAULT_LENGTH = 512  # longest text, characters or bytes
Kind = Literal["numbers", "categories", "bits", "text", "bytes"]
Dtype = Literal[
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"
]
_SCALARS: dict[str, type[np.integer[Any]] | type[np.floating[Any]]] = {
    "uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16, "uint32": np.uint32,
    "int32": np.int32, "uint64": np.uint64, "int64": np.int64, "float16": np.float16, "float32": np.float32,
    "float64": np.float64,
}  # fmt: skip


class ObservationSetting(Section):
    """`env.kwargs.observation.<field>`: what the example of a field does not tell about it."""

    kind: Kind | None = Field(None, description="How it travels; none: as the example looks.")
    dtype: Dtype = Field("float32", description="Of numbers.")
    low: float | None = Field(None, description="Least number; none: the dtype's.")
    high: float | None = Field(None, description="Greatest number; none: the dtype's.")
    shape: list[int] | None = Field(None, description="Of numbers; none: the example's.")
    n: int | None = Field(None, ge=1, description="Categories 0 … n−1.")
    length: int = Field(DEFAULT_LENGTH, ge=1, description="Of a text, characters, or bytes of kind 'bytes'.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationField:
    """One field of an observation, and how its JSON becomes a value of its space."""

    name: str
    kind: Kind
    space: gymnasium.Space[Any]

    def from_json(self, value: Any) -> Any:
        """Return a JSON value as a value of the space; None, for a missing field, gives zeros or an empty text.

        Raises: ValueError, TypeError or OverflowError for JSON that does not fit.
        """
        if isinstance(self.space, spaces.Text):
            text = "" if value is None else str(value)[: self.space.max_length]
            return "".join(letter if letter in LETTERS else "?" for letter in text)
        shape = self.space.shape or ()
        if self.kind == "bytes":
            return _pad(("" if value is None else str(value)).encode()[: shape[0]], shape[0])
        return np.asarray(np.zeros(shape) if value is None else value, self.space.dtype)


def _pad(data: bytes, length: int) -> npt.NDArray[np.uint8]:
    """Return the bytes, filled up with zeros, as u8 [length]."""
    return np.frombuffer(data.ljust(length, b"\0"), np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationForm:
    """The form of an observation: the fields that are taken from it, with their spaces."""

    fields: tuple[ObservationField, ...]

    @property
    def space(self) -> gymnasium.Space[Any]:
        """A Dict space by field name, or the field's own space if there is only one."""
        if len(self.fields) == 1:
            return self.fields[0].space
        return spaces.Dict({field.name: field.space for field in self.fields})

    def from_json(self, observation: Mapping[str, Any]) -> Any:
        """Return a JSON observation as a value of the space. Raises: as `ObservationField.from_json`."""
        values = {field.name: field.from_json(observation.get(field.name)) for field in self.fields}
        return values if len(values) > 1 else values[self.fields[0].name]


def observation_form(
    example: Mapping[str, Any],
    said: Mapping[str, ObservationSetting],
    observe: Sequence[str] | None,
    skip: Sequence[str] = (),
) -> ObservationForm:
    """Return the form of observations that look like the example.

    Args:
      example: the observation of a reset.
      said: settings by field.
      observe: names of the fields to take; None: all but metadata.
      skip: fields that have another use and are not observed.
    Raises: ConfigError naming a field that the protocol cannot carry, or one that does not exist.
    """
    known = [name for name in example if name not in skip and (name not in FREE or name in (observe or ()))]
    for where, names in (("observe", observe or ()), ("observation", tuple(said))):
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"env.kwargs.{where}: this server does not observe {unknown[0]!r}; known: {known}")
    names = known if observe is None else list(observe)
    if not names:
        raise ConfigError("env.kwargs.observe: no field is left to observe")
    return ObservationForm(fields=tuple(_field(name, example[name], said.get(name)) for name in names))


def _field(name: str, value: Any, setting: ObservationSetting | None) -> ObservationField:
    said = setting or ObservationSetting()
    kind = said.kind or ("categories" if said.n is not None else _guess(name, value))
    return ObservationField(name=name, kind=kind, space=_space(name, kind, value, said))


def _guess(name: str, value: Any) -> Kind:
    """Return the kind that an example looks like. Raises: ConfigError if it is neither numbers nor text."""
    if isinstance(value, str):
        return "text"
    flat = _flatten(value)
    if flat and all(isinstance(item, bool) for item in flat):
        return "bits"
    if flat and all(isinstance(item, int | float) for item in flat):
        return "numbers"
    raise ConfigError(
        f"env.kwargs.observation: {name!r} is {str(value)[:80]!r} at a reset, which is neither numbers nor text: leave "
        f"it out by env.kwargs.observe, or say what it is: {name} = "
        '{kind = "numbers", shape = [3]} or {kind = "text"}'
    )


def _flatten(value: Any) -> list[Any]:
    """Return the items of nested lists as one list; a value that is no list is the only item."""
    return [item for part in value for item in _flatten(part)] if isinstance(value, list) else [value]


def _space(name: str, kind: Kind, value: Any, said: ObservationSetting) -> gymnasium.Space[Any]:
    if kind == "text":
        return spaces.Text(said.length, min_length=0, charset=LETTERS)
    if kind == "bytes":
        return spaces.Box(0, 255, (said.length,), np.uint8)
    shape = _shape(name, value, said)
    if kind == "bits":
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    if kind == "categories":
        if said.n is None:
            raise ConfigError(f"env.kwargs.observation.{name}: say n, the number of categories")
        return spaces.MultiDiscrete(np.full(shape, said.n)) if shape else spaces.Discrete(said.n)
    scalar = _SCALARS[said.dtype]
    low, high = (-np.inf, np.inf) if issubclass(scalar, np.floating) else (np.iinfo(scalar).min, np.iinfo(scalar).max)
    box: gymnasium.Space[Any] = spaces.Box(
        low if said.low is None else said.low, high if said.high is None else said.high, shape, scalar
    )
    return box


def _shape(name: str, value: Any, said: ObservationSetting) -> tuple[int, ...]:
    if said.shape is not None:
        return tuple(said.shape)
    try:
        shape: tuple[int, ...] = np.shape(value)
    except ValueError as error:
        raise ConfigError(f"env.kwargs.observation: the lists of {name!r} have different lengths") from error
    if value is None or 0 in shape:
        raise ConfigError(f"env.kwargs.observation.{name}: it is empty at a reset; say its shape")
    return shape
