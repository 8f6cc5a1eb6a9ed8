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
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import ServiceLink
from seedbed.services.tools.cli.env.link import SILENT, Notes, live
from seedbed.services.tools.cli.env.one_group import OneGroup, SeenTick
from seedbed.services.tools.cli.env.target import Listen
from seedbed.services.tools.cli.service_folder import ServiceFolder
from seedbed.shared.errors import EnvError


class Visit:
    """A service, started or awaited, while its one group is stepped. A context manager that leaves nothing behind.

    Owned by the thread that steps; `_begin` and what it keeps by the link's. Memory: one tick.
    """

    def __init__(
        self,
        target: ServiceFolder | Listen,
        options: CheckOptions,
        words: Sequence[str] = (),
        notes: Notes = SILENT,
        *,
        asks_pictures: bool = True,
    ) -> None:
        """Start the service, which is built, or await it.

        Args:
          options: `mode` and the numbers of groups and lanes are what a service is started with.
          words: further words for the service's command.
          asks_pictures: whether the service is to draw its ticks, which costs time.
        """
        self._asks_pictures = asks_pictures
        self._news: queue.SimpleQueue[SeenTick | Future[OneGroup]] = queue.SimpleQueue()
        self._group: tuple[asyncio.AbstractEventLoop, OneGroup] | None = None
        self._has_left = threading.Event()
        self._thread = ThreadPoolExecutor(1, "link")
        self._end = self._thread.submit(live, self._begin, target, options, words, notes)
        self._end.add_done_callback(self._news.put)  # whoever waits for a tick hears of it

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_left.set()
        self.tell(OneGroup.dismiss)
        self._thread.shutdown()
        if error is None and (problem := self._end.result().problem):
            raise _gone(problem)

    def close(self) -> None:
        """Tell the service that it is over and wait for its end. Raises: EnvError if it does not leave in order."""
        self.__exit__(None, None, None)

    def wait_tick(self) -> SeenTick:
        """Return the next tick. Raises: EnvError if the service is gone, ConfigError if it cannot be started."""
        return self._open(self._news.get())

    def check(self) -> None:
        """Between two steps, see whether the service is still there. Raises: EnvError if it is gone."""
        with contextlib.suppress(queue.Empty):
            self._open(self._news.get_nowait())

    def tell(self, what: Callable[[OneGroup], None]) -> None:
        """Have this done in the link's thread."""
        if self._group is not None:
            loop, group = self._group
            with contextlib.suppress(RuntimeError):  # the loop is closed: the news say why
                loop.call_soon_threadsafe(what, group)

    @staticmethod
    def _open(news: SeenTick | Future[OneGroup]) -> SeenTick:
        if isinstance(news, Future):
            raise _gone(news.result().problem or "it is over")
        return news

    def _begin(self, link: ServiceLink) -> OneGroup:
        """In the link's thread, take over the service's group, and remember in which loop it is."""
        group = OneGroup(link, show=self._news.put, asks_pictures=self._asks_pictures)
        self._group = asyncio.get_running_loop(), group
        if self._has_left.is_set():
            group.dismiss()
        return group


def _gone(problem: str) -> EnvError:
    return EnvError(f"the environment's service: {problem}")
