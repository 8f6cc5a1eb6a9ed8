"""A service that was refused for good stays up, unhealthy, and repeats the cause: a restart would only hide it.

Nothing but the standard library, so that what waits here is small. `execute` replaces the process, and keeps its id.
"""

import os
import signal
import sys
import threading

from shared.runtime.health import CAUSE_VARIABLE, read_cause

REPEAT_S = 60.0
EXIT = 78  # EX_CONFIG: what the service ended with, and what this ends with when somebody stops it


def execute() -> None:
    """Become the process that waits. Does not return."""
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "services.container.hold"])


def hold(every_s: float = REPEAT_S) -> int:
    """Repeat the cause until a signal asks for the end; the exit code."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    cause = read_cause(os.environ.get(CAUSE_VARIABLE, "")) or "the cause is in the lines above"
    print("seedbed: this stays as it is until you change it; stopped, not restarted, on purpose", file=sys.stderr)
    while not stopped.wait(every_s):
        print("\n".join(f"seedbed: {line}" for line in cause.splitlines()), file=sys.stderr, flush=True)
    return EXIT


if __name__ == "__main__":
    sys.exit(hold())
