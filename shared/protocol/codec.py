"""Messages as header frames and back: every limit on what a header may say, and the only MessagePack.

A header is one MessagePack array: the type, then the record's fields in their order in `messages`. Fields behind the
last known one are ignored, so that a later minor version can add some, which are left out at their default.
`encode` refuses what `decode` would refuse: what leaves here is valid. STEP and ACT, sent for every tick, have paths of
their own.
"""

from typing import Any, cast

import msgpack

from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol.header_fields import ALL_ACT_BITS, ALL_STEP_BITS, FIELDS, I63, MAX_PROSE, OPTIONAL, PROSE
from seedbed.shared.protocol.messages import Act, Evaluation, Message, MessageType, SessionReport, Step, TaskEnv
from seedbed.shared.protocol.rows import EnvSpec, spec_to_wire

MAX_HEADER_BYTES = 4096
LARGE_HEADER_BYTES = {  # types whose header may be larger
    MessageType.HELLO: 64 * 1024,
    MessageType.REJECT: 16 * 1024,
    MessageType.ERROR: 16 * 1024,
    MessageType.PING: 64 * 1024,
    MessageType.PONG: 64 * 1024,
    MessageType.PRODUCER_HELLO: 64 * 1024,
    MessageType.PRODUCER_WELCOME: 1024 * 1024,
    MessageType.WEIGHTS: 1024 * 1024,
}

_BY_TYPE = {int(kind): (record, tuple(fields.items())) for kind, (record, fields) in FIELDS.items()}
_BY_RECORD = {record: (int(kind), tuple(fields.items())) for kind, (record, fields) in FIELDS.items()}
_NUM_OPTIONAL = {int(kind): len(OPTIONAL.get(kind, ())) for kind in MessageType}
_LIMIT_BY_TYPE = {int(kind): LARGE_HEADER_BYTES.get(kind, MAX_HEADER_BYTES) for kind in MessageType}
_STEP = int(MessageType.STEP)
_ACT = int(MessageType.ACT)
_pack = msgpack.Packer(autoreset=True).pack


def encode(message: Message) -> bytes:
    """The header frame of a message. Raises LocalWireError for a record that the protocol does not allow."""
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
    """As `encode(Act(…))`, for who answers every tick of every group."""
    values = [_ACT, session, seq, policy_version, bits, reset_seed]
    try:
        return cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"ACT {values[1:]}: {error}") from error


def decode(header: bytes) -> Message:
    """The message of a peer's header frame. Raises RemoteWireError on anything that is not exactly one."""
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
            and 0 <= seq <= I63
            and 0 <= bits <= ALL_STEP_BITS
        ):
            return Step(session, seq, bits)
    elif kind == _ACT and len(values) >= 6:
        _, session, seq, version, bits, seed = values[:6]
        if (
            type(session) is type(seq) is type(version) is type(bits) is type(seed) is int
            and session >= 0
            and 0 <= seq <= I63
            and 0 <= version <= I63
            and 0 <= bits <= ALL_ACT_BITS
            and 0 <= seed <= I63
        ):
            return Act(session, seq, version, bits, seed)
    return _decode_checked(values)  # also says what is wrong with a STEP or ACT


def _decode_checked(values: list[Any]) -> Message:
    kind = values[0]
    if type(kind) is not int or kind not in _BY_TYPE:
        raise RemoteWireError("type", f"unknown message type {str(kind)[:40]}")
    record, fields = _BY_TYPE[kind]
    required = len(fields) - _NUM_OPTIONAL[kind]
    count = f"{len(values) - 1} fields of {required}" if len(values) <= required else ""
    read: dict[str, Any] = {}
    for (name, reader), value in zip(fields, values[1:], strict=False):
        try:
            read[name] = reader(value)
        except ValueError as error:
            found = f"{type(value).__name__} {value!r:.40}"
            after = f"; it has {count}, so one before this may be missing" if count else ""
            code = "fields" if count else "value"
            raise RemoteWireError(code, f"{record.__name__}.{name}: {error}, found {found}{after}") from error
    if count:
        missing = ", ".join(name for name, _ in fields[len(values) - 1 : required])
        raise RemoteWireError("fields", f"{record.__name__} with {count}: it ends before {missing}")
    return cast(Message, record(**read))


def _encode_checked(message: Message) -> bytes:
    if type(message) not in _BY_RECORD:
        raise LocalWireError(f"{type(message).__name__} is no message")
    kind, fields = _BY_RECORD[type(message)]
    values: list[Any] = [kind]
    for name, reader in fields:
        value = _plain(getattr(message, name))
        if reader is PROSE:
            value = value[:MAX_PROSE]
        try:
            reader(value)
        except (ValueError, RemoteWireError) as error:
            raise LocalWireError(f"{type(message).__name__}.{name}: {error}") from error
        values.append(value)
    for _ in range(_NUM_OPTIONAL[kind]):
        if values[-1]:  # every optional field is empty at its default
            break
        values.pop()
    try:
        header = cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"{type(message).__name__}: {error}") from error
    if len(header) > _LIMIT_BY_TYPE[kind]:
        raise LocalWireError(f"{type(message).__name__}: {len(header)} bytes, allowed are {_LIMIT_BY_TYPE[kind]}")
    return header


def _plain(value: Any) -> Any:
    """A record's value as MessagePack carries it: tuples as arrays, nested records as arrays of their fields."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, EnvSpec):
        return spec_to_wire(value)
    if isinstance(value, SessionReport):
        return [value.session, value.last_seq, int(value.state), value.age_ms]
    if isinstance(value, Evaluation):
        return [value.id, value.version, value.episodes, value.seed, value.greedy]
    if isinstance(value, TaskEnv):
        return [value.name, value.env_id, [list(setting) for setting in value.settings]]
    return int(value) if isinstance(value, int) and type(value) is not bool else value


def _check_large(header: bytes) -> None:
    """Refuse a header over the limit of its type unparsed: the type stands behind the array's 1, 3 or 5 bytes."""
    size = len(header)
    place = 1 if 0x90 <= header[0] <= 0x9F else 3 if header[0] == 0xDC else 5
    limit = _LIMIT_BY_TYPE.get(header[place], MAX_HEADER_BYTES)
    if size > limit:
        raise RemoteWireError("header_size", f"a header of {size} bytes, allowed are {limit}")
