"""The histogram of policy lag, as the learner counts it: every transition that came to an update. Pure.

Buckets are the learner's: lag 0, 1, 2–3, 4–7, … A live run's is that of its last minute, for what happened hours ago
hides what happens now; a finished run's is that of the whole run, from its summary.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric

from seedbed.shared.figures import learner

METRIC = learner.POLICY_LAG.family
MAX_LAG = 2**53  # updates; JSON numbers are exact up to here
SUMMARY_KEY = "policy_lag_histogram"
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LagHistogram:
    """How many transitions had a lag of `lows[n]`, updates, up to below `lows[n + 1]`; the last bucket is open."""

    lows: tuple[int, ...]
    counts: tuple[float, ...]

    def since(self, before: "LagHistogram") -> "LagHistogram":
        """What was counted since then; all of it if the count began anew."""
        if before.lows != self.lows or any(b > a for a, b in zip(self.counts, before.counts, strict=True)):
            return self
        counts = tuple(a - b for a, b in zip(self.counts, before.counts, strict=True))
        return LagHistogram(lows=self.lows, counts=counts)


def read_page(families: Iterable[Metric]) -> LagHistogram | None:
    """What a learner's page says; None if it says nothing."""
    family = next((found for found in families if found.name == METRIC), None)
    if family is None:
        return None
    upto = sorted(
        (float(sample.labels.get("le", "nan")), sample.value)
        for sample in family.samples
        if sample.name == f"{METRIC}_bucket"
    )
    if not upto or not all(0 <= bound <= MAX_LAG for bound, _ in upto[:-1]):
        return None
    lows = (0, *(int(bound) + 1 for bound, _ in upto[:-1]))
    below = (0.0, *(count for _, count in upto[:-1]))
    return LagHistogram(lows=lows, counts=tuple(count - less for (_, count), less in zip(upto, below, strict=True)))


def read_summary(summary: Mapping[str, Any]) -> LagHistogram | None:
    """What a run's summary says; None if it says nothing, or nothing that can be understood."""
    table = summary.get(SUMMARY_KEY)
    if not isinstance(table, dict) or not table:
        return None
    try:
        lows = tuple(int(name.partition("-")[0]) for name in table)
        counts = tuple(float(count) for count in table.values())
    except (ValueError, TypeError, AttributeError):
        return None
    is_rising = list(lows) == sorted(set(lows)) and lows[-1] <= MAX_LAG
    is_counted = all(math.isfinite(count) and count >= 0 for count in counts)
    return LagHistogram(lows=lows, counts=counts) if is_rising and is_counted else None


class LagWindow:
    """The last minute of a live run. Memory: a histogram for each look."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, LagHistogram]] = deque()

    def add(self, histogram: LagHistogram, now: float) -> None:
        """The newest look; one from before the window stays, to count from."""
        self._seen.append((now, histogram))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()

    def clear(self) -> None:
        """Begin again: forget everything that was counted."""
        self._seen.clear()

    def recent(self) -> LagHistogram | None:
        """What was counted within the window; since the count began, while there was one look only."""
        if not self._seen:
            return None
        newest = self._seen[-1][1]
        return newest.since(self._seen[0][1]) if len(self._seen) > 1 else newest


def view(histogram: LagHistogram | None, bound: float | None, *, is_recent: bool) -> dict[str, Any] | None:
    """Return a histogram as JSON, up to the last bucket that is filled or within the bound; None if it is empty."""
    if histogram is None or not sum(histogram.counts):
        return None
    wanted = [n for n, low in enumerate(histogram.lows) if histogram.counts[n] or (bound is not None and low <= bound)]
    size = max(wanted) + 1
    return {
        "lows": list(histogram.lows[:size]),
        "is_open": size == len(histogram.lows),
        "counts": list(histogram.counts[:size]),
        "bound": bound,
        "is_recent": is_recent,
    }
