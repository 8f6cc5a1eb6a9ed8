"""Dealer: the dialling end of every link.

With keys the link is CURVE: encrypted, both ends known to each other. Without keys it stays on this machine. Nothing
here blocks and nothing here retries a message: a send says at once whether the message was taken, and the protocols
above number, acknowledge and repeat.
"""

import asyncio
import errno
import itertools
import random
from collections.abc import Callable, Sequence

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.addresses import check_address, refuse_open_dial
from seedbed.shared.net.keys import DialKeys
from seedbed.shared.net.reactor import Buffer, Reactor
from seedbed.shared.net.socket_options import COMMON_OPTIONS, DEALER_OPTIONS, MAX_FRAME_BYTES, set_options

REOPEN_FIRST_S, REOPEN_LONGEST_S = 0.2, 5.0
RECONNECT_FIRST_MS, RECONNECT_LONGEST_MS = 50, 500  # what a restarted service waits for its peers

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
        set_options(socket, COMMON_OPTIONS | DEALER_OPTIONS, self.address, self._max_frame_bytes)
        # libzmq's own waits are the same for all, so that peers that lost one server would dial at the same moments.
        socket.setsockopt(zmq.RECONNECT_IVL, round(RECONNECT_FIRST_MS * _spread()))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, round(RECONNECT_LONGEST_MS * _spread()))
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
        self._reopening = self._reactor.loop.call_later(self._reopen_s * _spread(), self._reopen)
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


def _spread() -> float:
    """Return a random factor, 0.5 to 1, for a wait: so that many peers that wait alike do not all act at once."""
    return random.uniform(0.5, 1.0)
