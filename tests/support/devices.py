"""The devices that a test is run on: the CPU everywhere, and a GPU where there is one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=NEEDS_CUDA)]


@contextmanager
def reported_waits(mode: str) -> Iterator[None]:
    """Have CUDA report what waits for the device. `mode`: "warn" or "error"."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
