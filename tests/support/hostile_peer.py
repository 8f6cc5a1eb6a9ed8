"""Messages that no honest peer sends, and raw TCP clients that do not even speak ZMTP."""

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import msgpack

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import decode

GOLDEN = Path(__file__).parents[1] / "golden" / "headers.json"
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(48)


def hostile_messages(count: int, seed: int) -> Iterator[list[bytes]]:
    """Message after message: noise, mutations of good headers, unknown types, far too much of everything."""
    rng = random.Random(seed)
    headers = golden_headers()
    for number in range(count):
        header = rng.choice(headers)
        kind = number % 8
        if kind == 0:
            yield [rng.randbytes(rng.randint(0, 300))]
        elif kind == 1:
            yield [b""]
        elif kind == 2:
            place = rng.randrange(len(header))
            yield [header[:place] + rng.randbytes(1) + header[place + 1 :], rng.randbytes(64)]
        elif kind == 3:
            yield [header[: rng.randrange(len(header))]]
        elif kind == 4:
            yield [msgpack.packb([rng.randint(-1000, 1000), rng.random(), "x", {"a": [1]}])]
        elif kind == 5:
            yield [msgpack.packb([[[[[]]]]] * 50)]
        elif kind == 6:
            yield [header, rng.randbytes(rng.choice([0, 1, 7, 4096])), b"", b"more"]
        else:
            yield [rng.randbytes(8192)] * rng.choice([1, 2, 30])


def golden_headers() -> list[bytes]:
    """One good header of each kind."""
    return [bytes.fromhex(text) for text in find_hex(json.loads(GOLDEN.read_text()))]


def find_hex(node: object) -> Iterator[str]:
    """Every string of hexadecimal digits in a JSON value."""
    if isinstance(node, dict):
        for value in node.values():
            yield from find_hex(value)
    elif isinstance(node, list):
        for value in node:
            yield from find_hex(value)
    elif isinstance(node, str) and len(node) > 3 and len(node) % 2 == 0 and not set(node) - set("0123456789abcdef"):
        yield node


def is_undecodable(frames: list[bytes]) -> bool:
    """Whether the codec refuses the header."""
    try:
        decode(frames[0])
    except RemoteWireError:
        return True
    return False


def shout_over_tcp(address: str, seed: int) -> None:
    """Several raw connections: noise at once, noise after a good greeting, a huge frame announced, half a greeting."""
    rng = random.Random(seed)
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    huge = ZMTP_GREETING + b"\x02" + (1 << 62).to_bytes(8, "big") + rng.randbytes(1000)
    for opening in (rng.randbytes(100_000), ZMTP_GREETING + rng.randbytes(10_000), huge, ZMTP_GREETING[:20], b""):
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            try:
                connection.sendall(opening)
            except (BrokenPipeError, ConnectionResetError):
                continue


def connect_raw(address: str) -> socket.socket:
    """A TCP connection that has shaken hands as a DEALER without keys, and may now send any frames."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=10)
    properties = b"\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER" + b"\x08Identity" + bytes(4)
    ready = b"\x05READY" + properties
    connection.sendall(ZMTP_GREETING + b"\x04" + bytes([len(ready)]) + ready)
    connection.recv(64)
    return connection


def part(content: bytes, *, is_last: bool = False) -> bytes:
    """A frame of a message, as ZMTP has it on the wire."""
    return bytes([2 if is_last else 3]) + len(content).to_bytes(8, "big") + content
