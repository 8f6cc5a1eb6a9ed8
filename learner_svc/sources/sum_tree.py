"""Weights in a binary tree of sums: drawing an index in proportion to its weight takes one step for each level."""

import numpy as np

from seedbed.shared.protocol.layout import Array


class SumTree:
    """Weights of `size` places, all 0 at first. Memory: 16 to 32 bytes for a place.

    Every inner node is the sum of its two children as they are, in float64: rounding does not add up.
    """

    def __init__(self, size: int) -> None:
        self._num_leaves = 1 << max(0, size - 1).bit_length()
        self._sums = np.zeros(2 * self._num_leaves)  # node i has the children 2i and 2i + 1; node 1 is the root

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    def weights(self, places: Array) -> Array:
        """The weights of some places, f64."""
        found: Array = self._sums[self._num_leaves + places]
        return found

    def set(self, places: Array, weights: Array) -> None:
        """Give places, i64 and each once, other weights, not negative."""
        nodes = self._num_leaves + places
        self._sums[nodes] = weights
        while len(nodes) and nodes[0] > 1:
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def find(self, points: Array) -> Array:
        """The places, i64, in which points of [0, total) lie when all weights are laid end to end; none of weight 0."""
        nodes, rest = np.ones(len(points), np.int64), points.astype(np.float64)
        while len(nodes) and nodes[0] < self._num_leaves:
            left = self._sums[2 * nodes]
            goes_right = (rest >= left) & (self._sums[2 * nodes + 1] > 0.0)
            rest -= np.where(goes_right, left, 0.0)
            nodes = 2 * nodes + goes_right
        return nodes - self._num_leaves

    def draw(self, number: int, generator: np.random.Generator) -> Array:
        """Draw different places, i64, one after the other, each in proportion to its weight among those that are left.

        Raises: ValueError if fewer places have a weight.
        """
        drawn: list[Array] = []
        left, taken_weights = number, []
        try:
            while left:
                if self.total <= 0.0:
                    raise ValueError(f"{number} places to draw, and {number - left} have a weight")
                found = self.find(generator.random(left) * self.total)
                _, first = np.unique(found, return_index=True)  # a place that comes twice counts once
                found = found[np.sort(first)]
                left -= len(found)
                drawn.append(found)
                if left:
                    taken_weights.append(self.weights(found))
                    self.set(found, np.zeros(len(found)))
        finally:
            for places, weights in zip(drawn, taken_weights, strict=False):
                self.set(places, weights)
        return np.concatenate(drawn) if drawn else np.empty(0, np.int64)
