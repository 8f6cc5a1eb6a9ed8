"""Reports connections to a server that ended before their handshake was done: no ZeroMQ, no key, or another's key."""

from collections.abc import Callable

import zmq

from seedbed.shared.net.reactor import Reactor

FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class FailedHandshakes:
    """Watches one socket; made before it is bound. Owned by the reactor's loop."""

    def __init__(self, reactor: Reactor, socket: zmq.Socket[bytes], on_failed: Callable[[], None]) -> None:
        self._socket, self._on_failed = socket, on_failed
        name = f"inproc://handshakes-{id(self)}"
        socket.monitor(name, FAILED)
        monitor = reactor.context.socket(zmq.PAIR)
        monitor.setsockopt(zmq.LINGER, 0)
        monitor.setsockopt(zmq.RCVHWM, 0)  # a flood of failures must not stop libzmq's I/O thread
        monitor.connect(name)
        self._monitor = reactor.open(monitor, self._failed)

    def close(self) -> None:
        """Stop watching. Call it before the watched socket is closed. Idempotent."""
        if not self._monitor.is_closed:
            self._socket.disable_monitor()  # first: an event that nobody takes stops libzmq's I/O thread
            self._monitor.close()

    def _failed(self, _frames: list[bytes]) -> None:
        self._on_failed()
