"""How busy this machine's processors are, with every program on it."""

from pathlib import Path

STAT = Path("/proc/stat")
NUM_TIMES = 8  # user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of the first two
IDLE, IO_WAIT = 3, 4


class MachineLoad:
    """Measures from one question to the next. In a container it is the load of the whole host."""

    def __init__(self, file: Path = STAT) -> None:
        self._file = file
        self._before = self._read()

    def busy_share(self) -> float | None:
        """Share of the processor time since the last call that was in use, 0…1; None where the system does not tell.

        What a virtual machine's host gave to others counts as in use: nobody here could have had it.
        """
        before, self._before = self._before, self._read()
        if before is None or self._before is None:
            return None
        total, idle = (now - then for now, then in zip(self._before, before, strict=True))
        return min(1.0, max(0.0, 1 - idle / total)) if total > 0 else None

    def _read(self) -> tuple[int, int] | None:
        """All and idle time of all processors together, in ticks."""
        try:
            with self._file.open() as lines:
                times = [int(value) for value in lines.readline().split()[1 : 1 + NUM_TIMES]]
            return sum(times), times[IDLE] + times[IO_WAIT]
        except (OSError, ValueError, IndexError):
            return None
