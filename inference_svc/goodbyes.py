"""Who has been told that the run is over, and has not left yet. Pure: takes `now`, in seconds.

Nobody else can tell an environment so once its inference service is gone: it would dial on for ever. One whose
connection broke just then dials again within a moment, and hears it when it says HELLO.
"""

import math

DETACH_S = 3.0  # a connection closed for longer: nobody comes back for word


class GoodbyeTracker:
    """Connections by route, from their BYE(run_finished) until they have left. Owned by the loop."""

    def __init__(self) -> None:
        self._gone_at: dict[bytes, float] = {}  # infinite while the connection stands
        self._gone_before: dict[bytes, float] = {}  # the same before BYE was last sent
        self._strangers: set[bytes] = set()  # who never came in: nobody waits for them to dial again

    def told(self, route: bytes, *, is_stranger: bool = False) -> None:
        """BYE goes out on this connection. It stands, unless `closed` says otherwise next."""
        self._gone_before[route] = self._gone_at.get(route, math.inf)
        self._gone_at[route] = math.inf
        if is_stranger:
            self._strangers.add(route)

    def left(self, route: bytes) -> None:
        """A connection said BYE itself: it need not be told again."""
        self._gone_at.pop(route, None)

    def closed(self, route: bytes, now: float) -> None:
        """BYE found the connection closed (or full): it left without a word, or the word was lost with it."""
        if route in self._strangers:
            self.left(route)
        else:
            self._gone_at[route] = min(now, self._gone_before.get(route, math.inf))

    def waiting(self, now: float) -> list[bytes]:
        """The connections that are still there, or may be replaced by a new one."""
        self._gone_at = {route: at for route, at in self._gone_at.items() if now - at <= DETACH_S}
        return list(self._gone_at)
