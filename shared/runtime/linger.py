"""How long a service whose run is over goes on telling so to those who come late. Pure: takes `now`, in seconds.

Where services are started together but not by one launcher, some find the run over before they ever met it; nobody else
could tell them to leave.
"""

QUIET_SHARE = 0.125  # of the longest time: nobody came for so long, nobody else will


class LingerTimer:
    """Owned by the loop of the service that stays. Over at once if the longest time is 0."""

    def __init__(self, longest_s: float, now: float) -> None:
        self._longest_s, self._began_at = longest_s, now
        self._heard_at: float | None = None

    def heard(self, now: float) -> None:
        """Somebody came and was told that the run is over: wait on for others."""
        self._heard_at = now

    def is_over(self, now: float) -> bool:
        """Whether to leave: all seem to have come, or nobody does."""
        if now - self._began_at >= self._longest_s:
            return True
        return self._heard_at is not None and now - self._heard_at >= QUIET_SHARE * self._longest_s
