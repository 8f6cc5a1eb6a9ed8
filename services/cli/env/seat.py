"""A person's seat at a service that plays: the link in a thread of its own, and calls that block until it has answered.

| the person waits for | at most |
|---|---|
| the first scene | as long as `link` waits for HELLO, then the first STEP |
| the scene after an action | as long as the service lives and speaks; the person may always leave |
| the service's end | `patience_s`, then it is killed |
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from services.cli.env.in_process import CheckOptions
from services.cli.env.life import Expected, Wires
from services.cli.env.link import SILENT, Notes, live
from services.cli.env.played import Played
from services.cli.env.scene import Scene
from services.cli.env.target import Listen, ServiceFolder
from shared.errors import EnvError


class Seat:
    """Owned by the thread that plays; `sit`, `ended` and what they keep by the link's. Memory: one scene."""

    def __init__(self) -> None:
        self.scene: Scene
        self._news: queue.SimpleQueue[Scene | Future[Played]] = queue.SimpleQueue()
        self._table: tuple[asyncio.AbstractEventLoop, Played] | None = None
        self._has_left = threading.Event()

    def step(self, action: int) -> Scene:
        """Act in lane 0, as the environment takes it. Raises: EnvError if the service is gone."""
        self._tell(lambda played: played.act(action))
        return self.wait_scene()

    def wait_scene(self) -> Scene:
        """The next scene. Raises: EnvError if the service is gone."""
        self.scene = _scene_of(self._news.get())
        return self.scene

    def check(self) -> None:
        """Between two steps. Raises: EnvError if the service is gone."""
        with contextlib.suppress(queue.Empty):
            _scene_of(self._news.get_nowait())

    def leave(self) -> None:
        """The game is over."""
        self._has_left.set()
        self._tell(Played.dismiss)

    # In the link's thread

    def sit(self, options: CheckOptions, expected: Expected | None, wires: Wires, *, epoch: int) -> Played:
        """The life to lead."""
        played = Played(options, expected, wires, epoch=epoch, show=self._news.put)
        self._table = asyncio.get_running_loop(), played
        if self._has_left.is_set():
            played.dismiss()
        return played

    def ended(self, life: Future[Played]) -> None:
        """The link is over."""
        self._news.put(life)

    def _tell(self, what: Callable[[Played], None]) -> None:
        if self._table is not None:
            loop, played = self._table
            with contextlib.suppress(RuntimeError):  # the loop is closed: the news say why
                loop.call_soon_threadsafe(what, played)


@contextlib.contextmanager
def seated(
    target: ServiceFolder | Listen, options: CheckOptions, words: Sequence[str] = (), notes: Notes = SILENT
) -> Iterator[Seat]:
    """Start the service, or await it, and play until the end of the block; nothing of it is left behind.

    Args:
      options: `mode` and the numbers of groups and lanes are what a service is started with.
      words: further words for the service's command.
    Raises: EnvError if it does not come, dies, or does not leave in order; ConfigError if it cannot be started.
    """
    if isinstance(target, ServiceFolder):
        target.build()
    seat = Seat()
    with ThreadPoolExecutor(1, "link") as thread:
        life = thread.submit(live, seat.sit, target, options, words, notes)
        life.add_done_callback(seat.ended)
        try:
            seat.wait_scene()
            yield seat
        finally:
            seat.leave()
    if problem := life.result().problem:
        raise _gone(problem)


def _scene_of(news: Scene | Future[Played]) -> Scene:
    if isinstance(news, Scene):
        return news
    raise _gone(news.result().problem or "it is over")


def _gone(problem: str) -> EnvError:
    return EnvError(f"the environment's service: {problem}")
