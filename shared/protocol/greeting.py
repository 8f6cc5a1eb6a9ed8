"""What both links' clients do alike: say HELLO until it is answered, then PING. Pure: takes `now`, in seconds.

HELLO is said again after 0.2 s, then after twice as long each time, up to 2 s. Its answer bears its nonce.
"""

from collections.abc import Callable

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 2.0


class Greeting:
    """When HELLO is due, and with which nonce. `nonces` returns a random number that was not used before."""

    def __init__(self, nonces: Callable[[], int]) -> None:
        self.nonce = 0  # of the newest HELLO; 0 before the first
        self._nonces = nonces
        self._due_at = float("-inf")
        self._retry_s = FIRST_RETRY_S

    def begin(self, now: float, *, after_s: float = 0.0) -> None:
        """Say HELLO from `after_s` seconds on, with a new nonce."""
        self.renew()
        self._due_at, self._retry_s = now + after_s, FIRST_RETRY_S

    def renew(self) -> None:
        """Draw another nonce: answers to earlier HELLOs no longer count."""
        self.nonce = self._nonces()

    def is_due(self, now: float) -> bool:
        """Whether HELLO is to be said now."""
        return now >= self._due_at

    def said(self, now: float) -> None:
        """HELLO goes out: without an answer it is due again later, each time after twice as long."""
        self._due_at = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def put_off(self, now: float) -> None:
        """The answer was "not now": HELLO is due again after the present wait."""
        self._due_at = now + self._retry_s


class Heartbeat:
    """When PING is due, and which PONGs can be answers."""

    def __init__(self, now: float) -> None:
        self.pinged_ms = 0  # when the newest PING left; PONG repeats it
        self._due_at = now

    def begin(self, now: float) -> None:
        """PING is due at once: the connection or the session is new."""
        self._due_at = now

    def ping(self, now: float, beat_s: float) -> bool:
        """Whether PING is due now. If so it counts as sent, and the next one is due after `beat_s` seconds."""
        if now < self._due_at:
            return False
        self._due_at, self.pinged_ms = now + beat_s, int(now * 1000)
        return True

    def was_asked(self, sent_ms: int) -> bool:
        """Whether a PONG with this `sent_ms` answers a PING that was sent here."""
        return 0 < sent_ms <= self.pinged_ms
