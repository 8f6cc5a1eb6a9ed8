"""A service of one group for who steps it: the link in a thread of its own, and calls that block until it has answered.

| who steps waits for | at most |
|---|---|
| the first tick | as long as `link` waits for HELLO, then the first STEP |
| the tick after an action | as long as the service lives and speaks; one may always leave |
| the service's end | `patience_s`, then it is killed |
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import Expected, Wires
from seedbed.services.tools.cli.env.link import SILENT, Notes, live
from seedbed.services.tools.cli.env.one_group import OneGroup
from seedbed.services.tools.cli.env.target import Listen
from seedbed.services.tools.cli.service_folder import ServiceFolder
from seedbed.shared.errors import EnvError

T = TypeVar("T")  # what is handed on of each tick


class Visit(Generic[T]):
    """Owned by the thread that steps; `begin`, `ended` and what they keep by the link's. Memory: one tick."""

    def __init__(self, make: Callable[..., OneGroup[T]]) -> None:
        """`make`: a OneGroup, or what makes one of the same arguments."""
        self._make = make
        self._news: queue.SimpleQueue[T | Future[OneGroup[T]]] = queue.SimpleQueue()
        self._life: tuple[asyncio.AbstractEventLoop, OneGroup[T]] | None = None
        self._has_left = threading.Event()

    def wait(self) -> T:
        """The next tick. Raises: EnvError if the service is gone."""
        return self._open(self._news.get())

    def check(self) -> None:
        """Between two steps. Raises: EnvError if the service is gone."""
        with contextlib.suppress(queue.Empty):
            self._open(self._news.get_nowait())

    def tell(self, what: Callable[[OneGroup[T]], None]) -> None:
        """Have this done in the link's thread."""
        if self._life is not None:
            loop, life = self._life
            with contextlib.suppress(RuntimeError):  # the loop is closed: the news say why
                loop.call_soon_threadsafe(what, life)

    def leave(self) -> None:
        """End the visit: the service is told that it is over."""
        self._has_left.set()
        self.tell(OneGroup.dismiss)

    @staticmethod
    def _open(news: T | Future[OneGroup[T]]) -> T:
        if isinstance(news, Future):
            raise _gone(news.result().problem or "it is over")
        return news

    # In the link's thread

    def begin(self, options: CheckOptions, expected: Expected | None, wires: Wires, *, epoch: int) -> OneGroup[T]:
        """Take over the next life of the service, and remember in which loop it runs."""
        life = self._make(options, expected, wires, epoch=epoch, show=self._news.put)
        self._life = asyncio.get_running_loop(), life
        if self._has_left.is_set():
            life.dismiss()
        return life

    def ended(self, life: Future[OneGroup[T]]) -> None:
        """The service's life here has ended: whoever waits for news hears so."""
        self._news.put(life)


@contextlib.contextmanager
def visiting(
    visit: Visit[T],
    target: ServiceFolder | Listen,
    options: CheckOptions,
    words: Sequence[str] = (),
    notes: Notes = SILENT,
) -> Iterator[T]:
    """Start the service, which is built, or await it, and step it until the end of the block; nothing is left behind.

    Args:
      options: `mode` and the numbers of groups and lanes are what a service is started with.
      words: further words for the service's command.
    Yields: its first tick.
    Raises: EnvError if it does not come, dies, or does not leave in order; ConfigError if it cannot be started.
    """
    with ThreadPoolExecutor(1, "link") as thread:
        life = thread.submit(live, visit.begin, target, options, words, notes)
        life.add_done_callback(visit.ended)
        try:
            yield visit.wait()
        finally:
            visit.leave()
    if problem := life.result().problem:
        raise _gone(problem)


def _gone(problem: str) -> EnvError:
    return EnvError(f"the environment's service: {problem}")
