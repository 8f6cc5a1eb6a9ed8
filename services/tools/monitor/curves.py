"""Curves of a run in bounded memory: rows go in as they are written, what a plot can show comes out.

Shapes: R rows, C columns, N buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_BUCKETS = 600  # even; a plot shows hardly more points
RECENT_ROWS = 300  # the last rows stay as they were


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One column: mean, least and greatest value of each bucket, float64 [N]; NaN where no row had a value."""

    mean: Array
    low: Array
    high: Array


class Curves:
    """Every column of a run in at most `MAX_BUCKETS` buckets of `stride` rows each.

    When they are full, neighbours are merged and the stride doubles: no row is looked at twice, and no extreme value
    is lost. Owned by one thread at a time.
    """

    def __init__(self, columns: Sequence[str], max_buckets: int = MAX_BUCKETS) -> None:
        if max_buckets % 2:
            raise ValueError(f"max_buckets is even, not {max_buckets}")
        self.columns = tuple(columns)
        self.num_rows = 0
        self.stride = 1
        self.recent: Array = np.empty((0, len(self.columns)))  # [≤ RECENT_ROWS, C]
        self._max_buckets = max_buckets
        shape = (max_buckets, len(self.columns))
        self._low, self._high = np.full(shape, np.nan), np.full(shape, np.nan)
        self._total, self._count = np.zeros(shape), np.zeros(shape)

    def add(self, rows_RC: Array) -> None:
        """Add rows, float64 [R, C]; NaN: no value."""
        self.recent = np.concatenate([self.recent, rows_RC[-RECENT_ROWS:]])[-RECENT_ROWS:]
        while len(rows_RC):
            if self.num_rows == self.stride * self._max_buckets:
                self._merge()
            room = self.stride * self._max_buckets - self.num_rows
            self._fill(rows_RC[:room])
            rows_RC = rows_RC[room:]

    def curve(self, name: str) -> Curve:
        """One column, oldest bucket first. Raises: ValueError for a column that is not here."""
        column, filled = self.columns.index(name), slice(0, self._num_buckets)
        count = self._count[:, column]
        mean = np.full(len(count), np.nan)
        np.divide(self._total[:, column], count, out=mean, where=count > 0)
        return Curve(mean=mean[filled], low=self._low[filled, column].copy(), high=self._high[filled, column].copy())

    def last(self, name: str) -> float | None:
        """The newest value among the recent rows."""
        values = self.recent_values(name)
        return float(values[-1]) if len(values) else None

    def last_at_work(self, name: str) -> float | None:
        """The newest value that is not 0: of a rate, whose last rows may be of a run that only evaluates."""
        values = self.recent_values(name)
        at_work = values[values != 0]
        return float(at_work[-1]) if len(at_work) else self.last(name)

    def recent_values(self, name: str) -> Array:
        """What the recent rows have in one column, oldest first, without gaps."""
        values = self.recent[:, self.columns.index(name)]
        return values[np.isfinite(values)]

    @property
    def _num_buckets(self) -> int:
        return -(-self.num_rows // self.stride)

    def _fill(self, rows_RC: Array) -> None:
        """Add rows for which there is room."""
        bucket = (self.num_rows + np.arange(len(rows_RC))) // self.stride
        first = np.flatnonzero(np.diff(bucket, prepend=-1))
        here = bucket[first]
        known = np.isfinite(rows_RC)
        self._low[here] = np.fmin(self._low[here], np.fmin.reduceat(rows_RC, first))
        self._high[here] = np.fmax(self._high[here], np.fmax.reduceat(rows_RC, first))
        self._total[here] += np.add.reduceat(np.where(known, rows_RC, 0.0), first)
        self._count[here] += np.add.reduceat(known.astype(np.float64), first)
        self.num_rows += len(rows_RC)

    def _merge(self) -> None:
        """Make half as many buckets of twice the size."""
        half = self._max_buckets // 2
        for table, combine, empty in (
            (self._low, np.fmin, np.nan),
            (self._high, np.fmax, np.nan),
            (self._total, np.add, 0.0),
            (self._count, np.add, 0.0),
        ):
            table[:half] = combine(table[0::2], table[1::2])
            table[half:] = empty
        self.stride *= 2
