"""Messages as header frames and back: every limit on what a header may say, and the only MessagePack.

A header is one MessagePack array: the type, then the record's fields in their order in `messages`. Fields behind the
last known one are ignored, so that a later minor version can add some. `encode` refuses what `decode` would refuse:
what leaves here is valid. STEP and ACT, sent for every tick, have paths of their own.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import msgpack

from shared.errors import LocalWireError, RemoteWireError
from shared.protocol.messages import (
    Act,
    Bye,
    Challenge,
    Credit,
    Episodes,
    Error,
    Evaluation,
    Get,
    Hello,
    Message,
    MessageType,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    SessionReport,
    Step,
    Unroll,
    Weights,
    Welcome,
)
from shared.protocol.rows import EnvSpec, spec_from_wire, spec_to_wire

MAX_HEADER_BYTES = 4096
LARGE_HEADER_BYTES = {  # types whose header may be larger
    MessageType.HELLO: 64 * 1024,
    MessageType.PING: 64 * 1024,
    MessageType.PONG: 64 * 1024,
    MessageType.PRODUCER_HELLO: 64 * 1024,
    MessageType.WEIGHTS: 1024 * 1024,
}
MAX_LABEL = 256  # characters of a name, code or reason
MAX_PROSE = 2048  # characters of a message or hint for people, together well under a header
MAX_MANIFEST = 1000 * 1000
MAX_LANES = 1 << 20
MAX_SESSIONS = 1024  # of one connection
MAX_LOAD = 512
MAX_CAPABILITIES = 16
U64 = (1 << 64) - 1
I63 = (1 << 63) - 1
MODES = ("train", "eval", "play")
SEEDINGS = ("lane", "group", "none")
SCOPES = ("session", "connection")
ALL_STEP_BITS = 3
ALL_ACT_BITS = 1
MAX_REQUEST_STATE = 5
MAX_RUN_STATE = 3

Reader = Callable[[Any], Any]  # a decoded MessagePack value → the record's value, or ValueError saying why not


def _integer(low: int, high: int) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not an integer within {low}…{high}")
        return value

    return read


def _text(max_length: int, min_length: int = 0) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or not min_length <= len(value) <= max_length:
            raise ValueError(f"not a text of {min_length}…{max_length} characters")
        return value

    return read


def _one_of(choices: tuple[str, ...]) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not str or value not in choices:
            raise ValueError(f"not one of {', '.join(choices)}")
        return value

    return read


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise ValueError("not a boolean")
    return value


def _number(value: Any) -> Any:
    """A finite float; a writer may have shortened it to an integer."""
    if type(value) not in (float, int) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _seconds(value: Any) -> Any:
    if not 0 < _number(value) <= 86400:
        raise ValueError("not within 0…86400 seconds")
    return float(value)


def _array(item: Reader, max_length: int) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) > max_length:
            raise ValueError(f"not an array of at most {max_length}")
        return tuple(map(item, value))

    return read


def _tuple(*items: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not list or len(value) < len(items):
            raise ValueError(f"not an array of {len(items)}")
        return tuple(item(part) for item, part in zip(items, value, strict=False))

    return read


def _optional(item: Reader) -> Reader:
    return lambda value: None if value is None else item(value)


_COUNT = _integer(0, I63)
_ID = _integer(0, U64)
_LABEL = _text(MAX_LABEL)
_PROSE = _text(MAX_PROSE)
_VERSION = _integer(1, 255)
_LANES = _integer(1, MAX_LANES)
_RUN_STATE = _integer(0, MAX_RUN_STATE)
_CAPABILITIES = _array(_LABEL, MAX_CAPABILITIES)
_REPORT_FIELDS = ("session", "last_seq", "state", "age_ms")
_REPORT_ITEMS = _tuple(_ID, _integer(-1, I63), _integer(0, MAX_REQUEST_STATE), _COUNT)
_EVALUATION_FIELDS = ("id", "version", "episodes", "seed", "greedy")
_EVALUATION_ITEMS = _tuple(_COUNT, _COUNT, _COUNT, _COUNT, _boolean)


def _report(value: Any) -> SessionReport:
    return SessionReport(**dict(zip(_REPORT_FIELDS, _REPORT_ITEMS(value), strict=True)))


def _evaluation(value: Any) -> Evaluation:
    return Evaluation(**dict(zip(_EVALUATION_FIELDS, _EVALUATION_ITEMS(value), strict=True)))


# Fields of every header in their order on the wire, with what may stand there.
FIELDS: dict[MessageType, tuple[type[Any], dict[str, Reader]]] = {
    MessageType.HELLO: (
        Hello,
        {
            "protocol_min": _VERSION,
            "protocol_max": _VERSION,
            "library": _LABEL,
            "library_version": _LABEL,
            "actor": _LABEL,
            "incarnation": _ID,
            "group": _COUNT,
            "lanes": _LANES,
            "nonce": _ID,
            "mode": _one_of(MODES),
            "run_id": _LABEL,
            "spec": spec_from_wire,
            "seeding": _one_of(SEEDINGS),
            "capabilities": _CAPABILITIES,
            "max_stall_s": _seconds,
        },
    ),
    MessageType.WELCOME: (
        Welcome,
        {
            "nonce": _ID,
            "session": _ID,
            "server_epoch": _ID,
            "protocol": _VERSION,
            "role": _LABEL,
            "run_id": _LABEL,
            "capabilities": _CAPABILITIES,
            "beat_s": _seconds,
            "lease_s": _seconds,
            "seed": _COUNT,
            "resumed": _boolean,
            "next_seq": _COUNT,
        },
    ),
    MessageType.REJECT: (
        Reject,
        {"nonce": _ID, "code": _LABEL, "retryable": _boolean, "message": _PROSE, "hint": _PROSE},
    ),
    MessageType.STEP: (Step, {"session": _ID, "seq": _COUNT, "bits": _integer(0, ALL_STEP_BITS)}),
    MessageType.ACT: (
        Act,
        {
            "session": _ID,
            "seq": _COUNT,
            "policy_version": _COUNT,
            "bits": _integer(0, ALL_ACT_BITS),
            "reset_seed": _COUNT,
        },
    ),
    MessageType.CHALLENGE: (Challenge, {"session": _ID, "server_epoch": _ID}),
    MessageType.PING: (Ping, {"sent_ms": _COUNT, "load": _array(_tuple(_LABEL, _number), MAX_LOAD)}),
    MessageType.PONG: (
        Pong,
        {"sent_ms": _COUNT, "server_epoch": _ID, "work_age_ms": _COUNT, "sessions": _array(_report, MAX_SESSIONS)},
    ),
    MessageType.BYE: (Bye, {"session": _ID, "reason": _LABEL}),
    MessageType.ERROR: (
        Error,
        {
            "code": _LABEL,
            "scope": _one_of(SCOPES),
            "session": _ID,
            "nonce": _ID,
            "retryable": _boolean,
            "message": _PROSE,
            "hint": _PROSE,
        },
    ),
    MessageType.PRODUCER_HELLO: (
        ProducerHello,
        {
            "protocol_min": _VERSION,
            "protocol_max": _VERSION,
            "library": _LABEL,
            "library_version": _LABEL,
            "name": _LABEL,
            "incarnation": _ID,
            "nonce": _ID,
            "run_id": _LABEL,
            "spec": _optional(spec_from_wire),
            "oldest_seq": _COUNT,
            "oldest_episodes_seq": _COUNT,
        },
    ),
    MessageType.PRODUCER_WELCOME: (
        ProducerWelcome,
        {
            "nonce": _ID,
            "session": _ID,
            "epoch": _COUNT,
            "protocol": _VERSION,
            "role": _LABEL,
            "rank": _COUNT,
            "run_id": _LABEL,
            "run_seed": _COUNT,
            "spec_digest": _LABEL,
            "beat_s": _seconds,
            "lease_s": _seconds,
            "unroll_length": _integer(1, 1 << 20),
            "next_seq": _COUNT,
            "next_episodes_seq": _COUNT,
            "state": _RUN_STATE,
        },
    ),
    MessageType.UNROLL: (
        Unroll,
        {"session": _ID, "seq": _COUNT, "lanes": _LANES, "actor": _LABEL, "task": _COUNT},
    ),
    MessageType.EPISODES: (
        Episodes,
        {
            "session": _ID,
            "seq": _COUNT,
            "mode": _one_of(MODES),
            "evaluation": _COUNT,
            "count": _integer(0, MAX_LANES),
            "aborted": _COUNT,
            "acted_steps": _COUNT,
        },
    ),
    MessageType.CREDIT: (
        Credit,
        {
            "session": _ID,
            "epoch": _COUNT,
            "granted_through": _COUNT,
            "acked_through": _COUNT,
            "episodes_acked_through": _COUNT,
            "state": _RUN_STATE,
            "trained_steps": _COUNT,
            "evaluation": _optional(_evaluation),
        },
    ),
    MessageType.GET: (Get, {"session": _ID, "have_version": _COUNT, "have_manifest": _LABEL}),
    MessageType.WEIGHTS: (
        Weights,
        {"session": _ID, "version": _COUNT, "manifest_digest": _LABEL, "manifest": _text(MAX_MANIFEST)},
    ),
    MessageType.NOT_MODIFIED: (NotModified, {"session": _ID, "version": _COUNT}),
}

_BY_TYPE = {int(kind): (record, tuple(fields.items())) for kind, (record, fields) in FIELDS.items()}
_BY_RECORD = {record: (int(kind), tuple(fields.items())) for kind, (record, fields) in FIELDS.items()}
_LIMIT_BY_TYPE = {int(kind): LARGE_HEADER_BYTES.get(kind, MAX_HEADER_BYTES) for kind in MessageType}
_STEP = int(MessageType.STEP)
_ACT = int(MessageType.ACT)
_pack = msgpack.Packer(autoreset=True).pack
_new_step, _new_act = Step.__new__, Act.__new__
# A frozen record's __init__ goes through object.__setattr__ for each field; the slots' own setters cost half of that.
_set_step_session, _set_step_seq, _set_step_bits = (Step.__dict__[name].__set__ for name in Step.__slots__)
(_set_act_session, _set_act_seq, _set_act_version, _set_act_bits, _set_act_seed) = (
    Act.__dict__[name].__set__ for name in Act.__slots__
)


def encode(message: Message) -> bytes:
    """The header frame of a message. Raises LocalWireError for a record that the protocol does not allow."""
    kind = type(message)
    if kind is Step:
        step = cast(Step, message)
        values: list[Any] = [_STEP, step.session, step.seq, step.bits]
    elif kind is Act:
        act = cast(Act, message)
        values = [_ACT, act.session, act.seq, act.policy_version, act.bits, act.reset_seed]
    else:
        return _encode_checked(message)
    try:
        return cast(bytes, _pack(values))
    except (TypeError, ValueError, OverflowError) as error:
        raise LocalWireError(f"{message}: {error}") from error


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
            step = _new_step(Step)
            _set_step_session(step, session)
            _set_step_seq(step, seq)
            _set_step_bits(step, bits)
            return step
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
            act = _new_act(Act)
            _set_act_session(act, session)
            _set_act_seq(act, seq)
            _set_act_version(act, version)
            _set_act_bits(act, bits)
            _set_act_seed(act, seed)
            return act
    return _decode_checked(values)  # also says what is wrong with a STEP or ACT


def _decode_checked(values: list[Any]) -> Message:
    kind = values[0]
    if type(kind) is not int or kind not in _BY_TYPE:
        raise RemoteWireError("type", f"unknown message type {str(kind)[:40]}")
    record, fields = _BY_TYPE[kind]
    if len(values) <= len(fields):
        raise RemoteWireError("fields", f"{record.__name__} with {len(values) - 1} fields of {len(fields)}")
    read: dict[str, Any] = {}
    for (name, reader), value in zip(fields, values[1:], strict=False):
        try:
            read[name] = reader(value)
        except ValueError as error:
            raise RemoteWireError("value", f"{record.__name__}.{name}: {error}") from error
    return cast(Message, record(**read))


def _encode_checked(message: Message) -> bytes:
    if type(message) not in _BY_RECORD:
        raise LocalWireError(f"{type(message).__name__} is no message")
    kind, fields = _BY_RECORD[type(message)]
    values: list[Any] = [kind]
    for name, reader in fields:
        value = _plain(getattr(message, name))
        try:
            reader(value)
        except (ValueError, RemoteWireError) as error:
            raise LocalWireError(f"{type(message).__name__}.{name}: {error}") from error
        values.append(value)
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
    return int(value) if isinstance(value, int) and type(value) is not bool else value


def _check_large(header: bytes) -> None:
    """Refuse a header over the limit of its type unparsed: the type stands behind the array's 1, 3 or 5 bytes."""
    size = len(header)
    place = 1 if 0x90 <= header[0] <= 0x9F else 3 if header[0] == 0xDC else 5
    limit = _LIMIT_BY_TYPE.get(header[place], MAX_HEADER_BYTES)
    if size > limit:
        raise RemoteWireError("header_size", f"a header of {size} bytes, allowed are {limit}")
