"""The frame of a service process: loop, signals, readiness, tasks, and an exit code.

Phases: configure logs and metrics; run until the work ends or `stopping` is set; drain, at most `MAX_DRAIN_S`
(`SAVE_DRAIN_S` for a learner); end the tasks; close. Exit codes: 0 finished or stopped, 78 wrong configuration and
74 files of the run that cannot be written (no restart helps), 75 another learner rank was lost, 1 anything else.
"""

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import uvloop
from pydantic import BaseModel

from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.runtime import logs
from seedbed.shared.runtime.allocator import release_freed_memory, share_one_arena
from seedbed.shared.runtime.config import RuntimeConfig
from seedbed.shared.runtime.files import writing
from seedbed.shared.runtime.health import leave_cause
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.metrics import Metrics
from seedbed.shared.runtime.modules import look_for_modules_here
from seedbed.shared.runtime.open_files import raise_file_limit
from seedbed.shared.runtime.worker import Worker

DIE_WITH_PARENT = "SEEDBED_DIE_WITH_PARENT"  # the parent's process id, or 1 when it is not to be checked
MAX_DRAIN_S = 30.0
SAVE_DRAIN_S = 75.0  # of a learner, whose last checkpoint may be large, on a slow disk
LINGER_BEAT_S = 0.05
RELEASE_EVERY_S = 120.0  # between two releases of freed memory, each of which stops everything for some 10 ms
OVER = "this service has nothing left to do: its run is over"  # the cause that is left if it ends by itself
SAME_REQUEST_S = 0.3  # signals within this time after another are the same request
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


S = TypeVar("S", bound=BaseModel)
T = TypeVar("T")


class RepeatedSignals:
    """Distinguishes a second request to stop from a repeated signal: `timeout` signals a process and its group."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def is_new(self, now: float) -> bool:
        """Whether a signal at time `now`, seconds, is a new request and not a repetition of the last one."""
        if now - self._last < SAME_REQUEST_S:
            return False
        self._last = now
        return True


class StuckError(SeedbedError):
    """The service was asked to stop and did not."""


class Service:
    """One running service. An async context manager: entered when its tasks may start, left when all have ended.

    Owned by the loop that entered it. An exception in a task or in a callback of the loop ends the service.
    """

    def __init__(self, service: str, runtime: RuntimeConfig, *, incarnation: int | None = None) -> None:
        self.service = service
        self.name = runtime.name or service
        self.runtime = runtime
        self.incarnation = incarnation or secrets.randbits(52) | 1  # 52 bits: exact in JSON everywhere
        self.log = logs.configure(service, self.name, self.incarnation, runtime)
        self.metrics = Metrics(service, self.name, self.incarnation)
        self.stopping = asyncio.Event()
        self._insistence = RepeatedSignals()
        self.is_ready = False
        self.run_id = ""  # id of the run served, once known
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._status: dict[str, str | int] = {}

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a task besides the service's work. It is cancelled when the work ends; its failure ends the work."""
        task = self._group.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def ready(self, endpoint: str = "", run_id: str = "") -> None:
        """Say that the service is bound and answering: logs it and writes the status file. May be repeated to update.

        Args:
          endpoint: the real data address, empty for a service that only dials.
          run_id: of the run served, once known.
        """
        self.run_id = run_id or self.run_id
        self._status = {
            "service": self.service,
            "name": self.name,
            "incarnation": self.incarnation,
            "pid": os.getpid(),
            "endpoint": endpoint,
            "metrics": self.metrics.address,
            "run_id": self.run_id,
        }
        if self.runtime.status_file is not None:
            _write_atomically(self.runtime.status_file, json.dumps(self._status) + "\n")
        if not self.is_ready:
            self.is_ready = True
            gc.collect()
            gc.freeze()  # objects of the start-up stay, so later collections need not visit them
            self.log.info("service_ready", endpoint=endpoint, metrics=self.metrics.address)

    def stop(self, reason: str) -> None:
        """Ask the work to drain and end; the second call and later ones change nothing."""
        if not self.stopping.is_set():
            self.log.info("service_stopping", reason=reason)
            self.stopping.set()

    def fail(self, error: BaseException) -> None:
        """End the service with this error; the loop's thread only."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def unless_stopped(self, job: Callable[[], T]) -> T | None:
        """Return what a job that may block for long returned; None if the service is asked to stop first.

        The job runs in a thread of its own, which is given up then. Raises: what the job raises.
        """
        worker = Worker("blocking")
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        worker.submit(job, done.set_result)
        stopping = asyncio.ensure_future(self.stopping.wait())
        waits: list[asyncio.Future[Any]] = [done, worker.failed, stopping]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        if worker.failed.done():
            worker.failed.result()
        if not done.done():
            return None
        worker.close()
        return done.result()

    async def linger(self, is_over: Callable[[float], bool]) -> None:
        """Wait until `is_over(the loop's time)` is true or the service is asked to stop."""
        loop = asyncio.get_running_loop()
        while not is_over(loop.time()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_BEAT_S):
                    await self.stopping.wait()
                return

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._main = asyncio.current_task()
        self._failure: asyncio.Future[None] = loop.create_future()
        if self.runtime.status_file is not None:
            with writing(self.runtime.status_file):  # left by an earlier process; its presence would mean ready
                self.runtime.status_file.unlink(missing_ok=True)
        if self.runtime.metrics_address:
            self.metrics.serve(self.runtime.metrics_address)
        await self._group.__aenter__()
        self.start(self._raise_failure(), "failure")
        self.start(self._limit_drain(), "drain_limit")
        self.start(_give_back_memory(), "memory")
        loop.set_exception_handler(self._callback_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for task in tuple(self._tasks):
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            loop.set_exception_handler(None)
            self._failure.cancel()
            self.metrics.close()

    async def _raise_failure(self) -> None:
        """Bring an error that no task raised into the task group, which then cancels the work."""
        await self._failure

    async def _limit_drain(self) -> None:
        """Raise StuckError if the service still runs MAX_DRAIN_S (learner: SAVE_DRAIN_S) after it was told to stop."""
        await self.stopping.wait()
        limit_s = SAVE_DRAIN_S if self.service == "learner" else MAX_DRAIN_S
        await asyncio.sleep(limit_s)
        raise StuckError(
            f"{self.name} was asked to stop and still runs after {limit_s:g} s; it waits at {self._place()}"
        )

    def _place(self) -> str:
        """Return where the service's work waits: its functions and lines, the innermost last."""
        frames = self._main.get_stack() if self._main is not None else []
        places = [f"{frame.f_code.co_qualname} (line {frame.f_lineno})" for frame in frames]
        return ", ".join(places) or "a place that it does not tell"

    def _signalled(self, number: int) -> None:
        """Drain at the first signal; end at once at the second."""
        name = signal.Signals(number).name
        if not self._insistence.is_new(time.monotonic()):
            return
        if self.stopping.is_set():
            if DIE_WITH_PARENT in os.environ:  # the launcher insists by SIGKILL, and systemd signals all at once
                return
            self.fail(SeedbedError(f"stopped by a second {name} before it had drained"))
        self.stop(name)

    def _callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the service for a bug in a callback of the loop: going on half-broken would look healthy."""
        error = context.get("exception")
        if isinstance(error, BaseException) and "future" not in context:
            self.fail(error)
        else:
            loop.default_exception_handler(context)


def main_from(
    service: str,
    settings_model: type[S],
    serve: Callable[[S, Service], Awaitable[int]],
    argv: Sequence[str] | None = None,
    *,
    prepare: Callable[[S], S] = lambda settings: settings,
) -> int:
    """Run a service's `main`: read `[EXPERIMENT.toml] [section.key=value …]`, serve, and return the exit code.

    Args:
      service: the service's role, e.g. "inference".
      settings_model: the sections that it reads; `runtime` is one of them.
      serve: the service's work, given settings and service; returns the exit code.
      argv: the words after the program's name; None: this process's.
      prepare: returns the settings of this process, before anything is opened.
    """
    die_with_parent()
    look_for_modules_here()
    try:
        file, words = split_words(sys.argv[1:] if argv is None else argv)
        settings: Any = prepare(load_settings(settings_model, file, words))
        runtime: RuntimeConfig = settings.runtime
    except SeedbedError as error:
        return report(service, error)
    return run_service(lambda running: serve(settings, running), runtime, service)


def leave(code: int) -> NoReturn:
    """End the process with this exit code.

    If a thread still runs, it is stuck in a simulator; then nothing is torn down, because some would hang or abort.
    """
    if threading.active_count() > 1:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run_service(main: Callable[[Service], Awaitable[int]], runtime: RuntimeConfig, service: str) -> int:
    """Run `main` as a service on an event loop of its own and return its exit code."""
    os.nice(runtime.nice)
    if service != "actor":  # not for simulators: their own threads would wait for each other, and they may use `select`
        share_one_arena()
        raise_file_limit()
    sys.setswitchinterval(0.0005)  # a busy thread beside the loop hands over this soon, seconds
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop if runtime.uvloop else None) as runner:
            return runner.run(_serve(main, runtime, service))
    except SeedbedError as error:  # raised before the log was set up
        return report(service, error)
    finally:
        logs.close()


async def _give_back_memory() -> None:
    """Release freed memory to the system every RELEASE_EVERY_S."""
    while True:
        await asyncio.sleep(RELEASE_EVERY_S)
        release_freed_memory()


async def _serve(main: Callable[[Service], Awaitable[int]], runtime: RuntimeConfig, service: str) -> int:
    """Enter the service, run `main` and leave the service; return an exit code for every way in which that ends."""
    running = Service(service, runtime)
    try:
        async with running:
            code = await main(running)
    except Exception as error:  # the top of the service: log it and end
        cause = _first_cause(error)
        if isinstance(cause, SeedbedError):
            running.log.error("service_failed", error=str(cause), kind=type(cause).__name__, exit_code=cause.exit_code)
            return report(running.name, cause)
        running.log.error("service_crashed", exc_info=error)
        _say(f"seedbed {running.name}: {type(cause).__name__}: {cause}")
        return 1
    running.log.info("service_ended", exit_code=code)
    if code == 0 and not running.stopping.is_set():
        leave_cause(OVER)
    return code


def report(name: str, error: SeedbedError) -> int:
    """Print each line of the error to stderr, leave it as the cause of the end, and return its exit code."""
    leave_cause(str(error) or type(error).__name__)
    for line in str(error).splitlines() or [type(error).__name__]:
        _say(f"seedbed {name}: {line}")
    return error.exit_code


def _say(line: str) -> None:
    """Print a line to stderr, if possible: a full disk or a closed pipe there must not change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def split_words(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the experiment file, or None, and the overrides in a service's command line, which may have `--config`.

    Raises: ConfigError for any other option.
    """
    words = [word for word in argv if word != "--config"]
    for word in words:
        if word.startswith("-"):
            raise ConfigError(f"{word}: no such option; write [EXPERIMENT.toml] [section.key=value …]")
    if words and "=" not in words[0]:
        return Path(words[0]), words[1:]
    return None, words


async def wait_unless_failed(event: asyncio.Event, worker: Worker) -> None:
    """Wait until the event is set. Raises: what a job of the worker raised, if that comes first."""
    is_set = asyncio.ensure_future(event.wait())
    waits: list[asyncio.Future[Any]] = [is_set, worker.failed]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_set.cancel()
    if worker.failed.done():
        worker.failed.result()


def die_with_parent() -> None:
    """If the parent requested it, make the kernel kill this process when the parent ends."""
    asked = os.environ.get(DIE_WITH_PARENT, "")
    if not asked.isdecimal() or int(asked) == 0 or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if int(asked) > 1 and os.getppid() != int(asked):
        os._exit(1)  # the parent has ended already


def _first_cause(error: BaseException) -> BaseException:
    """Return the error of an exception group to report: the first SeedbedError, or else the first of all."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    causes = [_first_cause(inner) for inner in error.exceptions]
    return next((cause for cause in causes if isinstance(cause, SeedbedError)), causes[0])


def _write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old text or all of the new one. Raises: StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
