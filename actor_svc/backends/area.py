"""Pictures shrunk by area: each new pixel is the mean of what it covers of the old ones.

The weights are whole numbers, so that sums are exact and only the mean is rounded, halves to even. Libraries sum
rounded weights, and differ by one level where a mean is just a half: 0.1 % of the pixels of noise.
"""

import math

import numpy as np
import numpy.typing as npt

Pictures = npt.NDArray[np.uint8]  # [N, H, W]
Sums = npt.NDArray[np.uint16]

CHUNK = 8  # pictures at a time: what lies between them and their means stays in a core's cache


class AreaShrink:
    """Shrinks many pictures of one size. One thread owns it; memory: what a chunk needs, kept.

    Both axes repeat after a few pixels: 210 rows to 84 are 42 blocks of 5 to 2, 160 columns 4 blocks of 40 to 21. Rows
    are added up as they are, columns by one product with a block's weights.
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
        """Write the pictures' means, u8 [N, size, size]."""
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
        """One new row of each block: rows of one weight are added before they are multiplied."""
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
    """(weight, the old rows that have it) of one new row."""
    return [(int(weight), np.flatnonzero(weights == weight).tolist()) for weight in np.unique(weights[weights > 0])]


def _block_weights(old: int, new: int) -> npt.NDArray[np.int64]:
    """i64 [p, q]: how much of old pixel i lies in new pixel j, in q-ths of a pixel, for old : new = p : q."""
    p, q = old // math.gcd(old, new), new // math.gcd(old, new)
    starts, ends = np.arange(p)[:, None] * q, np.arange(1, p + 1)[:, None] * q
    overlap = np.minimum(ends, np.arange(1, q + 1) * p) - np.maximum(starts, np.arange(q) * p)
    weights: npt.NDArray[np.int64] = np.maximum(overlap, 0)
    return weights
