"""Ends the process when its work does not come back, in a thread or in the loop, whoever holds the interpreter lock."""

import faulthandler
import os
import sys
from collections.abc import Callable

GRACE_S = 5.0


class Watchdog:
    """Two dogs: the loop looks at the thread, and a C thread of `faulthandler` looks at the loop.

    A job in the thread that waits for something for ever is found by the first. One that computes for ever without
    giving up the interpreter lock stops the loop as well, and is found by the second, like one that runs in the loop.
    Both print where it hangs and end the process with 1, so that its supervisor starts it again.

    Args:
      busy_s: how long the thread's present job has been running, seconds; 0 when idle.
      report: called with the time before the first dog ends the process.
      grace_s: how much later the second dog bites, so that the loop can say in the log what happened.
    """

    def __init__(
        self, busy_s: Callable[[], float], hang_s: float, report: Callable[[float], None], *, grace_s: float = GRACE_S
    ) -> None:
        self._busy_s, self._hang_s, self._report, self._grace_s = busy_s, hang_s, report, grace_s

    def is_hanging(self) -> bool:
        """The present job takes longer than any may."""
        return self._busy_s() > self._hang_s

    def pet(self) -> None:
        """Look, and say that the loop lives; call it every second."""
        if self.is_hanging():
            self._report(self._busy_s())
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr)
            os._exit(1)
        faulthandler.dump_traceback_later(self._hang_s + self._grace_s, exit=True, file=sys.__stderr__ or sys.stderr)

    def close(self) -> None:
        """Stop watching: faulthandler will not end the process any more."""
        faulthandler.cancel_dump_traceback_later()
