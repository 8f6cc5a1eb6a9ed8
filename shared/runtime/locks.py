"""Locks a file for as long as a process lives, and tells whether a file is locked. Blocks for a fraction of a second.

The kernel keeps the lock (`flock`), so it ends with the process that holds it, however that ends.
"""

import fcntl
import os
import socket
import time
from pathlib import Path

ATTEMPTS, BETWEEN_S = 10, 0.02  # `is_held` itself holds the file for a moment


class HeldError(Exception):
    """Raised if another process holds the file: the message says which, on which machine and since when."""


def take(path: Path) -> int:
    """Lock a file, which is made if it does not exist, and write into it which process holds it.

    Returns: the file's descriptor; `os.close` releases the lock.
    Raises: HeldError if another process holds it, OSError if it cannot be opened or written.
    """
    held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(held)
        os.ftruncate(held, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        os.pwrite(held, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
    except (OSError, HeldError):
        os.close(held)
        raise
    return held


def _lock(held: int) -> None:
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(BETWEEN_S)
        else:
            return
    holder = os.pread(held, 4096, 0).decode(errors="replace").strip()
    raise HeldError(holder or "another process")


def is_held(path: Path) -> bool:
    """Whether a process holds the file. False, too, where there is no such file or nobody may look into it."""
    try:
        looked_at = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(looked_at, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(looked_at)
    return False
