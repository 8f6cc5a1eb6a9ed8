"""Converts observation leaves to the inputs of a torso: images in 0…1, everything else in one float vector.

uint8 leaves of rank 2–3 that the specification marks as images are images; other numbers are cast to f32. Discrete
values become one-hot, and Text becomes the frequencies of its bytes, without their order. Declared bounds scale integer
boxes and images (`scaling`); floats are not scaled. Images or, if there are none, Box leaves may be stacks of K frames.

With `grid_codes`, integers in boxes of rank 2 and 3 are codes, such as the content of a grid cell: each becomes one-hot
and part of the vector, because the order of such numbers has no meaning.

With normalisation, running statistics centre images, float leaves and integers without usable bounds, and scale them to
unit deviation: every element of a leaf by itself; an image by the mean of each pixel and one deviation for all. Most of
a game's screen is a constant background, which would otherwise outweigh the few pixels that move.

Shape suffixes: N rows, V columns of the vector, K frames of a stack, F frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.cores import FrameStacks
from seedbed.shared.policy.networks import ImageShape
from seedbed.shared.policy.scaling import MAX_BYTE, is_grid, is_integer_box, scale_of
from seedbed.shared.protocol.spaces import Leaf, Space

MAX_NORMALISED = 10.0  # standard deviations; bounds outliers early in training
BYTE_VALUES = 256
MAX_CODE_COLUMNS = 65536  # most columns of one-hot codes
VARIANCE_FLOOR = 1e-6  # keeps 1/std of a constant observation finite; for an image it is one grey level


@dataclass(frozen=True, slots=True)
class LeafNormaliser:
    """The live statistics of one leaf, part of the weights; only the learner writes them."""

    index: int  # of the leaf, canonical order
    mean: Tensor  # f32 [elements]
    rstd: Tensor  # f32 [elements], 1 / standard deviation; of an image f32 [1], for all its pixels
    variance_floor: float = VARIANCE_FLOOR  # added to variances, in squares of the leaf's units


class ObservationEncoder(nn.Module):
    """Prepares leaves [N, *shape], or stacks of K frames, for a torso.

    Attributes: `patch`, the side of the torso's patches in pixels, 0 for whole images.
    """

    def __init__(
        self, space: Space, *, stack: int, normalise: bool, scale_by_bounds: bool = True, grid_codes: int = 0
    ) -> None:
        super().__init__()
        self.leaves = space.leaves()
        self._codes = tuple(grid_codes if is_grid(leaf) else 0 for leaf in self.leaves)
        _check_codes(self.leaves, self._codes, grid_codes)
        self._is_image = tuple(
            bool(leaf.image) and not codes for leaf, codes in zip(self.leaves, self._codes, strict=True)
        )
        scales = [scale_of(leaf, by_bounds=scale_by_bounds) for leaf in self.leaves]
        self._is_scaled = tuple(scale is not None for scale in scales)
        self._divisors = tuple(scale.divisor if scale else None for scale in scales)
        self._spans = tuple(float(scale.span.max()) if scale else 1.0 for scale in scales)
        self.stacked = tuple(
            stack > 1 and (is_image if any(self._is_image) else leaf.kind == "box")
            for leaf, is_image in zip(self.leaves, self._is_image, strict=True)
        )
        self.image_shapes: tuple[ImageShape, ...] = tuple(
            _image_shape(leaf, stack if is_stacked else 1)
            for leaf, is_stacked, is_image in zip(self.leaves, self.stacked, self._is_image, strict=True)
            if is_image
        )
        self.vector_size = sum(
            _columns(leaf) * max(codes, 1) * (stack if is_stacked else 1)
            for leaf, is_stacked, is_image, codes in zip(
                self.leaves, self.stacked, self._is_image, self._codes, strict=True
            )
            if not is_image
        )
        self.normalised = tuple(
            i
            for i, leaf in enumerate(self.leaves)
            if normalise
            and not self._codes[i]
            and (leaf.image or _is_float(leaf) or (scale_by_bounds and self._is_unbounded(i)))
        )
        for index in self.normalised:
            leaf = self.leaves[index]
            self.register_buffer(f"mean_{index}", torch.zeros(leaf.num_elements))
            rstd = torch.full((1,), 1 / self._spans[index]) if leaf.image else torch.ones(leaf.num_elements)
            self.register_buffer(f"rstd_{index}", rstd)
        for index, scale in enumerate(scales):
            if scale is not None and scale.divisor is None:
                self.register_buffer(f"_low_{index}", torch.from_numpy(scale.low), persistent=False)
                self.register_buffer(f"_span_{index}", torch.from_numpy(scale.span), persistent=False)
        for index, leaf in enumerate(self.leaves):
            if self._codes[index]:
                least = torch.from_numpy(leaf.low_array().ravel().astype(np.int64))
                self.register_buffer(f"_least_{index}", least, persistent=False)
            if leaf.nvec:
                starts = torch.tensor(leaf.starts)
                self.register_buffer(f"_starts_{index}", starts, persistent=False)
                category = torch.tensor(np.concatenate([np.arange(n) for n in leaf.nvec]))
                component = torch.tensor(np.repeat(np.arange(len(leaf.nvec)), leaf.nvec))
                self.register_buffer(f"_category_{index}", category, persistent=False)
                self.register_buffer(f"_component_{index}", component, persistent=False)
        self.patch = 0  # `patch` of the torso
        only = self.leaves[0] if len(self.leaves) == 1 else None
        self._is_plain = only is not None and only.kind == "box" and only.dtype == "float32" and not self.normalised

    def normalisers(self) -> tuple[LeafNormaliser, ...]:
        """Return the statistics of each leaf that is normalised; empty unless normalisation is on."""
        return tuple(
            LeafNormaliser(
                index,
                self.get_buffer(f"mean_{index}"),
                self.get_buffer(f"rstd_{index}"),
                (self._spans[index] / MAX_BYTE) ** 2 if self.leaves[index].image else VARIANCE_FLOOR,
            )
            for index in self.normalised
        )

    def _is_unbounded(self, index: int) -> bool:
        """Whether a leaf holds integers without usable bounds."""
        return is_integer_box(self.leaves[index]) and not self._is_scaled[index]

    def forward(
        self, leaves: Sequence[Tensor | FrameStacks], dtype: torch.dtype, memory_format: torch.memory_format
    ) -> tuple[list[Tensor], Tensor | None]:
        """Convert leaves [N, ...] to images in `dtype` and the vector f32 [N, V], None if it is empty.

        An image is [N, C, H, W] in `memory_format`; for a torso with a `patch` of P, [N, C, H/P, W/P, P²].
        """
        if self._is_plain:
            return [], _joined(leaves[0])
        images: list[Tensor] = []
        parts: list[Tensor] = []
        for index, (leaf, value) in enumerate(zip(self.leaves, leaves, strict=True)):
            stacks = value if isinstance(value, FrameStacks) else FrameStacks(value, 1)
            if self._is_image[index]:
                images.append(self._image(index, leaf, stacks, dtype, memory_format))
            else:
                parts.append(stacks.of(self._vector(index, leaf, stacks.frames)).flatten(1))
        if not parts:
            return images, None
        return images, parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def _image(
        self, index: int, leaf: Leaf, stacks: FrameStacks, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> Tensor:
        """Return one image leaf in the torso's form. Each frame is scaled once, however many stacks it is in."""
        frames = self._arranged(stacks.frames, leaf)
        if index in self.normalised:
            mean = self._arranged(self.get_buffer(f"mean_{index}").view(1, *leaf.shape), leaf)
            rstd = self.get_buffer(f"rstd_{index}")
            scaled = frames.to(torch.float32).sub_(mean).mul_(rstd).to(dtype)
        elif (divisor := self._divisors[index]) is not None:
            scaled = frames.to(dtype).mul_(1 / divisor)
        else:
            low, span = (
                self._arranged(self.get_buffer(f"{name}_{index}").view(1, *leaf.shape), leaf)
                for name in ("_low", "_span")
            )
            scaled = frames.to(torch.float32).sub_(low).div_(span).to(dtype)
        stacked = stacks.of(scaled)
        if self.patch:
            return stacked.flatten(1, 2)
        return _channels_first(stacked, leaf.image).contiguous(memory_format=memory_format)

    def _arranged(self, frames: Tensor, leaf: Leaf) -> Tensor:
        """Return frames [F, *shape], cut into patches if the torso has any; uint8 is the least to copy."""
        return to_patches(_channels_first(frames, leaf.image), self.patch) if self.patch else frames

    def _vector(self, index: int, leaf: Leaf, value: Tensor) -> Tensor:
        """Return one leaf's frames as columns of the vector, f32 [F, columns]."""
        if leaf.nvec:
            number = value.reshape(value.shape[0], -1).long() - self.get_buffer(f"_starts_{index}")
            number = number.index_select(-1, self.get_buffer(f"_component_{index}"))
            return (number == self.get_buffer(f"_category_{index}")).float()
        if codes := self._codes[index]:
            low = self.get_buffer(f"_least_{index}")
            code = (_columns_of(value).long() - low).clamp_(0, codes - 1)
            return (code.unsqueeze(-1) == torch.arange(codes, device=value.device)).float().flatten(1)
        if leaf.kind == "text":
            return _byte_frequencies(value)
        if index in self.normalised:
            mean, rstd = self.get_buffer(f"mean_{index}"), self.get_buffer(f"rstd_{index}")
            scaled = (_columns_of(value).float() - mean).mul_(rstd)
            return scaled.clamp_(-MAX_NORMALISED, MAX_NORMALISED)
        if not self._is_scaled[index]:
            return _columns_of(value).float()
        if (divisor := self._divisors[index]) is not None:
            return _columns_of(value).float() / divisor
        offset = _columns_of(value).long() - self.get_buffer(f"_low_{index}")  # exact, before it becomes a float
        return offset.float() / self.get_buffer(f"_span_{index}")


def _is_float(leaf: Leaf) -> bool:
    return leaf.kind == "box" and leaf.dtype.startswith("float")


def _check_codes(leaves: Sequence[Leaf], codes: Sequence[int], asked: int) -> None:
    """Raise ConfigError if `grid_codes` is set and there is no grid, or one that is too large for one-hot codes."""
    if asked and not any(codes):
        raise ConfigError(
            f"[policy] grid_codes = {asked}: the observation has no grid (integer Box of rank 2 or 3); set it to 0"
        )
    columns = sum(leaf.num_elements for leaf, number in zip(leaves, codes, strict=True) if number) * asked
    if columns > MAX_CODE_COLUMNS:
        raise ConfigError(
            f"[policy] grid_codes = {asked}: the network would have {columns} inputs, and at most {MAX_CODE_COLUMNS} "
            "are allowed: set it to 0, and use a network for images"
        )


def _columns(leaf: Leaf) -> int:
    """Return how many columns of the vector one frame of a non-image leaf takes."""
    return BYTE_VALUES if leaf.kind == "text" else leaf.num_categories or leaf.num_elements


def _image_shape(leaf: Leaf, frames: int) -> ImageShape:
    if leaf.image == "HW":
        return frames, leaf.shape[0], leaf.shape[1]
    if leaf.image == "HWC":
        return frames * leaf.shape[2], leaf.shape[0], leaf.shape[1]
    return frames * leaf.shape[0], leaf.shape[1], leaf.shape[2]


def to_patches(image: Tensor, size: int) -> Tensor:
    """Cut images [N, C, H, W] into patches [N, C, H/size, W/size, size²]; remainders at the edges are dropped."""
    num_rows, channels, *sides = image.shape
    height, width = (side // size for side in sides)
    image = image[:, :, : height * size, : width * size]
    is_aligned = image.is_contiguous() and image.storage_offset() % 4 == 0
    if image.dtype == torch.uint8 and size == 4 and is_aligned and not torch.compiler.is_compiling():
        lines = image.view(torch.int32)  # moves a line of a patch as one number
        return lines.view(num_rows, channels, height, size, width).transpose(3, 4).contiguous().view(torch.uint8)
    pixels = image.reshape(num_rows, channels, height, size, width, size).transpose(3, 4)
    return pixels.reshape(num_rows, channels, height, width, size**2)


def _joined(value: Tensor | FrameStacks) -> Tensor:
    """Return rows, or the frames of stacks side by side, as [N, columns]."""
    return _columns_of(value if isinstance(value, Tensor) else value.of(value.frames))


def _columns_of(value: Tensor) -> Tensor:
    """Return [N, ...] as [N, columns]; a Box of shape () has one."""
    return value.flatten(1) if value.dim() > 1 else value.unsqueeze(1)


def _channels_first(value: Tensor, layout: str) -> Tensor:
    """Rearrange [N, (K,) *layout] to [N, K·C, H, W], as a view if possible."""
    size = len(layout)
    if value.dim() == size + 1:
        value = value.unsqueeze(1)  # one frame
    if layout == "HW":
        return value
    if layout == "HWC":
        value = value.movedim(-1, 2)
    return value[:, 0] if value.shape[1] == 1 else value.flatten(1, 2)


def _byte_frequencies(value: Tensor) -> Tensor:
    """Return each byte's share of a text, f32 [N, 256], from u8 [N, 4 + bytes]: a u32 count, then UTF-8."""
    digits = value[:, :4].float()
    length = ((digits[:, 3:] * 256 + digits[:, 2:3]) * 256 + digits[:, 1:2]) * 256 + digits[:, :1]
    letters = value[:, 4:].long()
    is_text = (torch.arange(letters.shape[1], device=value.device) < length).float()
    counts = torch.zeros(value.shape[0], BYTE_VALUES, device=value.device).scatter_add_(1, letters, is_text)
    return counts / length.clamp(min=1.0)
