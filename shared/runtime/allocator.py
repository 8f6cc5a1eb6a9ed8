"""What glibc does with freed memory: keep what the next update needs, give back what nothing will need soon."""

import ctypes
import gc
import sys
from functools import cache

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # of glibc's malloc.h
KEEP_BYTES = 1 << 30


def keep_freed_memory() -> bool:
    """Have glibc reuse blocks up to 1 GiB instead of returning them to the kernel; False where there is no glibc.

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
    """Have all threads that start from now on allocate from one place; False where there is no glibc.

    By itself each has an arena, in which torch's aligned blocks of changing sizes come to lie ever further apart:
    CartPole's inference grew by 30 of 210 MB in half an hour, in steps, and giving back what was free did not help.
    """
    libc = _glibc()
    return libc is not None and libc.mallopt(M_ARENA_MAX, 1) == 1


def release_freed_memory() -> bool:
    """Give the kernel the pages in which no block lies; False where there is no glibc.

    Blocks of changing sizes spread over ever more pages, so a process grows for hours though it holds no more. So do
    Python's lists of freed tuples, up to 2,000 of each length, which only a full collection empties.
    A learner's next update has to fault its activations in again, some tenths of a second for a gigabyte: little, once
    in minutes, beside what a burst of messages would otherwise keep for good.
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
