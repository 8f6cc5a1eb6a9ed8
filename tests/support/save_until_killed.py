"""Run as a program: for each delay on standard input, a child saves checkpoints until kill -9 meets it after so long.

Prints "saved <step>" after every save that returned, and "killed" once the child is gone.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

from seedbed.learner_svc.run.checkpoint import list_checkpoints, save


def save_forever(folder: Path) -> None:
    """Every tensor holds its checkpoint's step, so that a mixture of two would show."""
    existing = list_checkpoints(folder)
    step = existing[-1].step if existing else 0
    while True:
        step += 1
        arrays = {f"tensor.{i}": np.full(20_000, step, np.float32) for i in range(4)}
        kind = "milestone" if step % 5 == 0 else "latest"
        save(folder, step=step, arrays=arrays, meta={"step": step}, kind=kind, keep=2)  # type: ignore[arg-type]
        os.write(1, f"saved {step}\n".encode())


def main() -> None:
    """Serve delays, seconds, one a line."""
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        child = os.fork()
        if not child:
            save_forever(folder)
        signal.signal(signal.SIGALRM, lambda *_, child=child: os.kill(child, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, float(line))
        os.waitpid(child, 0)
        os.write(1, b"killed\n")


if __name__ == "__main__":
    main()
