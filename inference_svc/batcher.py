"""When to launch a forward pass, and with whom.

While the device is busy, requests accumulate; when it is free, everything queued runs. Only an idle device that sees
few of many active groups waits a little, so that a flood of small groups does not become a flood of small batches.
"""

from typing import Generic, TypeVar

T = TypeVar("T")

SMALL_FLEET_GROUPS = 4  # up to this many active groups, waiting for more only costs latency


class Batcher(Generic[T]):
    """Groups whose rows are ready, in order of arrival. Owned by the service's loop; bounded by the sessions."""

    def __init__(self, idle_deadline_s: float) -> None:
        self._idle_deadline_s = idle_deadline_s
        self._ready: dict[T, float] = {}  # group → since when
        self.is_busy = False

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, group: T, now: float) -> None:
        """A group waits for actions from now on."""
        self._ready.setdefault(group, now)

    def discard(self, group: T) -> None:
        """Forget a group that no longer waits for actions."""
        self._ready.pop(group, None)

    def launch_at(self, num_active: int, now: float) -> float | None:
        """When the next batch should start: `now`, a moment soon, or None while there is nothing to run or no device.

        `num_active` is how many groups may still send rows before this batch has to start.
        """
        if self.is_busy or not self._ready:
            return None
        if num_active <= SMALL_FLEET_GROUPS or 2 * len(self._ready) >= num_active:
            return now
        oldest = next(iter(self._ready.values()))
        return max(now, oldest + self._idle_deadline_s)

    def take(self, now: float) -> list[tuple[T, float]]:
        """Everything queued, each with its wait in seconds; the device counts as busy until `finished`."""
        batch = [(group, now - since) for group, since in self._ready.items()]
        self._ready.clear()
        self.is_busy = bool(batch)
        return batch

    def finished(self) -> None:
        """The batch that was running has ended."""
        self.is_busy = False
