"""Chooses the device of tensors."""

import torch

from seedbed.shared.errors import ConfigError


def choose_device(requested: str) -> torch.device:
    """Return the device for "auto" (CUDA if there is one), "cpu", "cuda" or "cuda:1".

    Raises: ConfigError if it does not exist.
    """
    if requested == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ConfigError(f"device = {requested!r} is not a device: set it to auto, cpu, cuda or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {requested!r}: this machine has {torch.cuda.device_count()} CUDA devices; set it to cpu"
        )
    return device
