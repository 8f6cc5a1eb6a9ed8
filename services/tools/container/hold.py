"""A service that was refused for good stays up, unhealthy, with the cause, and is tried again ever less often.

An exit would be a loop of restarts in which the cause is lost. What was refused may be fixed outside: a folder, a file
of settings, a key. So whoever waits here needs nobody to start it again. A service that has nothing left to do stays as
well, where an orchestrator starts again whatever ends (`STAY_VARIABLE`). A learner rank that lost another one is tried
again at once: an orchestrator waits longer after each restart, for each rank by itself, so that ranks might never meet.
Nothing but the standard library is imported, so that what waits here is small. `execute` replaces the process, and
keeps its id.
"""

import json
import os
import signal
import sys
from pathlib import Path
from queue import Empty, SimpleQueue

from seedbed.shared.runtime.health import CAUSE_VARIABLE, read_cause

FIRST_S, LONGEST_S = 5.0, 60.0  # before the first attempt, doubled before each further one
EXIT = 78  # EX_CONFIG: no restart helps
RANK_LOST, RANK_LOST_S = 75, 1.0  # EX_TEMPFAIL, as RankLostError has it; until the next attempt
STAY_VARIABLE = "SEEDBED_STAY"  # set: stay, too, when there is nothing left to do
COMMAND_VARIABLE = "SEEDBED_START_COMMAND"  # a JSON list: what is tried again
ATTEMPT_VARIABLE = "SEEDBED_START_ATTEMPT"
RESTART = "restart"  # leave after a while, so that the engine starts the container, and mounts its volumes, again
RESTART_S = 20.0


def is_held(code: int) -> bool:
    """Whether a service that ended with this code stays here, and is not left to whoever starts again what ends.

    One that was asked to stop ends with 0 as well, but leaves no cause.
    """
    is_over = code == 0 and bool(os.environ.get(STAY_VARIABLE) and read_cause(os.environ.get(CAUSE_VARIABLE, "")))
    return code in (EXIT, RANK_LOST) or is_over


def begin() -> None:
    """Keep this process's command line for whoever waits here after it, and forget what ended an earlier life."""
    os.environ[COMMAND_VARIABLE] = json.dumps([sys.executable, *sys.orig_argv[1:]])
    if cause := os.environ.get(CAUSE_VARIABLE):
        Path(cause).unlink(missing_ok=True)


def execute(code: int = EXIT, *words: str) -> None:
    """Become the process that waits, and ends with this code when somebody stops it. Does not return.

    Args:
      words: `RESTART`, or nothing.
    """
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "seedbed.services.tools.container.hold", str(code), *words])


def hold(code: int = EXIT, *, is_restarted: bool = False) -> int:
    """Wait until a signal asks for the end, the exit code then; after an error, until it is tried again."""
    asked: SimpleQueue[int] = SimpleQueue()  # an Event's set() in a signal handler may wait for itself
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.put(number))
    if code == 0:
        cause = read_cause(os.environ.get(CAUSE_VARIABLE, ""))
        print(f"seedbed: {cause}; this waits to be removed", file=sys.stderr, flush=True)
        asked.get()
        return code
    attempt = int(os.environ.get(ATTEMPT_VARIABLE, "0"))
    if code == RANK_LOST:
        attempt, wait_s = -1, RANK_LOST_S  # the next one counts as the first
    else:
        wait_s = RESTART_S if is_restarted else min(FIRST_S * 2**attempt, LONGEST_S)
    said = f"this is tried again in {wait_s:.0f} s, and goes on by itself once it is fixed"
    print(f"seedbed: {said}", file=sys.stderr, flush=True)
    try:
        asked.get(timeout=wait_s)
    except Empty:
        if not is_restarted:
            command = json.loads(os.environ[COMMAND_VARIABLE])
            os.execve(command[0], command, {**os.environ, ATTEMPT_VARIABLE: str(attempt + 1)})
    return code


if __name__ == "__main__":
    sys.exit(hold(int(sys.argv[1]), is_restarted=RESTART in sys.argv[2:]))
