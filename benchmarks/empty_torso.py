"""A torso without computation, so that a benchmark measures everything that inference does besides the network."""

from collections.abc import Sequence

import torch
from torch import Tensor

from seedbed.shared.policy.networks import ImageShape, Torso


class EmptyTorso(Torso):
    """A torso for `policy.network` that has no parameters and one feature, which is always 0."""

    output_size = 1

    def __init__(self, image_shapes: Sequence[ImageShape], vector_size: int) -> None:
        super().__init__()

    def forward(self, images: Sequence[Tensor], vector: Tensor | None) -> Tensor:
        """Return zeros, f32 [N, 1]."""
        seen = images[0] if vector is None else vector
        return torch.zeros(len(seen), self.output_size, device=seen.device)
