"""One conversation with whoever answers: real sockets on several loopback addresses, and a name that moves."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from seedbed.services.tools.cli.launcher import Reservation
from seedbed.shared.errors import ConfigError
from seedbed.shared.net.dialler import Dialler
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router
from tests.support.heard import Changes

HOSTS = ("127.0.0.2", "127.0.0.3")


class MovingName(Changes):
    """A dialler of one name, peers at two addresses of one port, and what happened."""

    def __init__(self, reactor: Reactor, port: int, *hosts: str) -> None:
        super().__init__()
        self.reactor, self.port = reactor, port
        self.hosts = list(hosts)
        self.events: list[str] = []
        self.heard: list[tuple[str, bytes]] = []  # host and message
        self.answers: list[bytes] = []
        self.routers: dict[str, Router] = {}
        self.routes: dict[str, bytes] = {}
        self.dialler = Dialler(
            reactor, [f"tcp://learner:{port}"], on_message=self._answered, on_event=self._happened, lookup=self._look_up
        )

    def open(self, host: str) -> None:
        self.routers[host] = Router(
            self.reactor, f"tcp://{host}:{self.port}", on_message=lambda route, frames: self._heard(host, route, frames)
        )

    async def until_heard_at(self, host: str, message: bytes) -> None:
        """Say it to whoever is in use, until it arrives there."""
        await self.until(lambda: self.dialler.address == f"tcp://{host}:{self.port}")
        assert self.dialler.send([message])
        await self.until(lambda: (host, message) in self.heard)

    def _look_up(self, _name: str, _port: int) -> list[str]:
        if not self.hosts:
            raise OSError(-2, "Name or service not known")
        return self.hosts

    def _heard(self, host: str, route: bytes, frames: list[bytes]) -> None:
        self.heard.append((host, frames[0]))
        self.routes[host] = route
        self.tell()

    def _answered(self, frames: list[bytes]) -> None:
        self.answers.append(frames[0])
        self.tell()

    def _happened(self, event: str) -> None:
        self.events.append(event)
        self.tell()


def run(test: Callable[[MovingName], Coroutine[Any, Any, None]], *hosts: str) -> None:
    async def bounded() -> None:
        reservation = Reservation(HOSTS[0])
        try:
            with Reactor() as reactor:
                async with asyncio.timeout(30):
                    name = MovingName(reactor, reservation.port, *hosts)
                    await test(name)
                name.dialler.close()
        finally:
            reservation.close()

    asyncio.run(bounded())


def test_a_peer_that_comes_back_under_another_address_is_found() -> None:
    """Its name is all that stays."""

    async def test(name: MovingName) -> None:
        name.open(HOSTS[0])
        await name.until_heard_at(HOSTS[0], b"one")
        name.routers[HOSTS[0]].close()
        await name.until(lambda: name.events[-1] == "disconnected")
        assert not name.dialler.send([b"lost"])
        name.hosts = [HOSTS[1]]
        name.open(HOSTS[1])
        await name.until_heard_at(HOSTS[1], b"two")
        assert name.events == ["connected", "disconnected", "connected"]
        assert name.routers[HOSTS[1]].send(name.routes[HOSTS[1]], [b"answer"])
        await name.until(lambda: name.answers == [b"answer"])

    run(test, HOSTS[0])


def test_of_several_addresses_one_is_used_and_the_next_when_it_is_lost() -> None:
    """The other hears nothing until then."""

    async def test(name: MovingName) -> None:
        for host in HOSTS:
            name.open(host)
        await name.until(lambda: bool(name.dialler.address))
        first, second = HOSTS if HOSTS[0] in name.dialler.address else HOSTS[::-1]
        await name.until_heard_at(first, b"one")
        name.routers[first].close()
        await name.until_heard_at(second, b"two")
        assert name.heard == [(first, b"one"), (second, b"two")]
        assert name.events == ["connected", "disconnected", "connected"]

    run(test, *HOSTS)


def test_one_that_does_not_serve_is_passed_over() -> None:
    """Where another is connected; else it is kept."""

    async def test(name: MovingName) -> None:
        name.open(HOSTS[0])
        await name.until_heard_at(HOSTS[0], b"one")
        assert not name.dialler.pass_over()
        name.open(HOSTS[1])

        async with asyncio.timeout(20):
            while not name.dialler.pass_over():  # noqa: ASYNC110
                await asyncio.sleep(0)
        await name.until_heard_at(HOSTS[1], b"two")
        assert name.dialler.pass_over()
        await name.until_heard_at(HOSTS[0], b"three")

    run(test, *HOSTS)


def test_an_address_that_its_name_left_is_kept_while_it_serves() -> None:
    """And given up when it no longer does."""

    async def test(name: MovingName) -> None:
        name.open(HOSTS[0])
        await name.until_heard_at(HOSTS[0], b"one")
        name.hosts = [HOSTS[1]]
        name.open(HOSTS[1])

        await name.until_heard_at(HOSTS[0], b"still here")
        async with asyncio.timeout(20):
            while not name.dialler.pass_over():
                assert name.dialler.address == f"tcp://{HOSTS[0]}:{name.port}"
                await asyncio.sleep(0)
        await name.until_heard_at(HOSTS[1], b"two")

    run(test, HOSTS[0])


def test_it_says_what_it_waits_for() -> None:
    """A name that does not resolve, then an address where nobody is, then nothing."""

    async def test(name: MovingName) -> None:
        loop = asyncio.get_running_loop()

        async def complaint() -> str:
            while not (complaints := name.dialler.complaints(loop.time() + 5)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            return complaints[0]

        assert "does not resolve, for 5 s (Name or service not known)" in await complaint()
        name.hosts = [HOSTS[0]]
        while "no connection to tcp://127.0.0.2" not in (said := await complaint()):
            assert "does not resolve" in said
            await asyncio.sleep(0)
        name.open(HOSTS[0])
        await name.until_heard_at(HOSTS[0], b"one")
        assert name.dialler.complaints(loop.time()) == []

    run(test)


def test_a_name_across_the_network_needs_keys() -> None:
    """Found out when it resolves: the loop learns of it, and the service ends with that message."""

    async def test() -> None:
        caught: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.set_result(context["exception"]))
        with Reactor() as reactor:
            dialler = Dialler(
                reactor, ["tcp://learner:1"], on_message=print, on_event=print, lookup=lambda *_: ["10.1.2.3"]
            )
            async with asyncio.timeout(20):
                error = await caught
            dialler.close()
        assert isinstance(error, ConfigError)
        with pytest.raises(ConfigError, match="there are no keys"):
            raise error

    asyncio.run(test())
