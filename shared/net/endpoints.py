"""Dealer and Router: the two ends of every link, with the socket options that the failure tests asked for.

With keys the link is CURVE: encrypted, both ends known to each other, and the router takes messages only of routes
whose key it admits at that moment. Without keys it stays on this machine.

Nothing here blocks and nothing here retries a message: a send says at once whether the message was taken, and the
protocols above number, acknowledge and repeat. High-water marks are a net under their credits, not flow control.
"""

import asyncio
import errno
import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedbed.shared.errors import ConfigError
from seedbed.shared.net import connections
from seedbed.shared.net.addresses import check_address, lock_ipc_path, refuse_open_bind, refuse_open_dial
from seedbed.shared.net.arrivals import Arrivals
from seedbed.shared.net.budget import STRANGERS, Payer, RateLimiter
from seedbed.shared.net.endless import EndlessWatch
from seedbed.shared.net.file_reserve import FileReserve
from seedbed.shared.net.keys import BindKeys, DialKeys
from seedbed.shared.net.reactor import Buffer, Channel, Reactor
from seedbed.shared.net.zap import KEY, USER_ID, KeyGuard
from seedbed.shared.protocol.rows import LARGEST_MESSAGE
from seedbed.shared.runtime import open_files
from seedbed.shared.runtime.memory import resident_bytes

MAX_FRAME_BYTES = 64 * 1024 * 1024
HIGH_WATER_MESSAGES = 1000
ROUTER_QUEUE_MESSAGES = 200  # of each connection, unread; then its peer waits. Bounds what a flood of large ones holds
MAX_PENDING_CONNECTIONS = 4096  # the kernel takes net.core.somaxconn of them at most
MAX_ROUTES = 65_536  # whose owners, or usefulness, a router remembers; those forgotten are looked up again
REOPEN_FIRST_S, REOPEN_LONGEST_S = 0.2, 5.0

COMMON_OPTIONS = {
    zmq.LINGER: 0,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.SNDHWM: HIGH_WATER_MESSAGES,
}
DEALER_OPTIONS = {
    zmq.RCVHWM: HIGH_WATER_MESSAGES,
    zmq.HEARTBEAT_IVL: 500,  # ms; a stopped server is noticed after IVL + TIMEOUT
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.HEARTBEAT_TTL: 2000,  # after which the other side gives up a dealer that has stopped
    zmq.IMMEDIATE: 1,  # else requests queued for a dead server reach its successor
}
RECONNECT_FIRST_MS, RECONNECT_LONGEST_MS = 50, 500  # what a restarted service waits for its peers
# No heartbeats of its own: libzmq aborts the process if one is due on a connection that broke while its receive queue
# was full, which any peer can bring about. Peers' silence is judged by the protocols, and broken lines by TCP.
ROUTER_OPTIONS = {
    zmq.RCVHWM: ROUTER_QUEUE_MESSAGES,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,  # s
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.ROUTER_MANDATORY: 1,  # else unroutable replies vanish without an error
    zmq.ROUTER_HANDOVER: 1,
    zmq.BACKLOG: MAX_PENDING_CONNECTIONS,
}

_HANDSHAKE_FAILURES = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_WATCHED = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILURES
_monitor_numbers = itertools.count()


class Dealer:
    """The dialling end of a link: one connection to one address, redialled for ever.

    `state` says what a wait on this peer is a wait for: "connecting" (never answered), "connected", "refused" (the
    handshake failed: `refusal` says why), "lost" (was connected; then cut or silent) or "closed" (by us).
    """

    def __init__(
        self,
        reactor: Reactor,
        address: str,
        *,
        on_message: Callable[[list[bytes]], None],
        on_event: Callable[[str], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: DialKeys | None = None,
    ) -> None:
        """Start dialling.

        Args:
          address: tcp://host:port or ipc://path.
          on_message: called with each message's frames.
          on_event: called with "connected", "disconnected" or "handshake_failed".
          max_frame_bytes: a peer that sends a larger frame is disconnected.
          keys: ours and the server's, read from their files again after a refusal; none: the address must be on this
            machine.
        Raises: ConfigError if the address is malformed, or across the network without keys.
        """
        check_address(address)
        if keys is None:
            refuse_open_dial(address)
        self.address = address
        self.state = "connecting"
        self.refusal = ""
        self._keys = keys
        self._keys_problem = ""  # why the files of the keys could not be read again
        self._reactor = reactor
        self._on_message, self._on_event = on_message, on_event
        self._max_frame_bytes = max_frame_bytes
        self._reopen_s = REOPEN_FIRST_S
        self._reopening: asyncio.TimerHandle | None = None
        self._open()

    @property
    def is_connected(self) -> bool:
        """Whether the handshake is done and the connection stands."""
        return self.state == "connected"

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Queue one message, copied; False when not connected or full."""
        # Around a disconnection libzmq still takes messages for a moment, and drops them with the connection.
        return self.state == "connected" and self._channel.send(frames)

    def close(self, linger_ms: int = 0) -> None:
        """Hang up; what is queued may still leave for `linger_ms`. Idempotent."""
        if self._reopening is not None:
            self._reopening.cancel()
        self.state = "closed"
        self._shut(linger_ms)

    def _open(self) -> None:
        """Make socket and monitor, and dial."""
        context = self._reactor.context
        sockets: list[zmq.Socket[bytes]] = []
        try:
            sockets += [context.socket(zmq.DEALER)]
            sockets += [context.socket(zmq.PAIR)]
        except zmq.ZMQError as error:
            for made in sockets:
                made.close(0)
            if error.errno != errno.EMFILE or self.state == "connecting":
                raise
            self.refusal = "this process has no file descriptor for a connection"
            self._open_later()
            return
        socket, monitor = sockets
        _set_options(socket, COMMON_OPTIONS | DEALER_OPTIONS, self.address, self._max_frame_bytes)
        # libzmq's own waits are the same for all, so that peers that lost one server would dial at the same moments.
        socket.setsockopt(zmq.RECONNECT_IVL, round(RECONNECT_FIRST_MS * spread()))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, round(RECONNECT_LONGEST_MS * spread()))
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.pair.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.pair.secret.encode())
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.server.public.encode())
        name = f"inproc://monitor-{next(_monitor_numbers)}"
        socket.monitor(name, _WATCHED)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.connect(name)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            monitor.close(0)
            socket.close(0)
            raise ConfigError(f"cannot dial {self.address}: {error.strerror}") from error
        self._channel = self._reactor.open(socket, self._on_message)
        self._monitor = self._reactor.open(monitor, self._watch)

    def _open_later(self) -> None:
        """Open again after a wait, which doubles each time."""
        self._reopening = self._reactor.loop.call_later(self._reopen_s * spread(), self._reopen)
        self._reopen_s = min(2 * self._reopen_s, REOPEN_LONGEST_S)

    def _reopen(self) -> None:
        """Open again with the keys as their files are now; with the former ones if those cannot be read."""
        self._reopening, self._keys_problem = None, ""
        try:
            self._keys = self._keys and self._keys.reread()
        except ConfigError as error:
            self._keys_problem = f"; and its key cannot be read again: {error}"
        self._open()

    def _shut(self, linger_ms: int) -> None:
        """Stop the events, then close both sockets.

        In this order: libzmq's I/O thread sends an event blocking and under a lock, so that one more event with nobody
        to take it (the peer leaves as we do) stops that thread, and whoever waits for the lock, for ever.
        """
        if not self._channel.is_closed:
            self._channel.socket.disable_monitor()
            self._monitor.close()
            self._channel.close(linger_ms)

    def _watch(self, frames: list[bytes]) -> None:
        """Turn libzmq's socket events into ours."""
        event = parse_monitor_message(frames)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._reopen_s = REOPEN_FIRST_S
            self.state, self.refusal = "connected", ""
            self._tell("connected")
        elif event == zmq.EVENT_DISCONNECTED:
            if self.state == "connected":
                self.state = "lost"
                self._tell("disconnected")
        elif event & _HANDSHAKE_FAILURES and self._reopening is None:
            # libzmq does not always dial again after a refusal: do it on a new socket.
            self._shut(0)
            self._open_later()
            self.state, self.refusal = "refused", self._explain(event)
            self._tell("handshake_failed")

    def _explain(self, event: int) -> str:
        """Why the handshake failed, for people: libzmq tells a refused key apart, and little else."""
        if self._keys is None:
            return (
                "the handshake failed: this service has no keys (runtime.keys) and the other side may ask for one, "
                "or the other side has no room for one more connection"
            )
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            why = f"key refused: {self._keys.pair.user_id} was revoked, never admitted there, or has the wrong role"
        else:
            why = (
                f"the handshake failed: the other side has no keys, or is not the {self._keys.server.role} "
                f"whose public key this service was given, or has no room for one more connection"
            )
        return why + self._keys_problem

    def _tell(self, event: str) -> None:
        """Call `on_event`, if there is one."""
        if self._on_event is not None:
            self._on_event(event)


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
            _set_options(socket, COMMON_OPTIONS | ROUTER_OPTIONS, bind, max_frame_bytes)
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


def _make_room(routes: dict[bytes, Any]) -> None:
    """Forget the older half of the routes if there are MAX_ROUTES."""
    if len(routes) >= MAX_ROUTES:
        for former in list(routes)[: MAX_ROUTES // 2]:
            del routes[former]


def _nobody_asks(_reason: str, _peer: str) -> None:
    """Do nothing about a refusal: the default of `on_refused`."""


def spread() -> float:
    """Return a random factor, 0.5 to 1, for a wait: so that many peers that wait alike do not all act at once."""
    return random.uniform(0.5, 1.0)


def _set_options(
    socket: zmq.Socket[bytes], options: dict[zmq.SocketOption, int], address: str, max_frame_bytes: int
) -> None:
    """Set all socket options that must be set before bind or connect."""
    for option, value in options.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.IPV6, int("[" in address))
