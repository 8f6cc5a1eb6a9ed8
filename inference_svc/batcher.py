"""Decides when to launch a forward pass, and with which groups.

While the device is busy, requests accumulate; when it is free, everything queued runs. Only an idle device that has
requests of few of the active groups waits a little, so that many small groups do not become many small batches.
"""

from typing import Generic, TypeVar

T = TypeVar("T")

SMALL_FLEET_GROUPS = 4  # up to this many active groups, waiting for more only costs latency


class Batcher(Generic[T]):
    """Groups whose rows are ready, in order of arrival. Owned by the service's loop; bounded by the sessions."""

    def __init__(self, idle_deadline_s: float) -> None:
        self._idle_deadline_s = idle_deadline_s
        self._ready: dict[T, float] = {}  # group → when it was added, seconds
        self.is_busy = False

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, group: T, now: float) -> None:
        """Queue a group whose rows are ready."""
        self._ready.setdefault(group, now)

    def discard(self, group: T) -> bool:
        """Forget a group that no longer waits for actions; return whether it did."""
        return self._ready.pop(group, None) is not None

    def launch_at(self, num_active: int, now: float) -> float | None:
        """Return when the next batch should start: `now`, or soon; None while nothing is queued or the device is busy.

        Args:
          num_active: how many groups could be part of this batch, those that are queued included.
        """
        if self.is_busy or not self._ready:
            return None
        if num_active <= SMALL_FLEET_GROUPS or 2 * len(self._ready) >= num_active:
            return now
        oldest = next(iter(self._ready.values()))
        return max(now, oldest + self._idle_deadline_s)

    def take(self, now: float) -> list[tuple[T, float]]:
        """Return all queued groups, each with its wait in seconds. The device counts as busy until `finished`."""
        batch = [(group, now - since) for group, since in self._ready.items()]
        self._ready.clear()
        self.is_busy = bool(batch)
        return batch

    def finished(self) -> None:
        """Note that the running batch has ended."""
        self.is_busy = False
