"""The devices that a test is run on: the CPU everywhere, and a GPU where there is one."""

import pytest
import torch

NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [torch.device("cpu"), pytest.param(torch.device("cuda"), marks=NEEDS_CUDA)]
