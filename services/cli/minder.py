"""Runs a program of any language as a service: `python minder.py NICENESS COMMAND…`, in a session of its own.

The program and whatever it starts are one process group. SIGTERM goes to all of them, and this ends when all have: with
the program's exit status, or, if that was a script which SIGTERM ended, with the status of what it had started. If who
started this ends in any way, the kernel says so by SIGTERM too, and then the whole group is killed: nothing is left
behind, not even by `npm start`. Needs the standard library alone, so that it starts in a moment.
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


class Minder:
    """One program's life."""

    def __init__(self) -> None:
        self.parent = int(os.environ[DIE_WITH_PARENT])
        self.is_asked_to_stop = False

    def run(self, niceness: int, command: list[str]) -> int:
        """The exit status; a negative one is a signal."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGALRM, lambda *_: _end_group(signal.SIGKILL))
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
        return self._wait(program.pid)

    def _wait(self, program: int) -> int:
        """Until neither the program nor anything that it started runs."""
        own, others = 0, [0]
        while True:
            try:
                process, status = os.wait()
            except ChildProcessError:
                return max(others, key=abs) if self.is_asked_to_stop and own == -signal.SIGTERM else own
            if process == program:
                own = os.waitstatus_to_exitcode(status)
                signal.alarm(LEFTOVERS_S)
                if not self.is_asked_to_stop:  # else they know, and some are ended by a second one
                    _end_group(signal.SIGTERM)
            else:
                others.append(os.waitstatus_to_exitcode(status))

    def _stop(self, *_: object) -> None:
        """A signal came: from who wants it to stop, or from the kernel, for the parent is gone."""
        self.is_asked_to_stop = True
        _end_group(signal.SIGKILL if os.getppid() != self.parent else signal.SIGTERM)


def _call_prctl(option: int, value: int) -> None:
    """Ask the kernel for something about this process, where it is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _end_group(number: int) -> None:
    """Send a signal to everyone in the group; SIGTERM leaves this process alone."""
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, number)
    signal.signal(signal.SIGTERM, former)


def _leave(status: int) -> NoReturn:
    """As the program did."""
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    _leave(Minder().run(int(sys.argv[1]), sys.argv[2:]))
