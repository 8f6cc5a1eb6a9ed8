"""A socket that speaks ZMTP and whatever else a test puts into it: nothing is encoded, kept or sent again."""

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Hello, Message, Ping, Pong, Welcome


@contextlib.contextmanager
def raw_dealer(address: str, **options: Any) -> Iterator[zmq.Socket[bytes]]:
    """A DEALER on a context of its own, with these socket options; what it has not sent is lost with it."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.sndtimeo = dealer.rcvtimeo = 20_000
        for name, value in options.items():
            setattr(dealer, name, value)
        dealer.connect(address)
        yield dealer


def exchange(dealer: zmq.Socket[bytes], *frames: bytes) -> Message:
    """Send, and the next message that is no beat."""
    dealer.send_multipart(frames)
    while isinstance(message := decode(dealer.recv_multipart()[0]), Ping | Pong):
        pass
    return message


def greet(dealer: zmq.Socket[bytes], hello: Hello) -> Welcome:
    """Say HELLO and be welcome."""
    answer = exchange(dealer, encode(hello))
    assert isinstance(answer, Welcome), answer
    return answer
