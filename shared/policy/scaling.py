"""Scales integer boxes by their declared bounds, so that a network gets inputs of about one.

Values are scaled to 0…1 or, if the bounds lie on both sides of zero, to -1…1 with zero unchanged. Bounds more than
MAX_SPAN apart are ignored, since they are the range of a dtype. Nothing is clipped: environments exceed their bounds.
"""

from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.spaces import Leaf, Space

MAX_SPAN = 65535  # the range of 16 bits
MAX_BYTE = 255


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """The scaling (value - low) / span of each element. Immutable."""

    low: Array  # i64 [elements]
    span: Array  # f32 [elements], > 0

    @property
    def divisor(self) -> float | None:
        """The number by which all elements are divided; None if they differ, or if a lower bound is subtracted."""
        is_even = not self.low.any() and bool((self.span == self.span[0]).all())
        return float(self.span[0]) if is_even else None


def scale_of(leaf: Leaf, *, by_bounds: bool) -> Scale | None:
    """Return the scaling of a leaf; None if it is not scaled.

    Without `by_bounds` every uint8 box is divided by 255, and no other leaf is scaled.
    """
    if not is_integer_box(leaf):
        return None
    if not by_bounds:
        whole = np.full(leaf.num_elements, MAX_BYTE)
        return _scale(0 * whole, whole) if leaf.dtype == "uint8" else None
    low, high = leaf.low_array().ravel(), leaf.high_array().ravel()
    if (high.astype(np.float64) - low.astype(np.float64)).max(initial=0.0) > MAX_SPAN:
        return None
    return _scale(low.astype(np.int64), high.astype(np.int64))


def _scale(low: Array, high: Array) -> Scale:
    is_signed = (low < 0) & (high > 0)
    span = np.where(is_signed, np.maximum(-low, high), high - low)
    return Scale(np.where(is_signed, 0, low), np.where(span == 0, 1, span).astype(np.float32))


def bounds_matter(space: Space) -> bool:
    """Whether scaling by bounds changes the inputs of a policy of this space."""
    scales = [(leaf.dtype, scale_of(leaf, by_bounds=True)) for leaf in space.leaves() if is_integer_box(leaf)]
    return any(dtype != "uint8" or scale is None or scale.divisor != MAX_BYTE for dtype, scale in scales)


def is_integer_box(leaf: Leaf) -> bool:
    """Whether the leaf holds integers that are quantities, not categories."""
    return leaf.kind == "box" and not leaf.dtype.startswith("float")


def is_grid(leaf: Leaf) -> bool:
    """Whether the leaf is an integer box of rank 2 or 3, whose values `policy.grid_codes` may call codes."""
    return is_integer_box(leaf) and len(leaf.shape) in (2, 3)
