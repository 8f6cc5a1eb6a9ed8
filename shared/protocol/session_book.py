"""The sessions that a server has given to its peers, for both links. Pure: takes `now`, in seconds.

- A route (the ROUTER's id of a connection) is not a peer: a session belongs to the route of its newest message.
- Any valid message over a connection renews the leases of all its sessions.
- A session is over once its connection was silent for its lease.
- A session whose connection is closed may return on another: within `detach_s` if that is given, else within its lease.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from seedbed.shared.protocol.messages import Error


@dataclass(slots=True, eq=False, kw_only=True)
class LeasedSession:
    """The part of a session that concerns its connection and lease. Only its `SessionBook` changes it."""

    id: int = 0  # 0: no session
    route: bytes = b""
    lease_s: float = 0.0
    heard_at: float = 0.0
    detached_at: float | None = None  # when its connection was found closed; None: open

    @property
    def is_reachable(self) -> bool:
        """Whether its connection is not known to be closed."""
        return self.detached_at is None


S = TypeVar("S", bound=LeasedSession)


class SessionBook(Generic[S]):
    """All sessions of a server by id and by connection. One thread; the caller bounds their number."""

    def __init__(self, detach_s: float | None = None) -> None:
        """`detach_s`: how long a session outlives its connection, seconds; None: as long as its lease."""
        self.sessions: dict[int, S] = {}
        self._by_route: dict[bytes, dict[int, S]] = {}
        self._detach_s = detach_s
        self.num_detached = 0  # number of sessions whose connection is known to be closed

    def add(self, session: S) -> None:
        """Add a session that has an id and a route."""
        self.sessions[session.id] = session
        self._by_route.setdefault(session.route, {})[session.id] = session

    def remove(self, session: S) -> None:
        """Remove a session that was added."""
        self.num_detached -= not session.is_reachable
        del self.sessions[session.id]
        self._leave_route(session)

    def move_to(self, session: S, route: bytes, now: float) -> None:
        """Renew a session's lease by a message over this connection, which is its connection from now on."""
        session.heard_at = now
        self._attach(session)
        if session.route != route:
            self._leave_route(session)
            session.route = route
            self._by_route.setdefault(route, {})[session.id] = session

    def renew(self, route: bytes, now: float) -> None:
        """Renew the leases of all sessions of a connection."""
        for session in self._by_route.get(route, {}).values():
            session.heard_at = now
            self._attach(session)

    def on_route(self, route: bytes) -> list[S]:
        """Return the sessions of one connection."""
        return list(self._by_route.get(route, {}).values())

    def routes(self) -> list[bytes]:
        """Return the connections that have sessions."""
        return list(self._by_route)

    def silent_routes(self, since: float) -> list[bytes]:
        """Return the connections with sessions, none of which has been heard since that time."""
        return [route for route, here in self._by_route.items() if max(item.heard_at for item in here.values()) < since]

    def named(self, session: int, route: bytes) -> list[S]:
        """Return the sessions that a BYE over this connection names: one, or with 0 all of the connection."""
        here = self._by_route.get(route, {})
        return list(here.values()) if session == 0 else [here[session]] if session in here else []

    def on_routes(self, routes: Iterable[bytes]) -> list[S]:
        """Return the sessions of these connections."""
        return [session for route in dict.fromkeys(routes) for session in self.on_route(route)]

    def closed(self, route: bytes, now: float) -> list[S]:
        """Note that a connection is closed, and return the sessions that were open on it."""
        detached = [session for session in self.on_route(route) if session.is_reachable]
        for session in detached:
            session.detached_at = now
        self.num_detached += len(detached)
        return detached

    def expired(self, now: float) -> list[S]:
        """Return the sessions that are over; the caller removes them."""
        return [session for session in self.sessions.values() if self._is_over(session, now)]

    def _attach(self, session: S) -> None:
        if session.detached_at is not None:
            session.detached_at = None
            self.num_detached -= 1

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
    """Return the ERROR for a session whose key was revoked; `keys` says where a new key is made."""
    return Error(
        code="revoked", scope="session", session=session, retryable=False,
        message="the key of this connection was revoked", hint=f"ask for a new one where {keys}",
    )  # fmt: skip
