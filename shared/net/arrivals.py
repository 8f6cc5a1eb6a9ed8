"""Reports connections that a server has accepted, and those that ended before their handshake was done.

A handshake fails if the peer speaks no ZeroMQ, has no key, or has another's.
"""

from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from seedbed.shared.net.reactor import Reactor

FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class Arrivals:
    """Watches one socket; made before it is bound. Owned by the reactor's loop.

    Args:
      on_accepted: called with the descriptor of each connection that was accepted.
      on_failed: called for each handshake that failed.
    """

    def __init__(
        self, reactor: Reactor, socket: zmq.Socket[bytes], on_accepted: Callable[[int], None],
        on_failed: Callable[[], None],
    ) -> None:  # fmt: skip
        self._socket, self._on_accepted, self._on_failed = socket, on_accepted, on_failed
        name = f"inproc://arrivals-{id(self)}"
        socket.monitor(name, FAILED | zmq.EVENT_ACCEPTED)
        monitor = reactor.context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, 0)  # a flood of events must not stop libzmq's I/O thread
        monitor.connect(name)
        self._monitor = reactor.open(monitor, self._take)

    def close(self) -> None:
        """Stop watching. Call it before the watched socket is closed. Idempotent."""
        if not self._monitor.is_closed:
            self._socket.disable_monitor()  # first: an event that nobody takes stops libzmq's I/O thread
            self._monitor.close()

    def _take(self, frames: list[bytes]) -> None:
        event = parse_monitor_message(frames)
        if event["event"] == zmq.EVENT_ACCEPTED:
            self._on_accepted(event["value"])
        else:
            self._on_failed()
