"""A service that was refused for good stays up, unhealthy, and repeats the cause: a restart would only hide it.

So does one that has nothing left to do, where an orchestrator starts again whatever ends (`STAY_VARIABLE`). Nothing but
the standard library, so that what waits here is small. `execute` replaces the process, and keeps its id.
"""

import os
import signal
import sys
import threading

from shared.runtime.health import CAUSE_VARIABLE, read_cause

REPEAT_S = 60.0
EXIT = 78  # EX_CONFIG: no restart helps
STAY_VARIABLE = "SEEDBED_STAY"  # set: stay, too, when there is nothing left to do


def is_for_good(code: int) -> bool:
    """Whether a service that ended with this code is not to be started again.

    One that was asked to stop ends with 0 as well, but leaves no cause.
    """
    is_over = code == 0 and bool(os.environ.get(STAY_VARIABLE) and read_cause(os.environ.get(CAUSE_VARIABLE, "")))
    return code == EXIT or is_over


def execute(code: int = EXIT) -> None:
    """Become the process that waits, and ends with this code when somebody stops it. Does not return."""
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "services.container.hold", str(code)])


def hold(code: int = EXIT, every_s: float = REPEAT_S) -> int:
    """Wait until a signal asks for the end, and repeat the cause if it is an error; the exit code."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    cause = read_cause(os.environ.get(CAUSE_VARIABLE, "")) or "the cause is in the lines above"
    if code == 0:
        print(f"seedbed: {cause}; this waits to be removed", file=sys.stderr, flush=True)
        stopped.wait()
        return code
    print("seedbed: this stays as it is until you change it; stopped, not restarted, on purpose", file=sys.stderr)
    while not stopped.wait(every_s):
        print("\n".join(f"seedbed: {line}" for line in cause.splitlines()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(hold(int(sys.argv[1])))
