"""A source's batch buffers, and their copies on the learner's device, made while the update before runs.

| thread | does |
|---|---|
| event loop | fills the buffer, then calls `send`: the copy begins on a stream of its own |
| update | enters `on`: the device waits for the copy, and this thread does not |

The next copy waits on the device until the update that read the former one is over. On a CPU buffer and copy are the
same memory, and nothing is copied.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from seedbed.learner_svc.sources.batch import ON_HOST, Batch
from seedbed.shared.policy.transfers import CopyStream, Event, record_event, wait_on_device
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import RecordSpec


class BatchBuffer(Batch):
    """A batch on memory that a source fills again and again. Memory: as much on the device, unless that is a CPU."""

    __slots__ = ("_copied", "_copies", "_there", "_used")

    def __init__(self, host: Batch, device: torch.device, copies: CopyStream) -> None:
        """Make the buffer of a batch on the host.

        Args:
          copies: of all buffers of the same source.
        """
        super().__init__(host.record, host.tensors)
        self._copies = copies
        self._copied: Event = None
        self._there: Batch = self
        if device.type != "cpu":
            there = {
                name: tensor if name in ON_HOST else torch.empty_like(tensor, device=device)
                for name, tensor in self.tensors.items()
            }
            self._there = Batch(self.record, there)
        self._used = record_event(device)  # when the device has done with the memory of the copy

    def send(self) -> None:
        """Start to copy the batch to the device, where it is used next. The buffer stays as it is until `on` is left.

        A batch of which nothing is trained on is never waited for; only its own copy may then be spoilt.
        """
        if self._there is not self:
            pairs = [(there, self.tensors[name]) for name, there in self._there.tensors.items() if name not in ON_HOST]
            self._copied = self._copies.copy(pairs, after=self._used)

    @contextmanager
    def on(self, device: torch.device) -> Iterator[Batch]:
        """Enter a context with the copy on the device that the latest `send` has started."""
        wait_on_device(self._copied, device)
        try:
            yield self._there
        finally:
            self._used = record_event(device)
            if self._copied is not None:
                self._copied.synchronize()  # over by now: an update reads its metrics from the device


def batch_buffers(record: RecordSpec, buffers: Sequence[Sequence[Array]], device: torch.device) -> list[BatchBuffer]:
    """Return the batches on a source's buffers, for updates on a device."""
    copies = CopyStream(device)
    return [BatchBuffer(Batch.from_arrays(record, arrays), device, copies) for arrays in buffers]
