"""The client side common to both links: HELLO until it is answered, then PING. Pure: takes `now`, in seconds.

HELLO is repeated after 0.2 s, then after twice as long each time, up to 2 s. Its answer carries its nonce.

Each wait is shortened by up to half, by a share that comes from the nonce. So a thousand actors that lost one inference
service at the same moment do not all send HELLO again at the same moments.
"""

from collections.abc import Callable

FIRST_RETRY_S = 0.2
MAX_RETRY_S = 2.0
SPREAD = 0.5  # share of a wait by which it is shortened at most
_STEPS = 997  # prime, so that every bit of the nonce counts


class Greeting:
    """Decides when HELLO is due, and with which nonce; `nonces` returns a random number not used before."""

    def __init__(self, nonces: Callable[[], int]) -> None:
        self.nonce = 0  # nonce of the newest HELLO; 0 before the first
        self._nonces = nonces
        self._due_at = float("-inf")
        self._retry_s = FIRST_RETRY_S

    def begin(self, now: float, *, after_s: float = 0.0) -> None:
        """Make HELLO due in `after_s` seconds or less, with a new nonce."""
        self.renew()
        self._due_at, self._retry_s = now + self._shorten(after_s), FIRST_RETRY_S

    def renew(self) -> None:
        """Draw another nonce, so that answers to earlier HELLOs no longer count."""
        self.nonce = self._nonces()

    def is_due(self, now: float) -> bool:
        """Whether HELLO is to be sent: for the first time, or again because its wait is over."""
        return now >= self._due_at

    def said(self, now: float) -> None:
        """Note that HELLO is being sent; it is due again after the wait, which doubles each time."""
        self._due_at = now + self._shorten(self._retry_s)
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def put_off(self, now: float) -> None:
        """Make HELLO due again after the present wait, because it was refused for now."""
        self._due_at = now + self._shorten(self._retry_s)

    def _shorten(self, wait_s: float) -> float:
        """Return this greeting's share of a wait, which differs from client to client."""
        return wait_s * (1.0 - SPREAD * (self.nonce % _STEPS) / _STEPS)


class Heartbeat:
    """Decides when PING is due, and which PONGs may answer one."""

    def __init__(self, now: float) -> None:
        self.pinged_ms = 0  # `sent_ms` of the newest PING, which its PONG repeats
        self._due_at = now

    def begin(self, now: float) -> None:
        """Make PING due at once, because the connection or the session is new."""
        self._due_at = now

    def ping(self, now: float, beat_s: float) -> bool:
        """Whether PING is due now. If so it counts as sent, and the next one is due after `beat_s` seconds."""
        if now < self._due_at:
            return False
        self._due_at, self.pinged_ms = now + beat_s, int(now * 1000)
        return True

    def was_asked(self, sent_ms: int) -> bool:
        """Whether a PONG with this `sent_ms` may answer one of these PINGs."""
        return 0 < sent_ms <= self.pinged_ms
