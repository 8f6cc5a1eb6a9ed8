"""Freed memory is kept for what comes next, and given back when it is asked for."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
from shared.runtime.allocator import keep_freed_memory, release_freed_memory

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
