"""Starts the services of one run on this machine, keeps them running, and leaves no process behind.

Start: all at once. Every address is reserved beforehand, so nobody waits for another's port and a restarted service
comes back under its old one. Stop: actors, then inference, then the learner, each asked first and killed when it does
not answer. Services die with the launcher, however it ends: each asks the kernel for that (`runtime.service`).
"""

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from seedbed.services.tools.cli.machine import service_environment
from seedbed.services.tools.cli.plan import LEARNER, Process
from seedbed.services.tools.cli.postmortem import last_words
from seedbed.services.tools.cli.printed import trim
from seedbed.services.tools.cli.service_folder import KILL_ALL, kill_group
from seedbed.services.tools.cli.supervisor import Outcome, Phase, Rules, Supervisor
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.files import writing
from seedbed.shared.runtime.health import read_cause
from seedbed.shared.runtime.service import DIE_WITH_PARENT, RepeatedSignals

POLL_S = 0.05
PATIENCE_S = {
    "actor": 5.0,
    "inference": 12.0,
    "learner": 80.0,
    "rank": 5.0,
}  # inference drains for 8 s, the learner saves
MAX_CAUSE = 300  # characters of why a service died, on the screen
TRIM_EVERY_S = 1.0  # of what services print
MINDER_S = 2.0  # for a minder to kill what it minds
NOT_STARTED = 127  # a shell's exit status for it
CHOSEN = (0, ConfigError.exit_code)  # of which a service says that it meant them
STOPPED_EXIT = 130  # as a shell reports Ctrl-C
ASKED_BY = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "its terminal was closed"}


class View(Protocol):
    """What a launcher shows its run to, such as the table in the terminal."""

    def happened(self, text: str) -> None:
        """Something that a person may want to know."""

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Called some times a second with the present state."""


class Reservation:
    """A TCP port on loopback that nobody else gets while this is open.

    The socket is bound and never listens, with SO_REUSEADDR: a service (libzmq sets the same) may bind and listen.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.port = int(self._socket.getsockname()[1])
        self.address = f"tcp://{host}:{self.port}"

    def close(self) -> None:
        """Let the port go, for the service that is to bind it."""
        self._socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended, and what the service that failed it had said.

    `summary`: what the run's summary says of this end; empty if it was stopped before the learner could say anything.
    """

    outcome: Outcome
    restarts: Mapping[str, int]
    last_words: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)


class _NoView:
    """A view that shows nothing: in place of one that failed, while services are stopped."""

    def happened(self, text: str) -> None:
        """Drop the event; launcher.jsonl has it."""

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        """Leave the screen as it was when the view failed."""


class Launcher:
    """Runs the processes to the end of the run. One thread; call `run` once."""

    def __init__(
        self,
        processes: Sequence[Process],
        run_dir: Path,
        view: View,
        *,
        progress: Callable[[], float],
        is_finishing: Callable[[], bool] = lambda: False,
        rules: Rules | None = None,
        patience_s: Mapping[str, float] = PATIENCE_S,
    ) -> None:
        """`progress` changes when a step is acted or trained; `is_finishing` says that training has ended."""
        self.supervisor = Supervisor([item.name for item in processes], final=LEARNER, rules=rules)
        self._processes = {item.name: item for item in processes}
        self._run_dir, self._view, self._patience_s = run_dir, view, patience_s
        self._progress, self._is_finishing = progress, is_finishing
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._said_from: dict[str, tuple[int, int]] = {}  # where the newest life's words begin in error and log file
        self._known_progress = self._trim_at = 0.0
        self._wake: SimpleQueue[None] = SimpleQueue()  # an Event's set() in a signal handler may wait for itself
        self._stop_requests = 0
        self._stopped_by = "asked to stop"

    def run(self) -> Ended:
        """Start everything, keep it running until the run is over or fails or somebody asks to stop; then stop all."""
        for folder in (self._run_dir / "services", self._run_dir / "logs"):
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        with self._signals():
            try:
                has_failed = True
                try:
                    self._watch()
                    has_failed = False
                finally:  # also after an error here: the learner saves what it has
                    if has_failed:
                        self._view = _NoView()  # whose error it may be
                    self._stop_in_order()
            finally:
                self._kill_all()
        return self._ended()

    def _watch(self) -> None:
        """Keep everything running until the run is over or somebody asks to stop."""
        while self.supervisor.outcome is None and not self._stop_requests:
            self._turn(time.monotonic())
            self._pause()
        if self.supervisor.outcome is None:
            self.supervisor.outcome = Outcome(exit_code=STOPPED_EXIT, reason=self._stopped_by)
            self._say("stop_requested", "stopping in order; once more to kill")

    def request_stop(self) -> None:
        """Stop in order; asked again: kill. From any thread or signal handler."""
        self._stop_requests += 1
        self._wake.put(None)

    def _pause(self) -> None:
        """Wait until somebody asks to stop, for at most POLL_S."""
        with suppress(Empty):
            self._wake.get(timeout=POLL_S)

    def process_id(self, name: str) -> int | None:
        """Return the process id of a running service, or None if it does not run."""
        child = self._children.get(name)
        return child.pid if child is not None else None

    def _turn(self, now: float) -> None:
        """Reap, learn, start what is due, show."""
        self._reap(now)
        progress = self._progress()
        if progress != self._known_progress:
            self._known_progress = progress
            self.supervisor.progressed()
        self.supervisor.finishing(self._is_finishing(), now)
        for name in self.supervisor.due(now):
            self._start(self._processes[name], now)
        if now >= self._trim_at:
            self._trim_at = now + TRIM_EVERY_S
            for process in self._processes.values():
                trim(process.error_file(self._run_dir))
        self._view.refresh(self.supervisor, now)

    def _start(self, process: Process, now: float) -> None:
        """Start one service in a session of its own, so that the terminal's Ctrl-C reaches only the launcher."""
        error_file = process.error_file(self._run_dir)
        environment = {**service_environment(os.environ), **process.environment, DIE_WITH_PARENT: str(os.getpid())}
        with writing(error_file), error_file.open("ab") as errors:
            process.status_file(self._run_dir).unlink(missing_ok=True)
            process.cause_file(self._run_dir).unlink(missing_ok=True)
            log_file = process.log_file(self._run_dir)
            self._said_from[process.name] = (errors.tell(), log_file.stat().st_size if log_file.exists() else 0)
            self.supervisor.started(process.name, now)
            try:
                child = subprocess.Popen(
                    process.command,
                    cwd=process.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=errors,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:  # too many processes, or its program is gone
                errors.write(f"cannot be started: {error}\n".encode())
                errors.flush()
                self._ended_with(process.name, NOT_STARTED, now, is_meant=True)
                return
        self._children[process.name] = child
        self._log("service_started", name=process.name, pid=child.pid)

    def _reap(self, now: float) -> None:
        """Tell the supervisor who has ended, and the view what follows from it."""
        for name, child in list(self._children.items()):
            code = child.poll()
            if code is None:
                continue
            del self._children[name]
            if code < 0:  # it could not end what it had started, in its session
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
            self._ended_with(name, code, now, is_meant=code not in CHOSEN or self._has_said_why(name))

    def _ended_with(self, name: str, code: int, now: float, *, is_meant: bool) -> None:
        """Tell the supervisor that a service has ended, and the view if it will be started again."""
        self.supervisor.exited(name, code, now, is_meant=is_meant)
        service = self.supervisor.services[name]
        has_died = code != 0 or not is_meant
        if has_died and self.supervisor.outcome is None and service.phase is Phase.WAITING:
            delay_s = service.start_at - now
            is_killed = code == -signal.SIGKILL  # from outside: what it said last is no reason
            cause = "" if is_killed else next(iter(self._last_words(name).splitlines()), "")[:MAX_CAUSE]
            why = f"{service.last_exit}: {cause}" if cause else service.last_exit
            text = f"{name} died ({why}); starting it again in {delay_s:.1f} s"
            self._say("service_died", text, name=name, exit=why, deaths=service.deaths)

    def _stop_in_order(self) -> None:
        """Ask role by role, in the direction of the data; kill who does not answer in time."""
        for role in ("actor", "inference", "learner", "rank"):  # the chief of several ranks ends the others
            names = [name for name in self._children if self._processes[name].role == role]
            if not names:
                continue
            for name in names:
                self._children[name].terminate()
            deadline = time.monotonic() + self._patience_s[role]
            while any(name in self._children for name in names):
                now = time.monotonic()
                if now >= deadline or self._stop_requests > 1:
                    break
                self._reap(now)
                self._view.refresh(self.supervisor, now)
                self._pause()
            for name in names:
                if name in self._children:
                    self._say("service_killed", f"{name} did not stop in time; killed", name=name)
                    self._kill(name)

    def _kill_all(self) -> None:
        """Kill every service that still runs, with all that it started."""
        for name in self._children:
            self._kill(name)
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(MINDER_S)
            kill_group(child)
            child.wait()
        self._children.clear()

    def _kill(self, name: str) -> None:
        """Kill a service and all that it started. A minder does that itself, because some may be in other sessions."""
        if self._processes[name].is_minded:
            self._children[name].send_signal(KILL_ALL)
        else:
            kill_group(self._children[name])

    def _say(self, event: str, text: str, **figures: str | int) -> None:
        """Tell whoever watches, and keep it with the services' logs."""
        self._view.happened(text)
        self._log(event, **figures)

    def _log(self, event: str, **figures: str | int) -> None:
        """One line of launcher.jsonl; a full disk costs the line, not the run."""
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = {**figures, "event": event, "level": "info", "timestamp": stamp, "service": "launcher"}
        with suppress(OSError), (self._run_dir / "logs" / "launcher.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def _has_said_why(self, name: str) -> bool:
        """Whether a service that ended left its cause; those that never leave any are believed."""
        process = self._processes[name]
        return not process.leaves_cause or bool(read_cause(str(process.cause_file(self._run_dir))))

    def _last_words(self, name: str) -> str:
        """Why a service ended, as its newest life said on its standard error, or else in its log; "" if nowhere."""
        process, (said_from, logged_from) = self._processes[name], self._said_from.get(name, (0, 0))
        return last_words(process.error_file(self._run_dir), said_from) or last_words(
            process.log_file(self._run_dir), logged_from
        )

    def _ended(self) -> Ended:
        outcome = self.supervisor.outcome or Outcome(exit_code=STOPPED_EXIT, reason=self._stopped_by)
        words = self._last_words(outcome.service) if outcome.service else ""
        restarts = {name: service.restarts for name, service in self.supervisor.services.items()}
        return Ended(outcome=outcome, restarts=restarts, last_words=words)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C, SIGTERM and a closed terminal stop the run in order."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        insistence = RepeatedSignals()

        def stop(number: int, _: object) -> None:
            if insistence.is_new(time.monotonic()):
                self._stopped_by = ASKED_BY[signal.Signals(number)]
                self.request_stop()

        former = {number: signal.signal(number, stop) for number in ASKED_BY}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
