"""Controls whether glibc keeps freed memory for reuse or returns it to the system."""

import ctypes
import gc
import sys
from functools import cache

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # of glibc's malloc.h
KEEP_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Make glibc reuse blocks up to 1 GiB instead of returning them to the kernel; False without glibc.

    Without it every update maps and faults in its activations again. With the same thresholds set as environment
    variables, an update of 16 K rows took 22 ms instead of 27 ms, and 33 instead of 50 with other work on the cores:
    two pairs of runs. This call itself showed no clear gain under load.
    """
    libc = _glibc()
    if libc is None:
        return False
    options = ((M_MMAP_THRESHOLD, KEEP_BYTES), (M_TRIM_THRESHOLD, 2 * KEEP_BYTES - 1), (M_TOP_PAD, 64 << 20))
    return all(libc.mallopt(option, value) == 1 for option, value in options)


def share_one_arena() -> bool:
    """Make all threads started from now on share one arena; False without glibc.

    By default each thread has its own arena, which torch's aligned blocks of changing sizes fragment more and more:
    inference for CartPole grew by 30 of 210 MB in half an hour, and releasing free memory did not help.
    """
    libc = _glibc()
    return libc is not None and libc.mallopt(M_ARENA_MAX, 1) == 1


def release_freed_memory() -> bool:
    """Return the pages without any block to the kernel; False without glibc.

    Blocks of changing sizes spread over more and more pages, so a process grows for hours although it holds no more
    memory. So do Python's lists of freed tuples, up to 2,000 of each length, which only a full collection empties.
    Afterwards a learner's next update faults its activations in again, which takes some tenths of a second for a
    gigabyte. That is little if done every few minutes.
    """
    gc.collect()
    libc = _glibc()
    if libc is None:
        return False
    libc.malloc_trim(0)
    return True


@cache
def _glibc() -> ctypes.CDLL | None:
    """Return the C library if it is glibc, else None."""
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is None or not all(hasattr(libc, name) for name in ("mallopt", "malloc_trim")):
        return None
    libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc
