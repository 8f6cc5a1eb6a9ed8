"""Encodes messages as header frames and decodes them: all limits on a header, and the only use of MessagePack.

A header is one MessagePack array: the type, then the fields of the record in the order of `messages`. Fields after the
last known one are ignored, so that a later minor version can add some; these are omitted at their default value.
`encode` refuses everything that `decode` would refuse. STEP and ACT, which are sent for every tick, have faster paths.
"""

from typing import Any, cast

import msgpack

from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol.fields import MAX_COUNT
from seedbed.shared.protocol.messages import (
    HEADERS,
    MAX_HEADER_BYTES,
    Act,
    ActBits,
    Message,
    MessageType,
    Step,
    StepBits,
)

_BY_TYPE = {int(kind): header for kind, header in HEADERS.items()}
_BY_RECORD = {header.record: header for header in HEADERS.values()}
_STEP = int(MessageType.STEP)
_ACT = int(MessageType.ACT)
_ALL_STEP_BITS, _ALL_ACT_BITS = sum(StepBits), sum(ActBits)
_pack = msgpack.Packer(autoreset=True).pack


def encode(message: Message) -> bytes:
    """Return the header frame of a message. Raises: LocalWireError for a record that the protocol does not allow."""
    kind = type(message)
    if kind is Step:
        step = cast(Step, message)
        values: list[Any] = [_STEP, step.session, step.seq, step.bits]
    elif kind is Act:
        act = cast(Act, message)
        return encode_act(act.session, act.seq, act.policy_version, act.bits, act.reset_seed)
    else:
        return _encode_checked(message)
    try:
        return cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"{message}: {error}") from error


def encode_act(session: int, seq: int, policy_version: int, bits: int = 0, reset_seed: int = 0) -> bytes:
    """Return the same as `encode(Act(…))`, faster."""
    values = [_ACT, session, seq, policy_version, bits, reset_seed]
    try:
        return cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"ACT {values[1:]}: {error}") from error


def decode(header: bytes) -> Message:
    """Return the message in a peer's header frame. Raises: RemoteWireError unless it is exactly one valid message."""
    if len(header) > MAX_HEADER_BYTES:
        _check_large(header)
    try:
        values = msgpack.unpackb(header)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteWireError("header", f"not one MessagePack value: {type(error).__name__} {error}") from error
    if type(values) is not list or not values:
        raise RemoteWireError("header", "not an array that begins with a type")
    kind = values[0]
    if kind == _STEP and len(values) >= 4:
        _, session, seq, bits = values[:4]
        if (
            type(session) is type(seq) is type(bits) is int
            and session >= 0
            and 0 <= seq <= MAX_COUNT
            and 0 <= bits <= _ALL_STEP_BITS
        ):
            return Step(session, seq, bits)
    elif kind == _ACT and len(values) >= 6:
        _, session, seq, version, bits, seed = values[:6]
        if (
            type(session) is type(seq) is type(version) is type(bits) is type(seed) is int
            and session >= 0
            and 0 <= seq <= MAX_COUNT
            and 0 <= version <= MAX_COUNT
            and 0 <= bits <= _ALL_ACT_BITS
            and 0 <= seed <= MAX_COUNT
        ):
            return Act(session, seq, version, bits, seed)
    return _decode_checked(values)  # also says what is wrong with a STEP or ACT


def _decode_checked(values: list[Any]) -> Message:
    header = _BY_TYPE.get(values[0]) if type(values[0]) is int else None
    if header is None:
        raise RemoteWireError("type", f"unknown message type {str(values[0])[:40]}")
    name, required = header.record.__name__, header.num_required
    count = f"{len(values) - 1} fields of {required}" if len(values) <= required else ""
    read: dict[str, Any] = {}
    for field, value in zip(header.fields, values[1:], strict=False):
        try:
            read[field.name] = field.wire.read(value)
        except ValueError as error:
            found = f"{type(value).__name__} {value!r:.40}"
            after = f"; it has {count}, so one before this may be missing" if count else ""
            code = "fields" if count else "value"
            raise RemoteWireError(code, f"{name}.{field.name}: {error}, found {found}{after}") from error
    if count:
        missing = ", ".join(field.name for field in header.fields[len(values) - 1 : required])
        raise RemoteWireError("fields", f"{name} with {count}: it ends before {missing}")
    return cast(Message, header.record(**read))


def _encode_checked(message: Message) -> bytes:
    header = _BY_RECORD.get(type(message))
    if header is None:
        raise LocalWireError(f"{type(message).__name__} is no message")
    name = header.record.__name__
    values: list[Any] = [int(header.kind)]
    for field in header.fields:
        try:
            value = field.wire.write(getattr(message, field.name))
            field.wire.read(value)
        except (ValueError, TypeError, AttributeError, RemoteWireError) as error:
            raise LocalWireError(f"{name}.{field.name}: {error}") from error
        values.append(value)
    while len(values) > 1 + header.num_required and not values[-1]:  # every later field is empty at its default
        values.pop()
    try:
        packed = cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"{name}: {error}") from error
    if len(packed) > header.max_bytes:
        raise LocalWireError(f"{name}: {len(packed)} bytes, allowed are {header.max_bytes}")
    return packed


def _check_large(header: bytes) -> None:
    """Refuse a header over its type's limit without parsing it; the type follows the array's first 1, 3 or 5 bytes."""
    size = len(header)
    place = 1 if 0x90 <= header[0] <= 0x9F else 3 if header[0] == 0xDC else 5
    known = _BY_TYPE.get(header[place])
    limit = known.max_bytes if known is not None else MAX_HEADER_BYTES
    if size > limit:
        raise RemoteWireError("header_size", f"a header of {size} bytes, allowed are {limit}")
