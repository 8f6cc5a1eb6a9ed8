"""Copies between the host and a device, and what TF32 does to products."""

import numpy as np
import pytest
import torch

from seedbed.shared.policy.precision import TF32_CAPABILITY, allow_tf32
from seedbed.shared.policy.transfers import CopyStream, pinned_zeros, record_event, to_device, wait_on_device
from tests.support.devices import DEVICES, NEEDS_CUDA


@pytest.mark.parametrize("device", DEVICES)
def test_copies_arrive_before_what_waits_for_them(device: torch.device) -> None:
    """And each copy waits until what reads the one before it is done."""
    copies, source, target = CopyStream(device), np.zeros(1 << 20, np.float32), torch.zeros(1 << 20, device=device)
    used, sums = None, []
    for number in range(8):
        source = np.full_like(source, number)
        copied = copies.copy([(target, torch.from_numpy(source))], after=used)
        wait_on_device(copied, device)
        sums.append(target.double().sum())
        used = record_event(device)
    assert torch.stack(sums).tolist() == [float(number << 20) for number in range(8)]


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_becomes_a_tensor_of_the_device(device: torch.device) -> None:
    """On a CPU it is the same memory."""
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    tensor = to_device(array, device)
    assert (tensor.device.type, tensor.tolist()) == (device.type, array.tolist())
    assert np.shares_memory(tensor.numpy(), array) if device.type == "cpu" else True


@NEEDS_CUDA
def test_pinned_arrays_are_page_locked() -> None:
    """CUDA sees this of a tensor on their memory."""
    array = pinned_zeros((3, 4), "int64")
    assert (array.shape, array.dtype, array.any()) == ((3, 4), np.int64, False)
    assert torch.from_numpy(array).is_pinned()


@pytest.mark.parametrize("device", DEVICES)
def test_tf32_rounds_products_on_a_gpu_that_has_it_and_only_while_it_is_allowed(device: torch.device) -> None:
    """On a CPU and on older GPUs it changes nothing."""
    torch.manual_seed(0)
    factors = torch.rand(2, 256, 256, device=device)
    images, kernels = torch.rand(4, 16, 20, 20, device=device), torch.rand(8, 16, 3, 3, device=device)

    def errors() -> list[float]:
        exact = (factors[0].double() @ factors[1].double(), torch.conv2d(images.double(), kernels.double()))
        found = (factors[0] @ factors[1], torch.conv2d(images, kernels))
        return [float((a - b).abs().max() / b.max()) for a, b in zip(found, exact, strict=True)]

    before = errors()
    allow_tf32(True)
    try:
        rounded = errors()
    finally:
        allow_tf32(False)
    assert max(errors()) < 1e-5
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability() >= TF32_CAPABILITY
    assert rounded[0] > 1e-5 if has_tf32 else rounded == before
