"""Moves data between the host and an accelerator so that neither waits: page-locked memory, events, a copy stream.

The same calls work on every device. Where there are no streams (the CPU, and `meta` in tests) a copy is done at once,
and an event is None.
"""

import contextlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from seedbed.shared.protocol.layout import Array

Event = torch.cuda.Event | None  # None: nothing to wait for


def pinned_zeros(shape: Sequence[int], dtype: str) -> Array:
    """Return a zeroed array of a NumPy dtype in page-locked memory: a GPU copies from and to it without a wait.

    Raises: RuntimeError without a GPU.
    """
    array: Array = torch.zeros(tuple(shape), dtype=getattr(torch, dtype), pin_memory=True).numpy()
    return array


def to_device(array: Array, device: torch.device) -> Tensor:
    """Return an array as a tensor on the device, by a copy that does not wait. A CPU's tensor shares its memory."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def record_event(device: torch.device) -> Event:
    """Return an event that happens when the device has done what this thread has given it so far."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_on_device(event: Event, device: torch.device) -> None:
    """Let the device, not this thread, wait for an event before what this thread gives it next."""
    if event is not None:
        torch.cuda.current_stream(device).wait_event(event)


def on_own_stream(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which work goes to a new stream of the device, where there are streams.

    It can be entered again and again, by one thread at a time and not within itself.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


class CopyStream:
    """Copies from the host to a device while that computes. Any thread may use it, one at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._on_stream = device, on_own_stream(device)

    def copy(self, copies: Iterable[tuple[Tensor, Tensor]], *, after: Event = None) -> Event:
        """Start copies (target, source), after an event on the device, and return the event of their end.

        Args:
          copies: the sources should be page-locked, and must stay as they are until the returned event.
        """
        with self._on_stream:
            wait_on_device(after, self._device)
            for target, source in copies:
                target.copy_(source, non_blocking=True)
            return record_event(self._device)
