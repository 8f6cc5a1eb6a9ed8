"""An actor's container in a run with tasks steps all of them: a process for each, which start and end together.

Where one fails, the others are stopped and the container ends as it did: the engine starts all of them again, or,
with status 78, `hold` repeats the cause. Nothing but the standard library, so that what waits here is small.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from seedbed.services.tools.container import hold
from seedbed.shared.runtime.health import PARTS, STATUS_VARIABLE

STOP_S = 8.0  # until those that do not leave are killed; the engine gives a container ten seconds
DIE_WITH_PARENT = "SEEDBED_DIE_WITH_PARENT"  # as shared/runtime/service.py reads it, which needs more than this does

Part = subprocess.Popen[bytes]


def start(label: str, tasks: Sequence[str], words: Sequence[str]) -> list[Part]:
    """An actor for each task, with a name and a status file of its own; ours, for the health check, names theirs."""
    status = Path(os.environ[STATUS_VARIABLE])
    files = {task: status.with_name(f"{status.stem}-{number}.json") for number, task in enumerate(tasks)}
    for file in files.values():
        file.unlink(missing_ok=True)
    status.write_text(json.dumps({PARTS: [str(file) for file in files.values()]}))
    actor = [sys.executable, "-P", "-m", "seedbed.actor_svc", *words]
    return [
        subprocess.Popen(
            [*actor, f'actor.task="{task}"', f'runtime.name="{label}-{task}"'],
            env={**os.environ, STATUS_VARIABLE: str(file), DIE_WITH_PARENT: str(os.getpid())},
        )
        for task, file in files.items()
    ]


def wait(parts: Sequence[Part]) -> int:
    """Wait until all have ended, or one has failed and the others were stopped; return the exit code."""
    running = {part.pid: part for part in parts}
    while running:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        pid = ended.si_pid if ended else 0
        if pid not in running:  # left behind by a simulator, and ours where this is the first process
            os.waitpid(pid, 0)
        elif code := running.pop(pid).wait():
            stop(list(running.values()))
            return code if code > 0 else 1
    return 0


def stop(parts: Sequence[Part]) -> None:
    """Ask them to leave, and see to it that they do."""
    for part in parts:
        part.terminate()
    for part in parts:
        try:
            part.wait(STOP_S)
        except subprocess.TimeoutExpired:
            part.kill()
            part.wait()


def main(argv: Sequence[str]) -> int:
    """`LABEL TASK… -- [EXPERIMENT.toml] [section.key=value …]`; the exit code."""
    end = argv.index("--")
    parts = start(argv[0], argv[1:end], argv[end + 1 :])

    def pass_on(number: int, _: object) -> None:
        for part in parts:
            part.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = wait(parts)
    if hold.is_held(code):
        hold.execute(code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
