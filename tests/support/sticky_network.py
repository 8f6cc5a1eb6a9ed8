"""A torso that gets stuck for good, once, when it is ordered to by a file in its folder: `forward` or `update`."""

import threading
from pathlib import Path

import torch
from torch import Tensor

from seedbed.shared.policy.networks import Torso


class Sticky(Torso):
    """A layer behind the order's file."""

    def __init__(self, image_shapes: object, vector_size: int, *, folder: str) -> None:
        super().__init__()
        self.output_size = 16
        self.layer = torch.nn.Linear(vector_size, 16)
        self._folder = Path(folder)

    def forward(self, images: list[Tensor], vector: Tensor) -> Tensor:
        """As a deadlock in a library would: the thread waits, others run."""
        order = self._folder / ("update" if torch.is_grad_enabled() else "forward")
        if order.exists():
            order.unlink()
            threading.Event().wait()
        return self.layer(vector)
