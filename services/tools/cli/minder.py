"""Runs a program as a service: `python minder.py NICENESS all|program COMMAND…`, in a session of its own.

The program and whatever it starts end together, simulators with a session of their own too. SIGTERM goes to all of
them, as a program behind a script needs it, or to the program alone, which then ends its simulators itself. This ends
when all have: with the program's exit status, or, if that was a script which SIGTERM ended, with the status of what it
had started. If who started this ends in any way, the kernel says so by SIGTERM too, and then all are killed: nothing is
left behind, not even by `npm start`. Needs the standard library alone, so that it starts in a moment.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import NoReturn

DIE_WITH_PARENT = "SEEDBED_DIE_WITH_PARENT"  # the process id of who starts this
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of linux/prctl.h
CANNOT_RUN = 78  # a wrong configuration: no restart helps
LEFTOVERS_S = 5  # for what the program leaves behind to end by itself
AGAIN_S = 1  # between two looks for what is to be killed: it may start more meanwhile


class Minder:
    """Runs one program and answers for all that it starts, until the last of them has ended."""

    def __init__(self, *, tells_all: bool) -> None:
        """`tells_all`: whether SIGTERM goes to whatever the program has started as well."""
        self.parent = int(os.environ[DIE_WITH_PARENT])
        self.tells_all = tells_all
        self.program = 0  # its process id
        self.is_asked_to_stop = False

    def run(self, niceness: int, command: list[str]) -> int:
        """The exit status; a negative one is a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, self._kill)
        _call_prctl(PR_SET_CHILD_SUBREAPER, 1)
        _call_prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != self.parent:
            return 1  # it ended before we could ask
        os.nice(niceness)
        environment = {**os.environ, DIE_WITH_PARENT: "1"}  # not checked: the program may be behind a script
        try:
            program = subprocess.Popen(
                command, env=environment, preexec_fn=lambda: _call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            )
        except OSError as error:
            print(f"cannot run {' '.join(command)!r} in {os.getcwd()}: {error.strerror}", file=sys.stderr)
            return CANNOT_RUN
        self.program = program.pid
        if self.is_asked_to_stop:  # before there was anything to tell
            self._stop()
        return self._wait()

    def _wait(self) -> int:
        """Wait until nothing of the program runs; return its exit status, after a stop the worst of all."""
        own, others = 0, [0]
        while True:
            try:
                process, status = os.wait()
            except ChildProcessError:
                return max(others, key=abs) if self.is_asked_to_stop and own == -signal.SIGTERM else own
            if process == self.program:
                own = os.waitstatus_to_exitcode(status)
                signal.alarm(LEFTOVERS_S)
                if not (self.is_asked_to_stop and self.tells_all):  # else they know; a second one ends some
                    _signal_all(signal.SIGTERM)
            else:
                others.append(os.waitstatus_to_exitcode(status))

    def _stop(self, *_: object) -> None:
        """A signal came: from who wants it to stop, or from the kernel, for the parent is gone."""
        self.is_asked_to_stop = True
        if os.getppid() != self.parent:
            self._kill()
        elif self.tells_all:
            _signal_all(signal.SIGTERM)
        elif self.program:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.program, signal.SIGTERM)

    def _kill(self, *_: object) -> None:
        """All of them, again and again until none is left."""
        _signal_all(signal.SIGKILL)
        signal.alarm(AGAIN_S)


def _call_prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process, where it is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _signal_all(number: int) -> None:
    """Send a signal to whatever runs below this process; where nobody says what does, to its group."""
    if not os.path.isdir("/proc/self"):
        former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, number)
        signal.signal(signal.SIGTERM, former)
        return
    for process in _descendants():
        with contextlib.suppress(OSError):
            os.kill(process, number)


def _descendants() -> list[int]:
    """Children, their children and so on; orphans among them have become children of this process."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    fresh = children.get(os.getpid(), [])
    while fresh:
        found += fresh
        fresh = [child for process in fresh for child in children.get(process, [])]
    return found


def _leave(status: int) -> NoReturn:
    """End with the program's exit status, or by the signal that ended it."""
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    _leave(Minder(tells_all=sys.argv[2] == "all").run(int(sys.argv[1]), sys.argv[3:]))
