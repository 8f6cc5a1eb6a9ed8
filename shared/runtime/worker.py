"""One named thread that runs blocking jobs in order and hands each result back to the loop."""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


@dataclass(frozen=True, slots=True)
class _Job:
    job: Callable[[], Any]
    done: Callable[[Any], None] | None
    hands_back: bool


class Worker:
    """The thread in which a service steps environments or runs torch. Owned by the loop that made it.

    A job that raises ends the worker: the exception is in `failed`, which the service awaits. Memory: the jobs queued.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._results: list[tuple[Callable[[Any], None] | None, Any]] = []  # of the thread, for the loop
        self._busy_since: float | None = None
        self._num_open = 0  # jobs whose results have not reached the loop
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any], None] | None = None, *, hands_back: bool = False
    ) -> None:
        """Run `job()` in the thread after all earlier jobs, then `done(result)` in the loop.

        Args:
          hands_back: the job will soon call `hand_back`. If it was queued before the job ahead of it ended, that job's
            result waits until then, so that the loop does not take the interpreter from a job about to compute.
        """
        self._num_open += 1
        self._jobs.put(_Job(job, done, hands_back))

    def hand_back(self) -> None:
        """Give the results of earlier jobs to the loop. Called in the thread, by a job."""
        results, self._results = self._results, []
        for result in results:
            self._post(self._take, result)

    @property
    def is_idle(self) -> bool:
        """Whether all jobs and their `done` calls are finished, so that the loop may use what jobs use."""
        return self._num_open == 0

    def busy_s(self) -> float:
        """How long the present job has been running, seconds; 0 when idle."""
        since = self._busy_since
        return time.monotonic() - since if since is not None else 0.0

    def close(self, timeout_s: float = 5.0) -> bool:
        """Finish the queued jobs and end the thread; return False if it still runs after `timeout_s`."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            if not item.hands_back:
                self.hand_back()
            self._busy_since = time.monotonic()
            try:
                result = item.job()
            except BaseException as error:
                self.hand_back()
                self._post(self._fail, error)
                return
            self._busy_since = None
            self.hand_back()
            self._results.append((item.done, result))
            if self._jobs.empty():
                self.hand_back()
        self.hand_back()

    def _post(self, call: Callable[[Any], None], value: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, value)

    def _take(self, finished: tuple[Callable[[Any], None] | None, Any]) -> None:
        done, result = finished
        self._num_open -= 1
        if done is not None:
            done(result)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
