"""Which processor the tensors live on."""

import torch

from seedbed.shared.errors import ConfigError


def choose_device(requested: str) -> torch.device:
    """The device for "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:1"; ConfigError if it is not there."""
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ConfigError(f"device = {requested!r} is no device: write auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {requested!r}: this machine has {torch.cuda.device_count()} CUDA devices; write cpu"
        )
    return device
