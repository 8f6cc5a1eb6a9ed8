"""What may stand in each field of each header: the order on the wire, and a check for every value.

A check takes a decoded MessagePack value and returns the record's, or raises ValueError (RemoteWireError within a
specification) saying why it cannot.
"""

import math
from collections.abc import Callable
from typing import Any

from seedbed.shared.protocol.messages import (
    Act,
    Bye,
    Challenge,
    Credit,
    Episodes,
    Error,
    Evaluation,
    Get,
    Hello,
    Look,
    MessageType,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    Report,
    SessionReport,
    Step,
    TaskEnv,
    Unroll,
    Weights,
    Welcome,
)
from seedbed.shared.protocol.rows import MAX_LIST, MAX_NAME, MAX_SETTING, spec_from_wire

MAX_LABEL = 256  # characters of a name, code or reason
MAX_PROSE = 1024  # characters of a message or hint for people; a writer cuts what is longer
MAX_MANIFEST = 1000 * 1000
MAX_LANES = 1 << 20
MAX_SESSIONS = 1024  # of one connection
MAX_LOAD = 512
MAX_CAPABILITIES = 16
MAX_TASKS = 128
U64 = (1 << 64) - 1
I63 = (1 << 63) - 1
MODES = ("train", "eval", "play")
SEEDINGS = ("lane", "group", "none")
SCOPES = ("session", "connection")
ALL_STEP_BITS = 3
ALL_ACT_BITS = 7
MAX_REQUEST_STATE = 5
MAX_RUN_STATE = 3

Reader = Callable[[Any], Any]


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
PROSE = _text(MAX_PROSE)
_VERSION = _integer(1, 255)
_LANES = _integer(1, MAX_LANES)
_RUN_STATE = _integer(0, MAX_RUN_STATE)
_CAPABILITIES = _array(_LABEL, MAX_CAPABILITIES)
REPORT_FIELDS = ("session", "last_seq", "state", "age_ms")
_REPORT_ITEMS = _tuple(_ID, _integer(-1, I63), _integer(0, MAX_REQUEST_STATE), _COUNT)
EVALUATION_FIELDS = ("id", "version", "episodes", "seed", "greedy")
_EVALUATION_ITEMS = _tuple(_COUNT, _COUNT, _COUNT, _COUNT, _boolean)


def _report(value: Any) -> SessionReport:
    return SessionReport(**dict(zip(REPORT_FIELDS, _REPORT_ITEMS(value), strict=True)))


def _evaluation(value: Any) -> Evaluation:
    return Evaluation(**dict(zip(EVALUATION_FIELDS, _EVALUATION_ITEMS(value), strict=True)))


_SETTING = _tuple(_text(MAX_NAME, 1), _text(MAX_SETTING))
_TASK_ITEMS = _tuple(_text(MAX_LABEL, 1), _text(MAX_NAME, 1), _array(_SETTING, MAX_LIST))


def _task(value: Any) -> TaskEnv:
    name, env_id, settings = _TASK_ITEMS(value)
    return TaskEnv(name=name, env_id=env_id, settings=settings)


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
            "task": _LABEL,
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
        {"nonce": _ID, "code": _LABEL, "retryable": _boolean, "message": PROSE, "hint": PROSE},
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
        {
            "sent_ms": _COUNT,
            "server_epoch": _ID,
            "work_age_ms": _COUNT,
            "sessions": _array(_report, MAX_SESSIONS),
            "turns_away": _boolean,
        },
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
            "message": PROSE,
            "hint": PROSE,
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
            "task": _LABEL,
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
            "tasks": _array(_task, MAX_TASKS),
        },
    ),
    MessageType.UNROLL: (
        Unroll,
        {
            "session": _ID,
            "seq": _COUNT,
            "lanes": _LANES,
            "actor": _LABEL,
            "group": _COUNT,
            "first_lane": _COUNT,
            "start": _COUNT,
        },
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
    MessageType.GET: (Get, {"session": _ID, "have_version": _COUNT, "have_manifest": _LABEL, "exact": _COUNT}),
    MessageType.WEIGHTS: (
        Weights,
        {"session": _ID, "version": _COUNT, "manifest_digest": _LABEL, "manifest": _text(MAX_MANIFEST)},
    ),
    MessageType.NOT_MODIFIED: (NotModified, {"session": _ID, "version": _COUNT}),
    MessageType.LOOK: (Look, {"wants_page": _boolean, "wants_picture": _boolean, "have_picture": _COUNT}),
    MessageType.REPORT: (
        Report,
        {
            "incarnation": _ID,
            "service": _LABEL,
            "name": _LABEL,
            "run_id": _LABEL,
            "picture": _COUNT,
            "picture_version": _COUNT,
            "picture_age_ms": _COUNT,
        },
    ),
}

# Last fields that came with a later minor version: a writer leaves them out at their default, a reader may miss them.
OPTIONAL: dict[MessageType, tuple[str, ...]] = {
    MessageType.HELLO: ("task",),
    MessageType.PONG: ("turns_away",),
    MessageType.GET: ("exact",),
    MessageType.PRODUCER_HELLO: ("task",),
    MessageType.PRODUCER_WELCOME: ("tasks",),
    MessageType.UNROLL: ("first_lane", "start"),
}
