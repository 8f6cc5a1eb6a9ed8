"""A file that one process holds for as long as it lives, and the question whether somebody does. Blocking.

The kernel keeps the lock (`flock`), so it ends with its holder, whatever kills that.
"""

import fcntl
import os
import socket
import time
from pathlib import Path

ATTEMPTS, BETWEEN_S = 10, 0.02  # `is_held` itself holds the file for a moment


class HeldError(Exception):
    """Another process holds the file: its text says which, where and since when."""


def take(path: Path) -> int:
    """Hold a file, made if need be, and write into it who does.

    Returns: its descriptor, for `os.close`, which lets the file go.
    Raises: HeldError; OSError if the file cannot be opened or written.
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
