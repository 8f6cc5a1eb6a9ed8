"""Tracks the connections that were sent BYE(run_finished) and have not left yet. Pure: takes `now`, in seconds.

An environment that misses this BYE would dial for ever once its inference service is gone. If its connection broke at
that moment, it dials again soon and gets BYE as the answer to its HELLO.
"""

import math

DETACH_S = 3.0  # a connection closed for longer than this is not expected to come back


class GoodbyeTracker:
    """Connections by route, from their BYE(run_finished) until they have left. Owned by the loop."""

    def __init__(self) -> None:
        self._gone_at: dict[bytes, float] = {}  # when each connection was found closed; infinite while it is open
        self._gone_before: dict[bytes, float] = {}  # the same before BYE was last sent
        self._strangers: set[bytes] = set()  # connections that never had a session: they are not expected to dial again

    def bye_sent(self, route: bytes, *, is_stranger: bool = False) -> None:
        """Note that BYE is being sent. The connection counts as open unless `connection_closed` is called next."""
        self._gone_before[route] = self._gone_at.get(route, math.inf)
        self._gone_at[route] = math.inf
        if is_stranger:
            self._strangers.add(route)

    def bye_received(self, route: bytes) -> None:
        """Note that a connection answered with BYE: it has left."""
        self._gone_at.pop(route, None)

    def connection_closed(self, route: bytes, now: float) -> None:
        """Note that BYE could not be sent: the peer has left, or its connection broke and it may dial again."""
        if route in self._strangers:
            self.bye_received(route)
        else:
            self._gone_at[route] = min(now, self._gone_before.get(route, math.inf))

    def waiting(self, now: float) -> list[bytes]:
        """Return the connections that are still open, or may be replaced by a new one."""
        self._gone_at = {route: at for route, at in self._gone_at.items() if now - at <= DETACH_S}
        return list(self._gone_at)
