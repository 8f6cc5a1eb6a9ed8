"""Names that come to stand for other addresses."""

import asyncio
import re
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.addresses import look_up
from seedbed.shared.net.resolver import Resolver
from tests.support.heard import Changes


class Names(Changes):
    """A name server, and what a resolver found with it."""

    def __init__(self, **hosts: list[str]) -> None:
        super().__init__()
        self.hosts = hosts
        self.found: list[list[str]] = []

    def look_up(self, name: str, _port: int) -> list[str]:
        if name not in self.hosts:
            raise OSError(-2, "Name or service not known")
        return self.hosts[name]

    def take(self, addresses: list[str]) -> None:
        self.found.append(addresses)
        self.tell()

    def follow(self, *addresses: str) -> Resolver:
        return Resolver(addresses, self.take, lookup=self.look_up, every_s=0.01)

    async def until_found(self, addresses: list[str]) -> None:
        """Until exactly these are found."""
        await self.until(lambda: self.found[-1:] == [addresses])


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def test_numbers_and_paths_stand_for_themselves() -> None:
    """At once, without a thread."""

    async def test() -> None:
        names, before = Names(), set(threading.enumerate())
        with names.follow("tcp://127.0.0.1:1", "tcp://[::1]:2", "ipc:///tmp/x"):
            assert names.found == [["tcp://127.0.0.1:1", "tcp://[::1]:2", "ipc:///tmp/x"]]
            assert set(threading.enumerate()) <= before

    run(test)


def test_a_name_is_followed_wherever_it_goes() -> None:
    """Every address behind it, IPv6 in brackets; told when they change and not otherwise."""

    async def test() -> None:
        names = Names(inference=["10.0.0.3", "10.0.0.2", "10.0.0.2"])
        with names.follow("tcp://inference:5555", "tcp://127.0.0.1:7"):
            await names.until_found(["tcp://10.0.0.2:5555", "tcp://10.0.0.3:5555", "tcp://127.0.0.1:7"])
            names.hosts["inference"] = ["fd00::9"]
            await names.until_found(["tcp://[fd00::9]:5555", "tcp://127.0.0.1:7"])
        assert len(names.found) == 3  # the number alone, at first

    run(test)


def test_a_name_that_does_not_resolve_is_waited_for_and_complained_of() -> None:
    """With how long, why, and what to do; a name that did resolve keeps what it stood for."""

    async def test() -> None:
        names = Names(learner=["10.0.0.1"])
        with names.follow("tcp://learner:1", "tcp://inference:2") as resolver:
            await names.until_found(["tcp://10.0.0.1:1"])
            later = asyncio.get_running_loop().time() + 12.5
            while not (complaints := resolver.complaints(later)):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert len(complaints) == 1
            assert re.match(
                r"tcp://inference:2 does not resolve, for 1\d s \(Name or service not known\)", complaints[0]
            )
            del names.hosts["learner"]
            names.hosts["inference"] = ["10.0.0.2"]
            await names.until_found(["tcp://10.0.0.1:1", "tcp://10.0.0.2:2"])
            assert resolver.complaints(0.0) == []

    run(test)


def test_a_look_up_that_hangs_holds_nobody_up() -> None:
    """The loop goes on, and closing does not wait."""
    release = threading.Event()

    async def test() -> None:
        names = Names()
        asked = threading.Event()

        def hang(_name: str, _port: int) -> list[str]:
            asked.set()
            release.wait(20)
            return ["10.0.0.1"]

        with Resolver(["tcp://inference:1"], names.take, lookup=hang):
            await asyncio.get_running_loop().run_in_executor(None, asked.wait)
        release.set()
        assert names.found == []

    run(test)


def test_an_address_without_a_port_is_refused() -> None:
    """Before anything is looked up."""

    async def test() -> None:
        with pytest.raises(ConfigError, match="tcp://host:port"):
            Resolver(["tcp://inference"], print)

    run(test)


def test_the_systems_own_look_up_gives_numbers() -> None:
    """Of a name that every machine knows."""
    assert {"127.0.0.1", "::1"} & set(look_up("localhost", 7))
    with pytest.raises(OSError, match=r"[Nn]ame|temporary"):
        look_up("no-such-name.invalid", 7)
