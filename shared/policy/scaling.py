"""How the declared bounds of an integer box scale its values, so that a network meets numbers of about one.

Values come to 0…1; where the bounds lie on both sides of zero, to -1…1 with zero where it was. Bounds more than
MAX_SPAN apart are a dtype's range rather than the values', and say nothing. Nothing is clipped: environments exceed
their bounds.
"""

from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.spaces import Leaf, Space

MAX_SPAN = 65535  # of 16 bits
MAX_BYTE = 255


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """(value - low) / span, with a number for each element. Immutable."""

    low: Array  # i64 [elements]
    span: Array  # f32 [elements], > 0

    @property
    def divisor(self) -> float | None:
        """The number that all elements are divided by; None if elements differ, or a lower bound is subtracted too."""
        is_even = not self.low.any() and bool((self.span == self.span[0]).all())
        return float(self.span[0]) if is_even else None


def scale_of(leaf: Leaf, *, by_bounds: bool) -> Scale | None:
    """Return how a leaf is scaled; None if it is not.

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
    """Whether a policy of this space sees other values with scaling by bounds than without."""
    scales = [(leaf.dtype, scale_of(leaf, by_bounds=True)) for leaf in space.leaves() if is_integer_box(leaf)]
    return any(dtype != "uint8" or scale is None or scale.divisor != MAX_BYTE for dtype, scale in scales)


def is_integer_box(leaf: Leaf) -> bool:
    """Whether the leaf holds integers that are quantities, not categories."""
    return leaf.kind == "box" and not leaf.dtype.startswith("float")


def is_grid(leaf: Leaf) -> bool:
    """Whether the leaf is an integer box of rank 2 or 3, whose values `policy.grid_codes` may call codes."""
    return is_integer_box(leaf) and len(leaf.shape) in (2, 3)
