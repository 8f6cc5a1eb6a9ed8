"""Shrinks images by area averaging: each new pixel is the mean of the old pixels that it covers.

The weights are integers, so that sums are exact and only the mean is rounded, halves to even. Libraries sum rounded
weights, and differ from this by one grey level where a mean is exactly a half: in 0.1 % of the pixels of noise.
"""

import math

import numpy as np
import numpy.typing as npt

Pictures = npt.NDArray[np.uint8]  # [N, H, W]
Sums = npt.NDArray[np.uint16]

CHUNK = 8  # images shrunk at a time: their intermediate sums stay in a core's cache


class AreaShrink:
    """Shrinks batches of images of one fixed size. One thread owns it; it keeps the buffers for one chunk of images.

    On both axes the weights repeat after a few pixels: 210 rows become 84 in 42 blocks of 5 to 2, and 160 columns in 4
    blocks of 40 to 21. Rows are added directly; columns are summed by one matrix product with a block's weights.
    """

    def __init__(self, height: int, width: int, size: int) -> None:
        rows, columns = _block_weights(height, size), _block_weights(width, size)
        blocks = height // len(rows)
        largest = 255 * int(rows[:, 0].sum())
        assert largest < 2**16, "sums of rows are kept in 16 bits"
        assert largest * columns[:, 0].sum() < 2**24, "a float32 counts so far without gaps"
        self._blocks = (blocks, len(rows), width)
        self._taps = [_by_weight(weights) for weights in rows.T]
        self._columns = columns.astype(np.float32)
        self._area = np.float32(rows[:, 0].sum() * columns[:, 0].sum())
        self._total, self._part = np.empty((2, CHUNK, blocks, width), np.uint16)
        self._rows = np.empty((CHUNK, blocks, rows.shape[1], width), np.float32)
        self._means = np.empty((CHUNK, size * width // len(columns), columns.shape[1]), np.float32)

    def __call__(self, pictures: Pictures, out: Pictures) -> None:
        """Write the shrunk images u8 [N, height, width] into `out`, u8 [N, size, size]."""
        for start in range(0, len(pictures), CHUNK):
            self._shrink(pictures[start : start + CHUNK], out[start : start + CHUNK])

    def _shrink(self, pictures: Pictures, out: Pictures) -> None:
        count = len(pictures)
        blocks, rows, means = pictures.reshape(count, *self._blocks), self._rows[:count], self._means[:count]
        for j, taps in enumerate(self._taps):
            rows[:, :, j] = self._add_rows(blocks, taps)
        np.matmul(rows.reshape(-1, len(self._columns)), self._columns, out=means.reshape(-1, self._columns.shape[1]))
        np.divide(means, self._area, out=means)
        np.rint(means, out=means)
        np.copyto(out, means.reshape(out.shape), casting="unsafe")

    def _add_rows(self, blocks: Pictures, taps: list[tuple[int, list[int]]]) -> Sums:
        """Return the weighted sum of old rows that makes one new row of each block, u16 [N, blocks, width].

        Rows of equal weight are added before they are multiplied. The next call overwrites the result.
        """
        total, part = self._total[: len(blocks)], self._part[: len(blocks)]
        for place, (weight, (first, *others)) in enumerate(taps):
            into = part if place else total
            np.copyto(into, blocks[:, :, first])
            for row in others:
                np.add(into, blocks[:, :, row], out=into)
            if weight > 1:
                np.multiply(into, np.uint16(weight), out=into)
            if place:
                np.add(total, part, out=total)
        return total


def _by_weight(weights: npt.NDArray[np.int64]) -> list[tuple[int, list[int]]]:
    """Group the old rows that make one new row by their weight: a list of (weight, indices of old rows)."""
    return [(int(weight), np.flatnonzero(weights == weight).tolist()) for weight in np.unique(weights[weights > 0])]


def _block_weights(old: int, new: int) -> npt.NDArray[np.int64]:
    """Return how much of old pixel i lies in new pixel j, in q-ths of a pixel, i64 [p, q], where old : new = p : q."""
    p, q = old // math.gcd(old, new), new // math.gcd(old, new)
    starts, ends = np.arange(p)[:, None] * q, np.arange(1, p + 1)[:, None] * q
    overlap = np.minimum(ends, np.arange(1, q + 1) * p) - np.maximum(starts, np.arange(q) * p)
    weights: npt.NDArray[np.int64] = np.maximum(overlap, 0)
    return weights
