"""Peers that take more than their share, over real sockets: the others go on, and the greedy are hung up on."""

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
import uvloop
import zmq

from seedbed.shared.net.budget import DROPPED_MESSAGES
from seedbed.shared.net.connections import hang_up, received_bytes
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router
from seedbed.shared.net.socket_options import ROUTER_QUEUE_MESSAGES
from tests.support.clock import Clock
from tests.support.heard import Changes
from tests.support.hostile_peer import connect_raw, part

TIMEOUT_S = 30.0
LOOK_S = 0.05
WASTE = b"waste"
LARGE = bytes(64 * 1024)
ON_THE_WAY = 32  # more than a Unix socket's buffers and libzmq's hold of those
QUEUE_IS_FULL_MS = 1000  # without room for one more


class BusyRouter(Changes):
    """A router that knows two kinds of messages, and its peers, each on a context of its own as in another process."""

    def __init__(self, bind: str = "tcp://127.0.0.1:0", **options) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self.useful = self.wasteful = 0
        self.refused: list[str] = []
        self.reactor = self._stack.enter_context(Reactor())
        self.router = Router(
            self.reactor, bind, on_message=self._take, on_refused=lambda reason, _: self._refuse(reason), **options
        )
        self._stack.callback(self.router.close)

    def _take(self, _route: bytes, frames: list[bytes]) -> bool:
        is_useful = frames[0] != WASTE
        self.useful += is_useful
        self.wasteful += not is_useful
        self.tell()
        return is_useful

    def _refuse(self, reason: str) -> None:
        self.refused.append(reason)
        self.tell()

    async def peer(self) -> Dealer:
        """One that is connected."""
        events: list[str] = []

        def note(event: str) -> None:
            events.append(event)
            self.tell()

        reactor = self._stack.enter_context(Reactor())
        dealer = Dealer(reactor, self.router.endpoint, on_message=lambda _: None, on_event=note)
        self._stack.callback(dealer.close)
        dealer.noted = events  # type: ignore[attr-defined]
        await self.wait_for(lambda: dealer.is_connected)
        return dealer

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """As `until`, and looks now and then: who drops messages tells nobody."""
        await self.until(condition, look_s=LOOK_S)

    def close(self) -> None:
        self._stack.close()


def serve(test, **options) -> None:
    """Run a test on a fresh loop with a router."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.closing(BusyRouter(**options)) as busy:
                await test(busy)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_who_floods_is_hung_up_on_and_the_others_are_heard(scheme, tmp_path, monkeypatch) -> None:
    """The rest of the flood is not read, and a useful message of somebody else arrives."""
    monkeypatch.setattr("seedbed.shared.net.budget.BURST_S", 0.01)
    monkeypatch.setattr("seedbed.shared.net.budget.SHARE", 1e-6)

    async def test(busy: BusyRouter) -> None:
        good, bad = await busy.peer(), await busy.peer()
        assert good.send([b"useful"])
        await busy.wait_for(lambda: busy.useful == 1)

        def flood() -> bool:
            while bad.send([WASTE]):
                pass
            return "flood" in busy.refused

        await busy.wait_for(flood)
        await busy.wait_for(lambda: "disconnected" in bad.noted)
        heard = busy.wasteful
        assert good.send([b"useful"])
        await busy.wait_for(lambda: busy.useful == 2)
        assert busy.wasteful == heard
        assert busy.reactor.statistics().dropped >= DROPPED_MESSAGES
        assert good.noted == ["connected"]

    bind = "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/link"
    serve(test, bind=bind)


def test_who_sends_faster_than_is_read_has_to_wait(tmp_path) -> None:
    """A busy service keeps few messages of each connection, so that large ones do not fill its memory; none is lost."""

    async def test(busy: BusyRouter) -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as sender:
            sender.setsockopt(zmq.LINGER, 0)
            sender.setsockopt(zmq.SNDHWM, 1)
            sender.connect(busy.router.endpoint)
            sent = 0
            while sender.poll(QUEUE_IS_FULL_MS, zmq.POLLOUT):  # the router's loop waits meanwhile
                sender.send(LARGE)
                sent += 1
            assert ROUTER_QUEUE_MESSAGES <= sent <= ROUTER_QUEUE_MESSAGES + ON_THE_WAY
            await busy.wait_for(lambda: busy.useful == sent)

    serve(test, bind=f"ipc://{tmp_path}/link")


def test_useful_messages_are_free(monkeypatch) -> None:
    """However many there are, and however long they take."""
    monkeypatch.setattr("seedbed.shared.net.budget.BURST_S", 1e-9)

    async def test(busy: BusyRouter) -> None:
        peer = await busy.peer()
        for number in range(3000):
            while not peer.send([b"useful"]):
                await busy.wait_for(lambda number=number: busy.useful >= number - 500)
        await busy.wait_for(lambda: busy.useful == 3000)
        assert busy.reactor.statistics().dropped == 0

    serve(test)


def test_without_keys_new_connections_waste_together(monkeypatch) -> None:
    """A stranger gains nothing by another connection; who has been useful keeps an account of its own."""
    monkeypatch.setattr("seedbed.shared.net.budget.BURST_S", 1e-9)
    monkeypatch.setattr("seedbed.shared.net.budget.SHARE", 1e-9)

    async def test(busy: BusyRouter) -> None:
        good = await busy.peer()
        assert good.send([b"useful"])
        await busy.wait_for(lambda: busy.useful == 1)
        first = await busy.peer()
        assert first.send([WASTE])
        await busy.wait_for(lambda: busy.wasteful == 1)
        second = await busy.peer()
        assert second.send([b"useful"])
        await busy.wait_for(lambda: busy.reactor.statistics().dropped == 1)
        assert good.send([WASTE])
        await busy.wait_for(lambda: busy.wasteful == 2)

    serve(test)


def test_a_message_without_end_ends_its_connection() -> None:
    """Others are heard, and nothing of it ever is."""
    memory = Clock()

    async def send_on(busy: BusyRouter) -> None:
        """For ever, over one connection after the other. Who is hung up on may wait for room and never be told."""
        piece = part(bytes(10_000))
        while True:
            with connect_raw(busy.router.endpoint) as connection, contextlib.suppress(ConnectionError):
                connection.setblocking(False)
                while True:
                    memory.now += 1e9  # the process grows
                    await busy.reactor.loop.sock_sendall(connection, piece)
                    await asyncio.sleep(0)  # a send that succeeds at once lets nobody else run

    async def test(busy: BusyRouter) -> None:
        good = await busy.peer()
        sender = asyncio.create_task(send_on(busy))
        await busy.wait_for(lambda: "endless" in busy.refused)
        sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sender
        assert good.send([b"useful"])
        await busy.wait_for(lambda: busy.useful == 1)
        assert busy.wasteful == 0
        assert good.noted == ["connected"]

    serve(test, max_frame_bytes=64_000, memory=lambda: int(memory.now))


def test_large_messages_that_end_are_no_reason(monkeypatch) -> None:
    """However much the process has grown."""
    memory = Clock(1e12)

    async def test(busy: BusyRouter) -> None:
        peer = await busy.peer()
        for number in range(40):
            assert peer.send([b"useful", bytes(60_000), bytes(60_000)])
            await busy.wait_for(lambda number=number: busy.useful == number + 1)
            memory.now += 1e9
            await asyncio.sleep(0.02)
        assert busy.refused == []

    serve(test, max_frame_bytes=64_000, memory=lambda: int(memory.now))


def test_a_descriptor_is_looked_at_before_anything_is_done_to_it(tmp_path) -> None:
    """Files, sockets of others and the listening socket itself stay as they are."""

    async def test(busy: BusyRouter) -> None:
        peer = await busy.peer()
        (mine,) = received_bytes(busy.router.endpoint)
        with (tmp_path / "file").open("w") as file:
            assert not hang_up(file.fileno(), busy.router.endpoint)
        assert not hang_up(mine[0], "tcp://127.0.0.1:1")
        assert not hang_up(mine[0], "ipc:///nowhere")
        assert not hang_up(-1, busy.router.endpoint)
        for descriptor in range(mine[0]):
            hang_up(descriptor, busy.router.endpoint)
        assert peer.is_connected
        assert hang_up(mine[0], busy.router.endpoint)
        await busy.wait_for(lambda: "disconnected" in peer.noted)

    serve(test)


def test_garbage_is_counted_without_keys_as_well() -> None:
    """Whoever does not speak ZeroMQ is told of."""

    async def test(busy: BusyRouter) -> None:
        host, port = busy.router.endpoint.removeprefix("tcp://").rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n" * 10)
        await busy.wait_for(lambda: "handshake" in busy.refused)

    serve(test)
