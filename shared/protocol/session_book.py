"""The sessions that one end has given to its peers: what both links do alike. Pure: takes `now`, in seconds.

- Routes (the ROUTER's ids of connections) belong to connections, not to peers: the newest message of a session wins.
- Whatever valid comes over a connection keeps all its sessions.
- A session whose connection stays open and silent for its lease is over.
- One whose connection is closed may come back on another: within `detach_s` where that is given, else within its lease.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from seedbed.shared.protocol.messages import Error


@dataclass(slots=True, eq=False, kw_only=True)
class LeasedSession:
    """What a session has to do with its connection. Written by its book alone."""

    id: int = 0  # 0: it is in no book
    route: bytes = b""
    lease_s: float = 0.0
    heard_at: float = 0.0
    detached_at: float | None = None  # since when its connection is known to be closed

    @property
    def is_reachable(self) -> bool:
        """Whether its connection is open, as far as is known."""
        return self.detached_at is None


S = TypeVar("S", bound=LeasedSession)


class SessionBook(Generic[S]):
    """All sessions of one end, by their id and by their connection. One thread; bounded by whoever adds them."""

    def __init__(self, detach_s: float | None = None) -> None:
        """`detach_s`: how long a session outlives its connection, seconds; None: as long as its lease."""
        self.sessions: dict[int, S] = {}
        self._by_route: dict[bytes, dict[int, S]] = {}
        self._detach_s = detach_s

    def add(self, session: S) -> None:
        """Take in a session that has an id and a route."""
        self.sessions[session.id] = session
        self._by_route.setdefault(session.route, {})[session.id] = session

    def remove(self, session: S) -> None:
        """Forget a session that is here."""
        del self.sessions[session.id]
        self._leave_route(session)

    def reached(self, session: S, route: bytes, now: float) -> None:
        """A message of this session came over this connection, which is its connection from now on."""
        session.heard_at, session.detached_at = now, None
        if session.route != route:
            self._leave_route(session)
            session.route = route
            self._by_route.setdefault(route, {})[session.id] = session

    def heard(self, route: bytes, now: float) -> None:
        """Anything valid came from this connection: its sessions live."""
        for session in self._by_route.get(route, {}).values():
            session.heard_at, session.detached_at = now, None

    def at(self, route: bytes) -> list[S]:
        """The sessions of one connection."""
        return list(self._by_route.get(route, {}).values())

    def routes(self) -> list[bytes]:
        """The connections that have sessions."""
        return list(self._by_route)

    def named(self, session: int, route: bytes) -> list[S]:
        """The sessions that a BYE over this connection means: the named one, or with 0 all of the connection."""
        here = self._by_route.get(route, {})
        return list(here.values()) if session == 0 else [here[session]] if session in here else []

    def of(self, routes: Iterable[bytes]) -> list[S]:
        """The sessions of these connections."""
        return [session for route in dict.fromkeys(routes) for session in self.at(route)]

    def closed(self, route: bytes, now: float) -> list[S]:
        """A send found this connection closed: nothing more is sent there. Returns the sessions that were on it."""
        detached = [session for session in self.at(route) if session.is_reachable]
        for session in detached:
            session.detached_at = now
        return detached

    def over(self, now: float) -> list[S]:
        """The sessions whose time is up; they are removed by whoever asked."""
        return [session for session in self.sessions.values() if self._is_over(session, now)]

    def _is_over(self, session: S, now: float) -> bool:
        if session.detached_at is not None and self._detach_s is not None:
            return now - session.detached_at > self._detach_s
        return now - session.heard_at > session.lease_s

    def _leave_route(self, session: S) -> None:
        here = self._by_route[session.route]
        del here[session.id]
        if not here:
            del self._by_route[session.route]


def revoked(session: int, keys: str) -> Error:
    """What a session hears whose key was revoked. `keys`: where its new key would be made."""
    return Error(
        code="revoked", scope="session", session=session, retryable=False,
        message="the key of this connection was revoked", hint=f"ask for a new one where {keys}",
    )  # fmt: skip
