"""Which GPU each of several processes of a machine takes."""

import pytest
import torch

from seedbed.shared.policy.devices import device_of_number


@pytest.mark.parametrize(
    ("num_gpus", "requested", "expected"),
    [
        (0, "auto", ["auto"] * 4),
        (1, "auto", ["auto"] * 4),
        (3, "auto", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]),
        (2, "cuda", ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (2, "cuda:1", ["cuda:1"] * 4),
        (2, "cpu", ["cpu"] * 4),
    ],
)
def test_each_process_takes_the_next_gpu(monkeypatch, num_gpus, requested, expected):
    """And then the first again; a device that is named by number is kept."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    assert [device_of_number(requested, number) for number in range(4)] == expected
