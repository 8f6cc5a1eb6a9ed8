"""Dealer and Router: the two ends of every link, with the socket options that the failure tests asked for.

Nothing here blocks and nothing here retries a message: a send says at once whether the message was taken, and the
protocols above number, acknowledge and repeat. High-water marks are a net under their credits, not flow control.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from shared.errors import ConfigError
from shared.net.addresses import check_address, lock_ipc_path, refuse_open_bind
from shared.net.reactor import Buffer, Channel, Reactor

MAX_FRAME_BYTES = 64 * 1024 * 1024
HIGH_WATER_MESSAGES = 1000
MAX_PENDING_CONNECTIONS = 1024
REOPEN_FIRST_S, REOPEN_LONGEST_S = 0.2, 5.0

COMMON_OPTIONS = {
    zmq.LINGER: 0,
    zmq.HEARTBEAT_IVL: 500,  # ms; a stopped peer is noticed after IVL + TIMEOUT
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.HEARTBEAT_TTL: 2000,
    zmq.HANDSHAKE_IVL: 3000,
    zmq.RCVHWM: HIGH_WATER_MESSAGES,
    zmq.SNDHWM: HIGH_WATER_MESSAGES,
}
DEALER_OPTIONS = {
    zmq.IMMEDIATE: 1,  # else requests queued for a dead server reach its successor
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,  # what a restarted service waits for its peers, ms
}
ROUTER_OPTIONS = {
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
    handshake failed), "lost" (was connected; then cut or silent) or "closed" (by us).
    """

    def __init__(
        self,
        reactor: Reactor,
        address: str,
        *,
        on_message: Callable[[list[bytes]], None],
        on_event: Callable[[str], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """Start dialling.

        Args:
          address: tcp://host:port or ipc://path.
          on_message: called with each message's frames.
          on_event: called with "connected", "disconnected" or "handshake_failed".
          max_frame_bytes: a peer that sends a larger frame is disconnected.
        """
        check_address(address)
        self.address = address
        self.state = "connecting"
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
        self._reopening = None
        context = self._reactor.context
        socket = context.socket(zmq.DEALER)
        _set_options(socket, COMMON_OPTIONS | DEALER_OPTIONS, self.address, self._max_frame_bytes)
        name = f"inproc://monitor-{next(_monitor_numbers)}"
        socket.monitor(name, _WATCHED)
        monitor = context.socket(zmq.PAIR)
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
            self.state = "connected"
            self._tell("connected")
        elif event == zmq.EVENT_DISCONNECTED:
            if self.state == "connected":
                self.state = "lost"
                self._tell("disconnected")
        elif event & _HANDSHAKE_FAILURES and self._reopening is None:
            # libzmq does not always dial again after a refusal: do it on a new socket.
            self._shut(0)
            self._reopening = self._reactor.loop.call_later(self._reopen_s, self._open)
            self._reopen_s = min(2 * self._reopen_s, REOPEN_LONGEST_S)
            self.state = "refused"
            self._tell("handshake_failed")

    def _tell(self, event: str) -> None:
        """Pass on an event."""
        if self._on_event is not None:
            self._on_event(event)


class Router:
    """The answering end of a link: many peers, each behind a route that the socket assigned."""

    def __init__(
        self,
        reactor: Reactor,
        bind: str,
        *,
        on_message: Callable[[bytes, list[bytes]], None],
        on_drained: Callable[[], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        """Bind.

        Args:
          bind: tcp://127.0.0.1:port (port 0: any free one) or ipc://path.
          on_message: called with a route and the message's frames.
          on_drained: called whenever the socket has just been emptied.
          max_frame_bytes: a peer that sends a larger frame is disconnected.
        Raises: ConfigError if the address is malformed, open to the network, or taken.
        """
        check_address(bind)
        refuse_open_bind(bind)
        self._on_message = on_message
        self._lock = lock_ipc_path(bind)
        socket = reactor.context.socket(zmq.ROUTER)
        try:
            _set_options(socket, COMMON_OPTIONS | ROUTER_OPTIONS, bind, max_frame_bytes)
            socket.bind(bind)
        except zmq.ZMQError as error:
            socket.close(0)
            self._unlock()
            if error.errno == zmq.EADDRINUSE:
                raise ConfigError(
                    f"{bind} is in use: stop the process that holds it, or choose another port"
                ) from error
            raise ConfigError(f"cannot bind {bind}: {error.strerror}") from error
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._channel: Channel = reactor.open(socket, self._deliver, on_drained)

    def send(self, route: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue one message for a peer, copied; False when it is gone or its queue is full."""
        return self._channel.send([route, *frames])

    def is_drained(self) -> bool:
        """Whether every message that has arrived was handed on: only then may silence be judged."""
        return self._channel.is_drained()

    def close(self, linger_ms: int = 0) -> None:
        """Unbind and close; what is queued may still leave for `linger_ms`. Idempotent."""
        self._channel.close(linger_ms)
        self._unlock()

    def _deliver(self, frames: list[bytes]) -> None:
        """Split the route off."""
        route = frames[0]
        del frames[0]
        self._on_message(route, frames)

    def _unlock(self) -> None:
        """Let go of an ipc path."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _set_options(
    socket: zmq.Socket[bytes], options: dict[zmq.SocketOption, int], address: str, max_frame_bytes: int
) -> None:
    """Everything that must be set before bind or connect."""
    for option, value in options.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.setsockopt(zmq.IPV6, int("[" in address))
