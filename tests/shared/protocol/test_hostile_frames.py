"""Whatever bytes a peer sends: a valid message or RemoteWireError, nothing else, and little memory."""

import random
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Hello, MessageType
from seedbed.shared.protocol.rows import EnvSpec, step_layout
from seedbed.shared.protocol.spaces import check_values
from tests.support.protocol_examples import CARTPOLE, EVERYTHING, MESSAGES

HEADERS = [encode(message) for message in MESSAGES.values()]
INTERESTING = (
    0x00,
    0x7F,
    0x80,
    0x90,
    0x9F,
    0xA0,
    0xC0,
    0xC1,
    0xC4,
    0xC7,
    0xCB,
    0xCF,
    0xD3,
    0xD9,
    0xDC,
    0xDD,
    0xDF,
    0xFF,
)


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One to four changes: a bit, a byte, a cut, an insertion, a repetition, or a part of another frame."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1 if place < len(changed):
                changed[place] = rng.choice(INTERESTING)
            case 2:
                del changed[place:]
            case 3:
                del changed[place : place + rng.randint(1, 4)]
            case 4:
                changed[place:place] = bytes(rng.choice(INTERESTING) for _ in range(rng.randint(1, 9)))
            case 5:
                changed[place:place] = changed[: rng.randint(0, 32)]
            case _:
                other = rng.choice(others)
                start = rng.randrange(len(other))
                changed[place : place + rng.randint(0, 16)] = other[start : start + rng.randint(1, 64)]
    return bytes(changed)


def check_header(header: bytes) -> bool:
    """Whether it is a message; then it survives another round trip."""
    try:
        message = decode(header)
    except RemoteWireError:
        return False
    assert decode(encode(message)) == message
    return True


def fuzz_headers(seed: int, num_frames: int) -> int:
    """Decode that many mutated headers; how many of them were messages."""
    rng = random.Random(seed)
    return sum(check_header(mutate(rng, rng.choice(HEADERS), HEADERS)) for _ in range(num_frames))


def fuzz_payloads(seed: int, num_frames: int) -> int:
    """Read that many mutated STEP payloads; how many were accepted."""
    rng = random.Random(seed)
    accepted = 0
    for _ in range(num_frames):
        spec: EnvSpec = rng.choice([CARTPOLE, EVERYTHING])
        layout = step_layout(spec, rng.randint(1, 2))
        frames = [bytes(frame) for frame in layout.allocate()]
        index = rng.randrange(len(frames))
        if rng.random() < 0.5:
            frames[index] = mutate(rng, frames[index][:4096], HEADERS) + frames[index][4096:]
        else:
            size = len(frames[index])
            frames[index] = frames[index][: size // 2] + rng.randbytes(size - size // 2)
        if rng.random() < 0.1:
            frames.insert(rng.randrange(len(frames) + 1), rng.choice(HEADERS))
        try:
            layout.check(frames)
            arrays = layout.views(frames)[: len(spec.observation.leaves())]
            check_values(spec.observation, arrays)
        except RemoteWireError:
            continue
        accepted += 1
    return accepted


def test_mutated_headers_are_messages_or_refused() -> None:
    """Five thousand mutations of every message: no other exception, and both outcomes occur."""
    assert 0 < fuzz_headers(seed=1, num_frames=5000) < 5000


def test_mutated_payloads_are_rows_or_refused() -> None:
    """A thousand mutations of STEP payloads: no other exception, and both outcomes occur."""
    assert 0 < fuzz_payloads(seed=1, num_frames=1000) < 1000


@pytest.mark.slow
def test_a_hundred_thousand_mutated_frames_are_messages_or_refused() -> None:
    """The long form of the two above."""
    assert 0 < fuzz_headers(seed=2, num_frames=100_000) < 100_000
    assert 0 < fuzz_payloads(seed=2, num_frames=100_000) < 100_000


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(header: bytes) -> None:
    """Arbitrary bytes raise RemoteWireError only."""
    check_header(header)


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=20),
        st.binary(max_size=20),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
    ),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(MessageType)), st.lists(VALUES, max_size=18))
def test_any_values_behind_a_type_are_a_message_or_refused(kind: MessageType, values: list[Any]) -> None:
    """Well-formed MessagePack of the wrong content raises RemoteWireError only."""
    try:
        header = msgpack.packb([int(kind), *values])
    except ValueError:  # text that is no Unicode cannot even be written
        return
    check_header(header)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_value_at_any_place_of_a_hello_is_read_or_refused(data: st.DataObject) -> None:
    """The specification's nested arrays, at any depth."""
    values = msgpack.unpackb(encode(MESSAGES["hello_everything"]))
    node: Any = values
    while True:
        index = data.draw(st.integers(0, len(node) - 1))
        if not isinstance(node[index], list) or not node[index] or data.draw(st.booleans()):
            break
        node = node[index]
    node[index] = data.draw(VALUES)
    try:
        header = msgpack.packb(values)
    except ValueError:
        return
    check_header(header)


@pytest.mark.parametrize(
    "header",
    [
        b"\x94\x04\xdd\xff\xff\xff\xff",
        b"\x94\x04\xdf\xff\xff\xff\xff",
        b"\x94\x04\xc6\xff\xff\xff\xff",
        b"\xdd\x00\x00\x0f\xf0" + b"\xdd\x00\x00\x0f\xf0" * 800,
        msgpack.packb([1, *[[[1] * 100] * 100] * 3]),
    ],
)
def test_lengths_that_lie_cost_no_memory(header: bytes) -> None:
    """A header that announces gigabytes is refused without allocating for them."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteWireError):
            decode(header)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_hello_of_the_largest_leaf_costs_no_memory_until_its_size_is_judged() -> None:
    """A specification of 64 Mi elements is small itself; its layout is integers."""
    values = msgpack.unpackb(encode(MESSAGES["hello"]))
    values[12][2] = [1, 10, [8192, 8192], np.float64(0).tobytes(), np.float64(1).tobytes(), ""]
    tracemalloc.start()
    try:
        hello = decode(msgpack.packb(values))
        assert isinstance(hello, Hello)
        assert step_layout(hello.spec, hello.lanes).num_bytes == 64 * (8192 * 8192 * 8 + 5)
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()
