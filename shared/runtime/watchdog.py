"""Ends the process if its work hangs, in a thread or in the loop, even with the interpreter lock held."""

import faulthandler
import os
import sys
from collections.abc import Callable

GRACE_S = 5.0


class Watchdog:
    """Two watchdogs: the loop watches the thread, and a C thread of `faulthandler` watches the loop.

    The first finds a job in the thread that waits for ever. The second finds a job in the loop that hangs, and a job in
    the thread that never releases the interpreter lock, which stops the loop as well. Both print where the job hangs
    and end the process with exit status 1, so that its supervisor starts it again.

    Args:
      busy_s: returns how long the thread's present job has been running, seconds; 0 when idle.
      hang_s: a job that runs for longer than this hangs, seconds.
      report: called with the job's running time, seconds, before the first watchdog ends the process.
      grace_s: how much later than the first the second ends the process, so that the loop can log why, seconds.
    """

    def __init__(
        self, busy_s: Callable[[], float], hang_s: float, report: Callable[[float], None], *, grace_s: float = GRACE_S
    ) -> None:
        self._busy_s, self._hang_s, self._report, self._grace_s = busy_s, hang_s, report, grace_s

    def is_hanging(self) -> bool:
        """Whether the present job has been running for longer than `hang_s`."""
        return self._busy_s() > self._hang_s

    def pet(self) -> None:
        """End the process if the thread hangs, else reset the second watchdog. Call it every second in the loop."""
        if self.is_hanging():
            self._report(self._busy_s())
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
            os._exit(1)
        faulthandler.dump_traceback_later(self._hang_s + self._grace_s, exit=True, file=sys.__stderr__ or sys.stderr)

    def close(self) -> None:
        """Stop watching: faulthandler will not end the process any more."""
        faulthandler.cancel_dump_traceback_later()
