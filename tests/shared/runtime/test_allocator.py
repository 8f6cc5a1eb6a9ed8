"""Freed memory is kept for what comes next, and given back when it is asked for."""

import subprocess
import sys

import pytest

from seedbed.shared.runtime.allocator import release_freed_memory

SCRIPT = """
import sys
import numpy as np
from seedbed.shared.runtime.allocator import keep_freed_memory, release_freed_memory

def resident_mb():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

if not keep_freed_memory():
    sys.exit("no glibc")
before = resident_mb()
blocks = [np.ones(100_000, np.uint8) for _ in range(1000)]
del blocks[::2], blocks[::2]  # what stays lies between what is free
kept = resident_mb() - before
assert release_freed_memory()
print(kept, resident_mb() - before, all(block.all() for block in blocks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own calls")
def test_pages_without_blocks_are_given_back_and_blocks_are_untouched():
    """Of 100 MB three quarters are freed, in pieces: all is kept, then about a quarter."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("another C library")
    kept, after, are_whole = done.stdout.split()
    assert float(kept) > 90
    assert float(after) < 40
    assert are_whole == "True"


def test_freed_tuples_are_given_back():
    """CPython keeps up to 2,000 of each length for later."""
    release_freed_memory()
    before = sys.getallocatedblocks()
    pieces = [tuple(range(1, length)) for length in range(2, 20) for _ in range(1000)]
    held = sys.getallocatedblocks() - before
    del pieces
    kept = sys.getallocatedblocks() - before
    release_freed_memory()
    assert kept > held / 2
    assert sys.getallocatedblocks() - before < held / 10


THREADS = """
import sys, threading
import numpy as np
from seedbed.shared.runtime.allocator import share_one_arena

blocks = []

def allocate():
    blocks.append(np.ones(50_000, np.uint8))

def start():
    threads = [threading.Thread(target=allocate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

if sys.argv[1] == "one" and not share_one_arena():
    sys.exit("no glibc")
start()
with open("/proc/self/maps") as file:
    heap = next(line.split()[0] for line in file if line.rstrip().endswith("[heap]"))
low, high = (int(bound, 16) for bound in heap.split("-"))
print(sum(low <= block.ctypes.data < high for block in blocks))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own calls")
@pytest.mark.parametrize(("arenas", "in_the_heap"), [("one", 4), ("many", 0)])
def test_threads_share_one_arena(arenas, in_the_heap):
    """Where the blocks lie that they allocate."""
    script = [sys.executable, "-c", THREADS, arenas]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)
    if "no glibc" in done.stderr:
        pytest.skip("another C library")
    assert int(done.stdout) == in_the_heap
