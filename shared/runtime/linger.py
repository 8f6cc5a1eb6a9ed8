"""Decides how long a service stays after its run is over, to tell late peers so. Pure: takes `now`, in seconds.

Where services are started together but not by one launcher, some connect only when the run is over; nobody else could
tell them to end.
"""

QUIET_SHARE = 0.125  # of the longest time: if no peer came for so long after one did, no other is expected


class LingerTimer:
    """Measures how long a service is to stay after its run. Owned by its loop. A longest time of 0 is over at once."""

    def __init__(self, longest_s: float, now: float) -> None:
        self._longest_s, self._began_at = longest_s, now
        self._heard_at: float | None = None

    def heard(self, now: float) -> None:
        """Note that a peer came and was told that the run is over, so that others may follow."""
        self._heard_at = now

    def is_over(self, now: float) -> bool:
        """Whether the service may end: the longest time has passed, or no peer came for a while after the last one."""
        if now - self._began_at >= self._longest_s:
            return True
        return self._heard_at is not None and now - self._heard_at >= QUIET_SHARE * self._longest_s
