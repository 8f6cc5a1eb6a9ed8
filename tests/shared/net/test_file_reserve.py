"""New connections never take the last descriptors of a server's process, and come in once there are more."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Iterator

import pytest
import uvloop

from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.file_reserve import RESERVED, most_connected
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router
from tests.support.heard import Heard

FREE = 12  # fewer than are reserved, and enough for a client in the same process


@contextlib.contextmanager
def few_files(free: int) -> Iterator[None]:
    """This process may open so many more files; a descriptor far above the others does not count."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_a_connection_that_would_take_one_of_the_last_descriptors_waits_outside(scheme, tmp_path) -> None:
    """It is told apart from other refusals; those who are in go on, and it comes in by itself when there is room."""

    async def test() -> None:
        at_router, first_heard, late_heard = Heard(), Heard(), Heard()
        with Reactor() as server, Reactor() as clients:
            router = Router(
                server, "tcp://127.0.0.1:0" if scheme == "tcp" else f"ipc://{tmp_path}/link",
                on_message=at_router.message, on_refused=lambda reason, _peer: at_router.event(reason),
            )  # fmt: skip
            first = Dealer(clients, router.endpoint, on_message=first_heard.message, on_event=first_heard.event)
            await first_heard.until(lambda: first.is_connected)
            with few_files(FREE):
                late = Dealer(clients, router.endpoint, on_message=late_heard.message, on_event=late_heard.event)
                await at_router.until(lambda: "open_files" in at_router.events)
                await late_heard.until(lambda: "handshake_failed" in late_heard.events)
                assert not late.is_connected
                assert first.send([b"still here"])
                await at_router.until(lambda: len(at_router.messages) == 1)
            await late_heard.until(lambda: late.is_connected)
            assert late.send([b"here at last"])
            await at_router.until(lambda: len(at_router.messages) == 2)
            assert first_heard.events == ["connected"]
            for end in (first, late, router):
                end.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 1 << 17])
def test_some_descriptors_are_always_kept_and_most_are_for_connections(limit: int) -> None:
    """A process with very few keeps a quarter."""
    assert limit - most_connected(limit) == min(RESERVED, limit // 4)
