"""Router: the answering end of every link, with the keys, floods and endless messages of its peers.

With keys it takes messages only of routes whose key it admits at that moment. Without keys it stays on this machine.
Nothing here blocks: a send says at once whether the message was taken.
"""

import ctypes
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net import connections
from seedbed.shared.net.addresses import check_address, lock_ipc_path, refuse_open_bind
from seedbed.shared.net.arrivals import Arrivals
from seedbed.shared.net.budget import STRANGERS, Payer, RateLimiter
from seedbed.shared.net.endless import EndlessWatch
from seedbed.shared.net.file_reserve import FileReserve
from seedbed.shared.net.keys import BindKeys
from seedbed.shared.net.reactor import Buffer, Channel, Reactor
from seedbed.shared.net.socket_options import COMMON_OPTIONS, MAX_FRAME_BYTES, ROUTER_OPTIONS, set_options
from seedbed.shared.net.zap import KEY, ROUTING_ID, USER_ID, KeyGuard
from seedbed.shared.protocol.rows import LARGEST_MESSAGE
from seedbed.shared.runtime import open_files
from seedbed.shared.runtime.memory import resident_bytes

MAX_ROUTES = 65_536  # whose owners, or usefulness, a router remembers; those forgotten are looked up again


class Router:
    """The answering end of a link: many peers, each behind a route that the socket assigned.

    Peers whose messages are useless get a small share of the server's time (`seedbed.shared.net.budget`), and peers
    whose message does not end are disconnected (`seedbed.shared.net.endless`).
    """

    def __init__(
        self,
        reactor: Reactor,
        bind: str,
        *,
        on_message: Callable[[bytes, list[bytes]], bool | None],
        on_drained: Callable[[], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: BindKeys | None = None,
        on_refused: Callable[[str, str], None] | None = None,
        on_revoked: Callable[[list[bytes]], None] | None = None,
        memory: Callable[[], int] = resident_bytes,
    ) -> None:
        """Bind.

        Args:
          bind: tcp://127.0.0.1:port (port 0: any free one) or ipc://path; with keys any address.
          on_message: called with a route and the message's frames; returns False if it moved nothing on: then its
            sender pays for the time.
          on_drained: called whenever the socket has just been emptied.
          max_frame_bytes: a peer that sends a larger frame is disconnected.
          keys: ours, and where to find those who may connect; none: this machine alone, and everyone on it.
          on_refused: called with a short reason, and who it was, when someone was not let in, or hung up on: "flood",
            "endless" or "open_files".
          on_revoked: called with the routes whose keys were revoked; no message of theirs comes any more.
          memory: returns the memory of this process, bytes.
        Raises: ConfigError if the address is malformed, open to the network without keys, or taken, or a key is wrong.
        """
        check_address(bind)
        if keys is None:
            refuse_open_bind(bind)
        self._on_message = on_message
        self._on_refused = on_refused or _nobody_asks
        self._on_revoked = on_revoked
        self._owners: dict[bytes, tuple[str, str]] = {}  # route → user id and public key, of those admitted
        self._useful: dict[bytes, None] = {}  # routes that have moved something on
        self._guard: KeyGuard | None = None
        if keys is not None:
            self._guard = KeyGuard(reactor, keys, on_refused=self._on_refused, on_changed=self._recheck_keys)
        self._lock: int | None = None
        _draw_routing_ids()
        socket = reactor.context.socket(zmq.ROUTER)
        self._reserve = FileReserve(lambda: self._on_refused(open_files.REFUSED, ""))
        self._arrivals = Arrivals(
            reactor,
            socket,
            on_accepted=lambda descriptor: self._reserve.accepted(descriptor, self.endpoint),
            on_failed=lambda: self._on_refused("handshake", ""),
        )
        try:
            self._lock = lock_ipc_path(bind)
            set_options(socket, COMMON_OPTIONS | ROUTER_OPTIONS, bind, max_frame_bytes)
            if self._guard is not None:
                self._guard.protect(socket)
            socket.bind(bind)
        except (zmq.ZMQError, ConfigError) as error:
            self._let_go()
            socket.close(0)
            if isinstance(error, ConfigError):
                raise
            if error.errno == zmq.EADDRINUSE:
                raise ConfigError(
                    f"{bind} is in use: stop the process that holds it, or choose another port"
                ) from error
            raise ConfigError(f"cannot bind {bind}: {error.strerror}") from error
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._limiter = RateLimiter(
            self._payer,
            hang_up=lambda: connections.hang_up(self._channel.sender(), self.endpoint),
            on_ended=lambda route: self._on_refused("flood", self.user_id(route)),
        )
        self._channel: Channel = reactor.open(socket, self._deliver, on_drained, self._limiter)
        self._watch = EndlessWatch(
            reactor.loop, self._channel, self.endpoint, LARGEST_MESSAGE * max_frame_bytes,
            on_ended=lambda: self._on_refused("endless", ""), memory=memory,
        )  # fmt: skip

    def send(self, route: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue one message for a peer, copied; False when it is gone or its queue is full."""
        return self._channel.send([route, *frames])

    def user_id(self, route: bytes) -> str:
        """`role:name` of the key behind a route that a message came from; empty without keys."""
        return self._owners.get(route, ("", ""))[0]

    def is_drained(self) -> bool:
        """Whether every message that has arrived was handed on: only then may silence be judged."""
        return self._channel.is_drained()

    def close(self, linger_ms: int = 0) -> None:
        """Unbind and close; what is queued may still leave for `linger_ms`. Idempotent."""
        self._let_go()
        self._watch.close()
        self._channel.close(linger_ms)

    def _deliver(self, frames: list[bytes]) -> bool:
        """Split the route off and hand the message on if its key is admitted; return whether it was useful."""
        route = frames[0]
        del frames[0]
        if self._guard is not None and route not in self._owners and not self._admit(self._guard, route):
            return False
        is_useful = self._on_message(route, frames) is not False
        if is_useful and route not in self._useful:
            _make_room(self._useful)
            self._useful[route] = None
            self._limiter.welcome(route)
        return is_useful

    def _payer(self, route: bytes) -> Payer:
        """Return who pays for useless messages over a route: itself once it was useful, before that its key or ""."""
        return route if route in self._useful else self._owners.get(route, ("", STRANGERS))[1]

    def _admit(self, guard: KeyGuard, route: bytes) -> bool:
        """Return whether the key behind a new route is admitted, and if so remember whose it is.

        A route is new when it is seen for the first time, or again after its key was revoked.
        """
        user_id, key = self._channel.peer_property(USER_ID), self._channel.peer_property(KEY)
        if not guard.access.admits(user_id, key):
            self._on_refused("revoked", user_id)
            return False
        if self._channel.peer_property(ROUTING_ID):  # others who know it could take its place
            self._on_refused("routing_id", user_id)
            return False
        _make_room(self._owners)
        self._owners[route] = user_id, key
        return True

    def _recheck_keys(self) -> None:
        """After the list of keys changed, forget the routes whose keys are no longer on it and call `on_revoked`."""
        if self._guard is None:  # nobody's key is asked for
            return
        access = self._guard.access
        revoked = [route for route, owner in self._owners.items() if not access.admits(*owner)]
        for route in revoked:
            del self._owners[route]
        if revoked and self._on_revoked is not None:
            self._on_revoked(revoked)

    def _let_go(self) -> None:
        """Close what watches the socket, and release the lock of an ipc path."""
        self._arrivals.close()
        if self._guard is not None:
            self._guard.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _draw_routing_ids() -> None:
    """Let the next ROUTER of this process give its peers ids that nobody can guess.

    libzmq counts them up from a number of the C library's rand(), which is the same in every process unless it is
    seeded. A peer that knows another's id can choose it for its own connection, and so take over the other's; one that
    knows the next id makes libzmq abort the process when it is given to somebody else.
    """
    ctypes.CDLL(None).srand(secrets.randbits(32))


def _make_room(routes: dict[bytes, Any]) -> None:
    """Forget the older half of the routes if there are MAX_ROUTES."""
    if len(routes) >= MAX_ROUTES:
        for former in list(routes)[: MAX_ROUTES // 2]:
            del routes[former]


def _nobody_asks(_reason: str, _peer: str) -> None:
    """Do nothing about a refusal: the default of `on_refused`."""
