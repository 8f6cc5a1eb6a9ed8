"""One contract on both event loops, asyncio's and uvloop's, over real sockets."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop
import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net import addresses
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.reactor import MAX_FRAMES, Reactor
from seedbed.shared.net.router import Router
from tests.support.heard import Heard

TIMEOUT_S = 20.0


@dataclass
class Transport:
    """One of the event loops that both ends run on."""

    name: str
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None

    @contextlib.contextmanager
    def open(self):
        """A place for endpoints on the running loop."""
        with Reactor() as reactor:
            yield reactor

    def run(self, test: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Run a test on a fresh loop, with a place."""

        async def bounded() -> None:
            with self.open() as place:
                async with asyncio.timeout(TIMEOUT_S):
                    await test(place)

        with asyncio.Runner(loop_factory=self.loop_factory) as runner:
            runner.run(bounded())


@pytest.fixture(params=["asyncio", "uvloop"])
def transport(request) -> Transport:
    """Both loops."""
    return Transport(request.param, uvloop.new_event_loop if request.param == "uvloop" else None)


class Pair:
    """A router, a dealer connected to it, and what both heard."""

    def __init__(self, transport: Transport, place: Any, **router_options: Any) -> None:
        self.at_router, self.at_dealer = Heard(), Heard()
        self.router = Router(
            place,
            "tcp://127.0.0.1:0",
            on_message=self.at_router.message,
            on_drained=self.at_router.drained,
            **router_options,
        )
        self.dealer = Dealer(
            place, self.router.endpoint, on_message=self.at_dealer.message, on_event=self.at_dealer.event
        )

    async def wait_connected(self) -> None:
        """Until the dealer may send."""
        await self.at_dealer.until(lambda: self.dealer.is_connected)

    async def wait_route(self) -> bytes:
        """The dealer's route at the router."""
        await self.wait_connected()
        assert self.dealer.send([b"hello"])
        await self.at_router.until(lambda: bool(self.at_router.messages))
        route = self.at_router.messages[-1][0]
        self.at_router.messages.clear()
        return route


def test_a_message_arrives_whole(transport):
    """Frames arrive as bytes, in their order, empty ones included, and can be answered."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        assert pair.dealer.send([b"header", b"", b"x" * 100_000])
        await pair.at_router.until(lambda: bool(pair.at_router.messages))
        route, frames = pair.at_router.messages[0]
        assert frames == [b"header", b"", b"x" * 100_000]
        assert pair.router.send(route, [b"reply", b"y"])
        await pair.at_dealer.until(lambda: bool(pair.at_dealer.messages))
        assert pair.at_dealer.messages == [[b"reply", b"y"]]

    transport.run(test)


def test_messages_of_one_peer_keep_their_order(transport):
    """A burst over the drain's budget arrives complete and in order, with no further traffic to wake it."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        sent = [str(number).encode() for number in range(900)]
        assert all(pair.dealer.send([number]) for number in sent)
        await pair.at_router.until(lambda: len(pair.at_router.messages) == 900)
        assert [frames[0] for _, frames in pair.at_router.messages] == sent

    transport.run(test)


def test_buffers_are_copied(transport):
    """What is sent may be overwritten at once."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        buffer = bytearray(b"a" * 200_000)
        assert pair.dealer.send([b"h", buffer, memoryview(buffer)[:3]])
        buffer[:] = b"b" * 200_000
        await pair.at_router.until(lambda: bool(pair.at_router.messages))
        assert pair.at_router.messages[0][1] == [b"h", b"a" * 200_000, b"aaa"]

    transport.run(test)


def test_routes_tell_peers_apart(transport):
    """Every dealer gets its own answers."""

    async def test(place):
        at_router, peers = Heard(), []
        router = Router(
            place, "tcp://127.0.0.1:0", on_message=lambda route, frames: router.send(route, [b"for", frames[0]])
        )
        for _ in range(3):
            heard = Heard()
            dealer = Dealer(place, router.endpoint, on_message=heard.message, on_event=heard.event)
            peers.append((dealer, heard))
        for number, (dealer, heard) in enumerate(peers):
            await heard.until(lambda dealer=dealer: dealer.is_connected)
            assert dealer.send([b"%d" % number])
        for number, (_, heard) in enumerate(peers):
            await heard.until(lambda heard=heard: bool(heard.messages))
            assert heard.messages == [[b"for", b"%d" % number]]
        assert not at_router.messages

    transport.run(test)


def test_a_dealer_without_a_peer_refuses_to_send(transport):
    """Nothing is queued for a server that is not there: it would reach its successor."""

    async def test(place):
        pair = Pair(transport, place)
        address = pair.router.endpoint
        pair.router.close()
        dealer = Dealer(place, address, on_message=pair.at_dealer.message)
        assert not dealer.send([b"x"])
        assert dealer.state == "connecting"

    transport.run(test)


def test_a_dealer_survives_its_router(transport):
    """It says that the router went, refuses to send meanwhile, and finds the next one behind a new route."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_route()
        address = pair.router.endpoint
        pair.router.close()
        await pair.at_dealer.until(lambda: "disconnected" in pair.at_dealer.events)
        assert not pair.dealer.is_connected
        assert not pair.dealer.send([b"lost"])
        router = Router(place, address, on_message=pair.at_router.message)
        await pair.wait_connected()
        assert pair.dealer.send([b"again"])
        await pair.at_router.until(lambda: bool(pair.at_router.messages))
        assert pair.at_router.messages[0][1] == [b"again"]
        assert pair.at_dealer.events == ["connected", "disconnected", "connected"]
        router.close()

    transport.run(test)


def test_an_unknown_route_is_refused(transport):
    """A reply to a peer that never was, or has gone, is not silently dropped."""

    async def test(place):
        pair = Pair(transport, place)
        assert not pair.router.send(b"\0nope", [b"x"])
        route = await pair.wait_route()
        assert pair.router.send(route, [b"x"])
        pair.dealer.close()
        while pair.router.send(route, [b"x"]):  # noqa: ASYNC110 (a router hears of a leaving peer only by sending)
            await asyncio.sleep(0)

    transport.run(test)


def test_send_never_blocks(transport):
    """A peer that does not read makes send say no."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        block = b"x" * 8192
        assert any(not pair.dealer.send([block]) for _ in range(20_000))

    transport.run(test)


def test_a_frame_over_the_limit_costs_its_sender_the_connection(transport):
    """The oversized frame never reaches the callback; another peer is not disturbed."""

    async def test(place):
        pair = Pair(transport, place, max_frame_bytes=1000)
        other = Heard()
        dealer = Dealer(place, pair.router.endpoint, on_message=other.message, on_event=other.event)
        await other.until(lambda: dealer.is_connected)
        await pair.wait_connected()
        assert pair.dealer.send([b"x" * 1001])
        await pair.at_dealer.until(lambda: "disconnected" in pair.at_dealer.events)
        assert dealer.send([b"y" * 1000])
        await pair.at_router.until(lambda: bool(pair.at_router.messages))
        assert [frames for _, frames in pair.at_router.messages] == [[b"y" * 1000]]
        assert other.events == ["connected"]

    transport.run(test)


def test_a_message_of_too_many_frames_is_dropped(transport):
    """Its sender's next message arrives."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        assert pair.dealer.send([b"x"] * MAX_FRAMES)  # and one more, its sender's route
        assert pair.dealer.send([b"y"] * (MAX_FRAMES - 1))
        await pair.at_router.until(lambda: bool(pair.at_router.messages))
        assert pair.at_router.messages[0][1] == [b"y"] * (MAX_FRAMES - 1)

    transport.run(test)


def test_drained_is_told_after_the_messages(transport):
    """`on_drained` comes when everything that had arrived was handed on."""

    async def test(place):
        pair = Pair(transport, place)
        await pair.wait_connected()
        drains = pair.at_router.num_drains
        for _ in range(10):
            pair.dealer.send([b"x"])
        await pair.at_router.until(lambda: len(pair.at_router.messages) == 10)
        await pair.at_router.until(lambda: pair.at_router.num_drains > drains)
        assert pair.router.is_drained()

    transport.run(test)


def test_a_callback_may_close_its_endpoint(transport):
    """Closing twice, or from within, is no error; nothing is delivered afterwards."""

    async def test(place):
        closed = asyncio.Event()
        got = []

        def close(route, frames):
            got.append(frames)
            router.close()
            router.close()
            closed.set()

        router = Router(place, "tcp://127.0.0.1:0", on_message=close)
        heard = Heard()
        dealer = Dealer(place, router.endpoint, on_message=heard.message, on_event=heard.event)
        await heard.until(lambda: dealer.is_connected)
        dealer.send([b"one"])
        dealer.send([b"two"])
        await closed.wait()
        await heard.until(lambda: "disconnected" in heard.events)
        assert got == [[b"one"]]
        dealer.close()
        dealer.close()
        assert not dealer.send([b"x"])

    transport.run(test)


@pytest.mark.parametrize("bind", ["tcp://0.0.0.0:0", "tcp://*:5555", "tcp://10.0.0.1:5555", "tcp://example.org:80"])
def test_a_bind_that_is_open_to_the_network_is_refused(transport, bind):
    """Without keys only this machine may connect, and the error says what to write instead."""

    async def test(place):
        with pytest.raises(ConfigError, match=r"no keys.*tcp://127\.0\.0\.1:"):
            Router(place, bind, on_message=print)

    transport.run(test)


@pytest.mark.parametrize(
    "address", ["", "5555", "localhost:5555", "tcp://host", "tcp://:1", "tcp://h:99999", "udp://h:1"]
)
def test_a_malformed_address_is_a_configuration_error(transport, address):
    """The error shows what an address looks like."""

    async def test(place):
        with pytest.raises(ConfigError, match=r"tcp://127\.0\.0\.1:5555"):
            Dealer(place, address, on_message=print)
        with pytest.raises(ConfigError, match=r"tcp://127\.0\.0\.1:5555"):
            Router(place, address, on_message=print)

    transport.run(test)


def test_an_address_in_use_is_a_configuration_error(transport):
    """The second server on one address exits, saying what to do."""

    async def test(place):
        pair = Pair(transport, place)
        with pytest.raises(ConfigError, match="is in use: stop the process that holds it"):
            Router(place, pair.router.endpoint, on_message=print)

    transport.run(test)


def test_an_ipc_path_has_one_server(transport, tmp_path):
    """A second bind would steal the path without an error; a lock beside it refuses that, until the first closes."""

    async def test(place):
        bind = f"ipc://{tmp_path}/link"
        first = Router(place, bind, on_message=print)
        with pytest.raises(ConfigError, match="in use"):
            Router(place, bind, on_message=print)
        first.close()
        Router(place, bind, on_message=print).close()

    transport.run(test)


def test_an_impossible_ipc_path_is_a_configuration_error(transport, tmp_path):
    """A folder that is not there is named."""

    async def test(place):
        with pytest.raises(ConfigError, match="nowhere"):
            Router(place, f"ipc://{tmp_path}/nowhere/link", on_message=print)

    transport.run(test)


def test_garbage_hurts_nobody_else(transport):
    """A peer that does not speak ZMTP is dropped; another's message arrives."""

    async def test(place):
        pair = Pair(transport, place)
        host, port = pair.router.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\xff" * 4096)
            await pair.wait_route()
            await pair.at_router.until(pair.router.is_drained)

    transport.run(test)


@contextlib.contextmanager
def refusing_server():
    """The address of a router with another security mechanism."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as stranger:
        stranger.linger = 0
        stranger.plain_server = True
        stranger.bind("tcp://127.0.0.1:0")
        yield stranger.last_endpoint.decode()


def test_a_refused_handshake_is_told_and_tried_again(transport):
    """A server with another security mechanism refuses; once a right one is there, a new socket connects."""

    async def test(place):
        with refusing_server() as address:
            heard = Heard()
            dealer = Dealer(place, address, on_message=heard.message, on_event=heard.event)
            await heard.until(lambda: "handshake_failed" in heard.events)
            assert dealer.state == "refused"
        router = Router(place, address, on_message=heard.message)
        await heard.until(lambda: dealer.is_connected)
        assert "disconnected" not in heard.events
        router.close()

    transport.run(test)


def test_closing_while_refused_stops_dialling(transport):
    """No socket is opened after close, so the reactor can end."""

    async def test(place):
        with refusing_server() as address:
            heard = Heard()
            dealer = Dealer(place, address, on_message=heard.message, on_event=heard.event)
            await heard.until(lambda: "handshake_failed" in heard.events)
            dealer.close()
        assert not dealer.send([b"x"])

    transport.run(test)


SERVER = """
import zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind("tcp://127.0.0.1:0")
print(socket.last_endpoint.decode(), flush=True)
socket.recv_multipart()
"""


@pytest.fixture
def foreign_server():
    """A router in a process of its own: (process, address)."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        yield server, server.stdout.readline().strip()
        server.kill()


def test_a_stopped_peer_is_noticed(transport, foreign_server):
    """A peer that is stopped, its connection still open, is lost once a heartbeat is not answered."""

    async def test(place):
        server, address = foreign_server
        heard = Heard()
        dealer = Dealer(place, address, on_message=heard.message, on_event=heard.event)
        await heard.until(lambda: dealer.is_connected)
        os.kill(server.pid, signal.SIGSTOP)
        started = place.loop.time()
        await heard.until(lambda: dealer.state == "lost")
        assert place.loop.time() - started < 10.0

    transport.run(test)


def test_a_peer_that_fills_the_queue_and_hangs_up_does_not_end_the_process():
    """libzmq aborts where a heartbeat of the router's own is due on such a connection."""
    program = Path(__file__).parents[2] / "support" / "flooded_router.py"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_leaving_while_the_peer_leaves_does_not_hang():
    """A dealer that is closed just when its connection breaks is closed; libzmq must not be left holding an event."""
    command = [sys.executable, "-m", "tests.support.leave_together", "100"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "100\n", ended.stderr


def test_lock_of_another_process_holds(tmp_path: Path):
    """The lock is the kernel's: it ends with its process, not with a file that is left over."""
    (tmp_path / "link.lock").touch()
    descriptor = addresses.lock_ipc_path(f"ipc://{tmp_path}/link")
    assert descriptor is not None
    os.close(descriptor)
