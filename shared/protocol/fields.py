"""The wire types of header fields, with which the records in `messages` are declared.

A record declares each field once, as `name: Annotated[type, WireType, meaning]`. The order on the wire is that of the
record; codec and the tables of docs/protocol.md are made from it. `Id`, `Count` and the like are named types.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum, IntFlag
from typing import Annotated, Any, Final, get_type_hints

from seedbed.shared.protocol.rows import EnvSpec, spec_from_wire, spec_to_wire

MAX_LABEL = 256  # characters of a name, code or reason
MAX_PROSE = 1024  # characters of a message or hint for people; a writer cuts what is longer
MAX_LANES = 1 << 20
MAX_CAPABILITIES = 16
MAX_ID = (1 << 64) - 1
MAX_COUNT = (1 << 63) - 1
MAX_SECONDS = 86400

Convert = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class WireType:
    """The type of a field on the wire.

    Args:
      name: its name in the tables of docs/protocol.md.
      read: converts MessagePack's value to the record's; raises ValueError if that is invalid (RemoteWireError within
        a specification).
      write: converts the record's value to MessagePack's.
      nested: the record that the field holds, for the tables.
    """

    name: str
    read: Convert
    write: Convert = _as_it_is
    nested: "NestedRecord | None" = None


class _Later:
    """Marks a last field added in a later minor version, which is omitted while it is empty."""


LATER: Final = _Later()


@dataclass(frozen=True, slots=True)
class HeaderField:
    """One field of a message: its name, wire type and meaning, for the codec and the documents."""

    name: str
    wire: WireType
    meaning: str  # for the tables of docs/protocol.md; may be empty
    is_later: bool


@dataclass(frozen=True, slots=True)
class NestedRecord:
    """A record within a header, which is an array of its fields."""

    name: str
    fields: tuple[HeaderField, ...]


def fields_of(record: type[Any]) -> tuple[HeaderField, ...]:
    """Return the fields of a record in their order on the wire. Raises: TypeError for one without a WireType."""
    hints = get_type_hints(record, include_extras=True)
    found = []
    for field in fields(record):
        notes = getattr(hints[field.name], "__metadata__", ())
        wires = [note for note in notes if isinstance(note, WireType)]
        if len(wires) != 1:
            raise TypeError(f"{record.__name__}.{field.name} has {len(wires)} wire types, not one")
        meaning = "".join(note for note in notes if isinstance(note, str))
        found.append(HeaderField(field.name, wires[0], meaning, LATER in notes))
    return tuple(found)


def integer(low: int, high: int, name: str = "") -> WireType:
    """Make the type of an integer from `low` to `high`; an IntEnum is written as its number."""

    def read(value: Any) -> Any:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not an integer within {low}…{high}")
        return value

    def write(value: Any) -> Any:
        return int(value) if isinstance(value, IntEnum | IntFlag) else value

    return WireType(name or f"integer {low}…{high}", read, write)


def choice(kind: type[IntEnum]) -> WireType:
    """Make the type of a member of an IntEnum, as its number."""
    return integer(0, max(kind))


def flags(kind: type[IntFlag]) -> WireType:
    """Make the type of a combination of flags, as the sum of their bits."""
    return integer(0, sum(kind))


def text(max_length: int, min_length: int = 0, name: str = "") -> WireType:
    """Make the type of a str with a limited number of characters."""

    def read(value: Any) -> Any:
        if type(value) is not str or not min_length <= len(value) <= max_length:
            raise ValueError(f"not a text of {min_length}…{max_length} characters")
        return value

    size = f"of {min_length}…{max_length}" if min_length else f"at most {max_length:,}".replace(",", " ")
    return WireType(name or f"str, {size} characters", read)


def one_of(*words: str) -> WireType:
    """Make the type of a str that is one of these words."""

    def read(value: Any) -> Any:
        if type(value) is not str or value not in words:
            raise ValueError(f"not one of {', '.join(words)}")
        return value

    return WireType(" | ".join(words), read)


def array(max_length: int, item: WireType, name: str = "") -> WireType:
    """Make the type of a tuple with at most `max_length` items of one type."""

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) > max_length:
            raise ValueError(f"not an array of at most {max_length}")
        return tuple(map(item.read, value))

    def write(value: Any) -> Any:
        return [item.write(part) for part in value]

    return WireType(name or f"array of at most {max_length}: {item.name}", read, write, item.nested)


def group(*items: WireType) -> WireType:
    """Make the type of a tuple of exactly these items; further items of a peer's tuple are ignored."""

    def read(value: Any) -> Any:
        if type(value) is not list or len(value) < len(items):
            raise ValueError(f"not an array of {len(items)}")
        return tuple(item.read(part) for item, part in zip(items, value, strict=False))

    def write(value: Any) -> Any:
        return [item.write(part) for item, part in zip(items, value, strict=True)]

    return WireType(f"[{', '.join(item.name for item in items)}]", read, write)


def nested(record: type[Any], name: str) -> WireType:
    """Make the type of a record within another one, as a list of its fields."""
    declared = fields_of(record)
    names, items = [field.name for field in declared], group(*(field.wire for field in declared))

    def read(value: Any) -> Any:
        return record(**dict(zip(names, items.read(value), strict=True)))

    def write(value: Any) -> Any:
        return items.write([getattr(value, each) for each in names])

    return WireType(name, read, write, NestedRecord(name, declared))


def optional(item: WireType) -> WireType:
    """Make the type of None, as nil, or a value of this type."""

    def read(value: Any) -> Any:
        return None if value is None else item.read(value)

    def write(value: Any) -> Any:
        return None if value is None else item.write(value)

    return WireType(f"{item.name} or nil", read, write, item.nested)


def _read_boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value


def _read_number(value: Any) -> Any:
    """Return a finite float; a writer may have shortened it to an integer."""
    if type(value) not in (float, int) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _read_seconds(value: Any) -> Any:
    if not 0 < _read_number(value) <= MAX_SECONDS:
        raise ValueError(f"not within 0…{MAX_SECONDS} seconds")
    return float(value)


LABEL = text(MAX_LABEL, name="label")
NUMBER = WireType("float", _read_number)
SPECIFICATION = WireType("specification", spec_from_wire, spec_to_wire)

Id = Annotated[int, integer(0, MAX_ID, "id")]
Count = Annotated[int, integer(0, MAX_COUNT, "count")]
ProtocolVersion = Annotated[int, integer(1, 255)]
NumLanes = Annotated[int, integer(1, MAX_LANES)]
Label = Annotated[str, LABEL]
Labels = Annotated[tuple[str, ...], array(MAX_CAPABILITIES, LABEL, "labels")]
Prose = Annotated[str, WireType("prose", text(MAX_PROSE).read, lambda value: value[:MAX_PROSE])]
Boolean = Annotated[bool, WireType("boolean", _read_boolean)]
Seconds = Annotated[float, WireType("seconds", _read_seconds)]
Specification = Annotated[EnvSpec, SPECIFICATION]
