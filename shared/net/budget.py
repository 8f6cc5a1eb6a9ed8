"""Limits how much of a server's time one peer may waste.

A useful message (a new step or unroll, a request for new weights) is free. Any other message, such as a greeting, a
question, a repetition or an invalid one, is charged with the time that it took, including the time in which libzmq's
thread decrypted it. Every payer has a budget of `BURST_S`, which refills at `SHARE` of the clock. While it is empty,
the payer's messages are dropped unread, and a connection that keeps sending is ended.

A connection that has sent a useful message pays for itself. Before that, all connections of a key share one budget, and
without keys all of them do, since a new connection costs a peer nothing. The cost of the greeting is given back at the
first useful message, so that many actors may return at once.
"""

from collections.abc import Callable, Mapping
from time import perf_counter

SHARE = 0.03  # of the server's time
BURST_S = 1.0
OWN_S, GREETING_S = 0.05, 0.05  # time that a connection begins with; most that is given back for its greeting
PAUSE_S = 0.02  # time that a payer without any left must have regained before it is read again
PRUNE_EVERY_S = 1.0
MAX_PAYERS = 65_536  # the payers charged longest ago are forgotten first
DECRYPTION_S = 2e-9  # of libzmq's thread for each byte that it receives
DROPPED_MESSAGES, DROPPED_BYTES = 200, 1 << 20  # a connection is ended when so much of it was dropped
ENDED_AGAIN_S = 2.0  # for so long it is not ended again: what it had sent before is still arriving
STRANGERS = ""

Payer = str | bytes


class Budget:
    """The budgets of all payers of one server. Owned by its loop; bounded by `MAX_PAYERS`."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._accounts: dict[Payer, tuple[float, float]] = {}  # time that was left, seconds, and when
        self.barred: dict[Payer, float] = {}  # whose messages are not read, and until when; always this object
        self._prune_at = 0.0

    def admits(self, payer: Payer) -> bool:
        """Whether this payer's messages are read now."""
        until = self.barred.get(payer)
        if until is None:
            return True
        if self._clock() < until:
            return False
        del self.barred[payer]
        return True

    def charge(self, payer: Payer, seconds: float) -> None:
        """Charge a payer with the time that a useless message took; a negative time is given back."""
        now = self._clock()
        left, since = self._accounts.pop(payer, (BURST_S if isinstance(payer, str) else OWN_S, now))
        left = min(BURST_S, left + SHARE * (now - since)) - seconds
        self._accounts[payer] = left, now  # the newest last
        if self.barred and now >= self._prune_at:  # those that were barred and never came back
            self._prune_at = now + PRUNE_EVERY_S
            for former in [barred for barred, until in self.barred.items() if until <= now]:
                del self.barred[former]
        if left <= 0:
            self.barred[payer] = now + (PAUSE_S - left) / SHARE
        elif seconds < 0:
            self.barred.pop(payer, None)
        if len(self._accounts) > MAX_PAYERS:
            for former in list(self._accounts)[: MAX_PAYERS // 2]:
                del self._accounts[former]


class RateLimiter:
    """Lets a router's messages through, or drops them and at last ends their connection. Owned by the router's loop.

    Args:
      payer: returns who pays for a route: the route itself once it was useful, before that its key, or "" without keys.
      hang_up: ends the connection that the newest message came over; returns whether that succeeded.
      on_ended: called with a route when its connection was ended.
    """

    def __init__(
        self, payer: Callable[[bytes], Payer], hang_up: Callable[[], bool], on_ended: Callable[[bytes], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:  # fmt: skip
        self._budget = Budget(clock)
        self.barred: Mapping[Payer, float] = self._budget.barred
        self._payer, self._hang_up, self._on_ended, self._clock = payer, hang_up, on_ended, clock
        self._dropped: dict[bytes, tuple[int, int]] = {}  # messages and bytes of each route that is being dropped
        self._ended: dict[bytes, float] = {}  # when
        self._greetings: dict[bytes, tuple[Payer, float]] = {}  # route → who has paid for it so far, and how much

    def admits(self, route: bytes) -> bool:
        """Whether a message over this route is to be read."""
        return not self.barred or self._budget.admits(self._payer(route))

    def charge(self, route: bytes, seconds: float, size: int = 0) -> None:
        """Charge a route's payer for a useless message of `size` bytes whose handling took so long."""
        payer = self._payer(route)
        seconds += size * DECRYPTION_S
        if isinstance(payer, str):
            _, paid = self._greetings.pop(route, (payer, 0.0))
            self._greetings[route] = payer, min(GREETING_S, paid + seconds)
            if len(self._greetings) > MAX_PAYERS:
                del self._greetings[next(iter(self._greetings))]
        self._budget.charge(payer, seconds)
        if not self.barred and self._dropped:
            self._dropped.clear()

    def welcome(self, route: bytes) -> None:
        """Let a route pay for itself from now on, because it was useful, and give back what its greeting cost."""
        payer, paid = self._greetings.pop(route, (STRANGERS, 0.0))
        if paid:
            self._budget.charge(payer, -paid)

    def drop(self, route: bytes, size: int) -> None:
        """Count a message of `size` bytes that was not read, and end the connection after too many of them."""
        messages, octets = self._dropped.get(route, (0, 0))
        messages, octets = messages + 1, octets + size
        self._dropped[route] = messages, octets
        if messages < DROPPED_MESSAGES and octets < DROPPED_BYTES:
            return
        del self._dropped[route]
        now = self._clock()
        if now - self._ended.get(route, float("-inf")) > ENDED_AGAIN_S and self._hang_up():
            self._ended = {known: at for known, at in self._ended.items() if now - at < ENDED_AGAIN_S}
            self._ended[route] = now
            self._on_ended(route)
