"""Tells how much memory the machine, the container and this process have."""

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")  # read five times a second
_CGROUP = Path("/sys/fs/cgroup")


def memory_limit(total: int) -> int:
    """Return the machine's memory `total`, or the container's limit if that is less, bytes."""
    limit = _number(_CGROUP / "memory.max")
    return min(total, limit) if limit is not None else total


def available_bytes() -> int | None:
    """Return how much memory this process may still take before the system or container runs out, bytes.

    None where the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        left = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    return left if limit is None or used is None else min(left, limit - used)


def resident_bytes() -> int:
    """Return the resident memory of this process, bytes; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _number(file: Path) -> int | None:
    """Return the number in a file; None if it cannot be read or holds no number, such as "max"."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
