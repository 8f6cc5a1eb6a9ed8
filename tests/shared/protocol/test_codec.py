"""Header frames: golden bytes, round trips, limits, and the refusals that name what is wrong."""

import dataclasses
import json
from pathlib import Path
from typing import Any, get_args

import msgpack
import numpy as np
import pytest

from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol import messages
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.fields import fields_of
from seedbed.shared.protocol.messages import (
    HEADERS,
    Act,
    Bye,
    Hello,
    Message,
    MessageType,
    Ping,
    Pong,
    RequestState,
    SessionReport,
    Step,
    Weights,
)
from tests.support.protocol_examples import CARTPOLE, MESSAGES

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "headers.json").read_text())


def test_golden_vectors_cover_every_message_type() -> None:
    """Each message type has bytes that are fixed for good."""
    assert GOLDEN.keys() == MESSAGES.keys()
    kinds = {msgpack.unpackb(bytes.fromhex(header))[0] for header in GOLDEN.values()}
    assert kinds == {int(kind) for kind in MessageType}


def test_the_decoded_vectors_are_those_of_the_bytes() -> None:
    """For readers of other languages: the array that each header is, bins as {"hex": …}."""
    decoded = json.loads((Path(__file__).parents[2] / "golden" / "headers_decoded.json").read_text())

    def plain(value: object) -> object:
        if isinstance(value, bytes):
            return {"hex": value.hex()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    assert decoded == {name: plain(msgpack.unpackb(bytes.fromhex(header))) for name, header in GOLDEN.items()}


@pytest.mark.parametrize("name", MESSAGES)
def test_header_equals_its_golden_vector_both_ways(name: str) -> None:
    """A record gives exactly these bytes, and these bytes that record."""
    assert encode(MESSAGES[name]).hex() == GOLDEN[name]
    assert decode(bytes.fromhex(GOLDEN[name])) == MESSAGES[name]


def test_every_type_of_message_is_declared_once() -> None:
    """A record that lacks a wire type is refused when it is declared."""
    assert HEADERS.keys() == set(MessageType)
    assert {header.record for header in HEADERS.values()} == set(get_args(Message))

    @dataclasses.dataclass
    class Half:
        session: int

    with pytest.raises(TypeError, match="session"):
        fields_of(Half)


@pytest.mark.parametrize("name", MESSAGES)
def test_unknown_trailing_fields_are_ignored(name: str) -> None:
    """A later version may append fields; this one reads what it knows."""
    values = msgpack.unpackb(bytes.fromhex(GOLDEN[name]))
    kind = MessageType(values[0])
    empty: dict[str, object] = {
        "first_lane": 0, "start": 0, "task": "", "tasks": [], "turns_away": False, "exact": 0,
        "stream": 0, "ranks": [], "segment": 0, "segment_bytes": 0, "segment_secret": 0, "offset": 0, "length": 0,
        "received_through": 0, "is_lockstep": False,
    }  # fmt: skip
    left_out = [empty[field] for field in later(kind)][len(values) - 1 - required(kind) :]
    assert decode(msgpack.packb([*values, *left_out, "later", {"a": 1}])) == MESSAGES[name]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_missing_field_is_refused(name: str) -> None:
    """A header shorter than its record names the record."""
    values = msgpack.unpackb(bytes.fromhex(GOLDEN[name]))
    with pytest.raises(RemoteWireError, match=type(MESSAGES[name]).__name__) as caught:
        decode(msgpack.packb(values[: required(MessageType(values[0]))]))
    assert caught.value.code == "fields"


def required(kind: MessageType) -> int:
    """How many fields its header must have."""
    return HEADERS[kind].num_required


def later(kind: MessageType) -> list[str]:
    """Names of those that it may have too."""
    return [field.name for field in HEADERS[kind].fields if field.is_later]


@pytest.mark.parametrize("name", ["hello_task", "producer_hello_task", "producer_welcome_tasks", "get_exact"])
def test_an_optional_field_is_left_out_when_it_is_empty(name: str) -> None:
    """So an older reader sees the bytes that it knows, and an older writer's are understood."""
    message = MESSAGES[name]
    field = later(MessageType(msgpack.unpackb(bytes.fromhex(GOLDEN[name]))[0]))[0]
    without = dataclasses.replace(message, **{field: type(getattr(message, field))()})
    header = encode(without)
    assert len(msgpack.unpackb(header)) == len(msgpack.unpackb(encode(message))) - 1
    assert decode(header) == without


@pytest.mark.parametrize("wrong", [None, True, 1.5, "x", b"x", [], {}, -2, 1 << 63, [1, 2]])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_wrong_value_in_any_field_is_refused_or_read_as_valid(name: str, wrong: Any) -> None:
    """Whatever stands in a field, decode raises only RemoteWireError, and what it returns can be encoded again."""
    values = msgpack.unpackb(bytes.fromhex(GOLDEN[name]))
    for index in range(len(values)):
        try:
            message = decode(msgpack.packb([*values[:index], wrong, *values[index + 1 :]]))
        except RemoteWireError:
            continue
        assert decode(encode(message)) == message


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ([4, True, 0, 0], "session"),
        ([4, -1, 0, 0], "session"),
        ([4, 1, 1 << 63, 0], "seq"),
        ([4, 1, 0.0, 0], "seq"),
        ([4, 1, 0, 4], "bits"),
        ([5, 1, 0, -1, 0, 0], "policy_version"),
        ([5, 1, 0, 0, 8, 0], "bits"),
        ([5, 1, 0, 0, 0, None], "reset_seed"),
        ([6, "1", 0], "session"),
        ([7, 1, [["a", float("nan")]]], "load"),
        ([7, 1, [["a"]]], "load"),
        ([9, 1, "x" * 257], "reason"),
        ([10, "c", "world", 0, 0, True, "", ""], "scope"),
        ([8, 1, 1, 1, [[1, -2, 0, 0]]], "sessions"),
        ([8, 1, 1, 1, [[1, 0, 6, 0]]], "sessions"),
    ],
)
def test_a_refusal_names_the_field(values: list[Any], field: str) -> None:
    """A peer's author is told which field of which message is wrong."""
    with pytest.raises(RemoteWireError, match=rf"\.{field}: ") as caught:
        decode(msgpack.packb(values))
    assert caught.value.code == "value"


@pytest.mark.parametrize(
    "header",
    [
        b"", b"\xc1", b"\x90", b"\x04", b"\x94\x04\x01", b"\x81\x04\x01", b"\x94\x04\x01\x00\x00\x00",
        b"\x91\xc3", b"\x91\xcb\x40\x10\x00\x00\x00\x00\x00\x00", b"\x91\x2a", b"\xdd\xff\xff\xff\xff",
        b"\xa3\xff\xff\xff", b"\xc7\x0c\xff" + b"\xff" * 12, b"\xd4\x01\x01", b"\x91" * 4000,
        b"\xd6\xff\x00\x00\x00\x00",
    ],
)  # fmt: skip
def test_bytes_that_are_no_header_are_refused(header: bytes) -> None:
    """Empty, cut, over-long, nested, ext and non-array bytes raise RemoteWireError."""
    with pytest.raises(RemoteWireError):
        decode(header)


def test_a_large_header_is_refused_before_it_is_parsed() -> None:
    """4 KiB for the messages of every tick; only introductions, PONG and WEIGHTS may be larger."""
    padded = msgpack.packb([4, 1, 2, 0, b"\0" * 4096])
    with pytest.raises(RemoteWireError, match="allowed are 4096") as caught:
        decode(padded)
    assert caught.value.code == "header_size"
    manifest = "x" * 500_000
    large = Weights(session=1, version=1, manifest_digest="d", manifest=manifest)
    assert decode(encode(large)) == large
    settings = tuple((f"setting_{i:02}", "x" * 900) for i in range(60))
    hello = dataclasses.replace(MESSAGES["hello"], spec=dataclasses.replace(CARTPOLE, settings=settings))
    assert decode(encode(hello)) == hello
    with pytest.raises(LocalWireError, match="manifest"):
        encode(Weights(session=1, version=1, manifest_digest="d", manifest=manifest * 3))
    with pytest.raises(RemoteWireError, match="allowed are 65536"):
        decode(msgpack.packb([1, "x" * 70_000]))


def test_a_header_that_fits_its_fields_but_not_its_frame_is_our_error() -> None:
    """Settings that are too long together are a LocalWireError here, not a peer that hangs up there."""
    settings = tuple((f"setting_{i:02}", "x" * 4000) for i in range(60))
    with pytest.raises(LocalWireError, match="allowed are 65536"):
        encode(dataclasses.replace(MESSAGES["hello"], spec=dataclasses.replace(CARTPOLE, settings=settings)))


def test_prose_is_cut_and_never_in_the_way() -> None:
    """A refusal always leaves, however long its explanation is."""
    sent = messages.Reject(nonce=1, code="spec", retryable=False, message="ü" * 5000, hint="🌱" * 5000)
    received = decode(encode(sent))
    assert isinstance(received, messages.Reject)
    assert (received.message, received.hint) == ("ü" * 1024, "🌱" * 1024)


@pytest.mark.parametrize(
    "message",
    [
        Step(session=1, seq=-1 << 65),
        Step(session=np.int64(1), seq=0),  # type: ignore[arg-type]
        Act(session=1, seq=0, policy_version=1 << 64),
        Bye(session=-1, reason="x"),
        Bye(session=0, reason="\ud800"),
        Ping(sent_ms=0, load=(("x", float("inf")),)),
        dataclasses.replace(MESSAGES["credit"], state=9),
        "no message",
    ],
)  # fmt: skip
def test_a_record_that_the_protocol_does_not_allow_is_our_error(message: Message) -> None:
    """What decode would refuse does not leave."""
    with pytest.raises(LocalWireError):
        encode(message)


def test_enum_members_travel_as_integers() -> None:
    """Records may be built with enum members; a reader compares equal integers."""
    report = SessionReport(session=1, last_seq=0, state=RequestState.QUEUED, age_ms=0)
    pong = Pong(sent_ms=0, server_epoch=1, work_age_ms=0, sessions=(report,))
    decoded = decode(encode(pong))
    assert isinstance(decoded, Pong)
    assert type(decoded.sessions[0].state) is int
    assert decoded == pong


def test_a_duration_may_be_written_as_an_integer() -> None:
    """Writers that shorten 10.0 to 10 are understood."""
    hello = MESSAGES["hello"]
    values = msgpack.unpackb(encode(hello))
    values[-1] = 10
    decoded = decode(msgpack.packb(values))
    assert isinstance(decoded, Hello)
    assert type(decoded.max_stall_s) is float
    assert decoded == hello
    assert decoded.spec.digest() == CARTPOLE.digest()
