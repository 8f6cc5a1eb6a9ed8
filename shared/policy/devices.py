"""Chooses the device of tensors."""

import torch

from seedbed.shared.errors import ConfigError


def choose_device(requested: str) -> torch.device:
    """Return the device for "auto" (the first GPU if there is one), "cpu", "cuda" (the first GPU) or "cuda:1".

    Raises: ConfigError if it does not exist.
    """
    if requested == "auto":
        requested = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(requested)
    except RuntimeError as error:
        raise ConfigError(f"device = {requested!r} is not a device: set it to auto, cpu, cuda or cuda:0") from error
    if device.type != "cuda":
        return device
    if (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device = {requested!r}: this machine has {torch.cuda.device_count()} CUDA devices; set it to cpu"
        )
    return torch.device("cuda", device.index or 0)  # as tensors there name it


def device_of_number(requested: str, number: int) -> str:
    """Return the device of one of several processes on a machine: where it has several GPUs, each takes the next one.

    Args:
      requested: as for `choose_device`; a device with a number, or a CPU, is left to it.
      number: of the process on its machine, from 0; beyond the last GPU it begins again with the first.
    """
    num_gpus = torch.cuda.device_count()
    return f"cuda:{number % num_gpus}" if requested in ("auto", "cuda") and num_gpus > 1 else requested
