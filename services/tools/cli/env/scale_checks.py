"""How a network will see the observations that came: those that hardly fill their bounds, are huge, or never change.

Warnings, for nothing is broken; a policy learns from such values slowly or not at all. Array suffix: L lanes.
"""

from collections.abc import Sequence

import numpy as np

from seedbed.services.tools.cli.env.verdicts import Result, passed, warned
from seedbed.shared.policy.scaling import scale_of
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.leaves import Leaf, name_part
from seedbed.shared.protocol.spaces import Space

HARDLY = 0.1  # of the scaled range
HUGE = 100.0  # of values that nothing scales
MIN_TICKS = 20  # before anything is said


class ScaleWatch:
    """Keeps the least and the greatest value of each element. Memory: two rows."""

    def __init__(self, space: Space) -> None:
        self._leaves = space.leaves()
        self._ranges: list[tuple[Array, Array]] = []  # of each leaf, once something was seen
        self._ticks = 0

    def observe(self, observation: Sequence[Array], present_L: Array) -> None:
        """Leaves [L, ...] of one tick; lanes without an agent do not count."""
        if not present_L.any():
            return
        self._ticks += 1
        rows = [leaf if present_L.all() else leaf[present_L] for leaf in observation]
        seen = [(leaf.min(0), leaf.max(0)) for leaf in rows]
        known = self._ranges or seen
        self._ranges = [
            (np.minimum(low, known_low), np.maximum(high, known_high))
            for (low, high), (known_low, known_high) in zip(seen, known, strict=True)
        ]

    def results(self) -> list[Result]:
        """A result for `constant` and for `scale`; none before enough was seen."""
        if self._ticks < MIN_TICKS:
            return []
        constant = [self._constant(index) for index in range(len(self._leaves))]
        scale = [self._scale(index) for index in range(len(self._leaves))]
        return [
            _judge("constant", constant, f"every observation changed within {self._ticks} ticks"),
            _judge("scale", scale, "the network sees values of about one"),
        ]

    def _constant(self, index: int) -> str:
        leaf, (low, high) = self._leaves[index], self._ranges[index]
        is_constant = leaf.num_elements > 0 and bool((low == high).all())
        return f"{name_of(leaf)} never changed in {self._ticks} ticks" if is_constant else ""

    def _scale(self, index: int) -> str:
        leaf, (low, high) = self._leaves[index], self._ranges[index]
        if leaf.kind != "box" or not leaf.num_elements or (low == high).all():
            return ""
        least, greatest = low.min(), high.max()
        scale = scale_of(leaf, by_bounds=True)
        if scale is not None:
            ends = [(values.ravel().astype(np.float64) - scale.low) / scale.span for values in (low, high)]
            spread = float(ends[1].max() - ends[0].min())
            if spread >= HARDLY:
                return ""
            return (
                f"{name_of(leaf)} stays within {least}…{greatest} of its {_bounds_of(leaf)}: what the network sees "
                f"varies by {spread:.2g}"
            )
        farthest = max(abs(float(least)), abs(float(greatest)))
        if farthest > HUGE:
            return f"{name_of(leaf)} ({leaf.dtype}) goes from {least:.6g} to {greatest:.6g}, and nothing scales it"
        if farthest < 1 / HUGE:
            return f"{name_of(leaf)} ({leaf.dtype}) stays within {least:.6g}…{greatest:.6g}, and nothing scales it"
        return ""


def _bounds_of(leaf: Leaf) -> str:
    return f"{leaf.low_array().min()}…{leaf.high_array().max()}"


def _judge(name: str, problems: Sequence[str], otherwise: str) -> Result:
    """Return one result for all leaves: their problems, each empty where there is none, or what was seen otherwise."""
    found = [problem for problem in problems if problem]
    return warned(name, "; ".join(found)) if found else passed(name, otherwise)


def name_of(leaf: Leaf) -> str:
    """An observation's leaf, for people; the root has no name of its own."""
    return name_part("observation", leaf.path)
