"""Makes torch compute the same bits in every process of a machine that has as many threads."""

import os

import torch


def use_deterministic_algorithms() -> None:
    """Use only algorithms of which repetitions agree in every bit. Call it before the first matrix product.

    From then on an operation that has no such algorithm raises RuntimeError. The number of threads matters too, and is
    left as it is.
    """
    os.environ.setdefault("MKL_CBWR", "AUTO")  # products that do not depend on where their operands lie in memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS has no such algorithms
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # chooses algorithms by their speed
