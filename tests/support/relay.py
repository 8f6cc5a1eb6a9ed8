"""A TCP relay that can be cut: connections stay open and nothing passes, as when a cable is pulled."""

import contextlib
import selectors
import socket
import threading

CHUNK_BYTES = 65536


class Relay:
    """Forwards a loopback port to another. A context manager with one thread; memory: one chunk at a time."""

    def __init__(self, target: str) -> None:
        """`target`: tcp://host:port."""
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._wake_up, self._waker = socket.socketpair()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._passes = True
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> "Relay":
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_up, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._waker.send(b"x")
        self._thread.join(10)
        for end in (*self._peers, self._listener, self._wake_up, self._waker):
            end.close()
        self._selector.close()

    def cut(self) -> None:
        """Nothing passes from now on; what was under way is lost with its connection."""
        self._passes = False
        self._waker.send(b"x")

    def heal(self) -> None:
        """New connections pass again; the old ones are closed."""
        self._passes = True
        self._waker.send(b"x")

    def _run(self) -> None:
        was_passing = True
        while not self._is_closed:
            for key, _ in self._selector.select():
                ready = key.fileobj
                assert isinstance(ready, socket.socket)
                if ready is self._wake_up:
                    ready.recv(64)
                    if self._passes and not was_passing:
                        for end in tuple(self._peers):
                            self._hang_up(end)
                    elif not self._passes and was_passing:
                        for end in self._peers:
                            self._selector.unregister(end)
                    was_passing = self._passes
                elif ready is self._listener:
                    self._accept(was_passing)
                elif ready in self._peers:
                    self._forward(ready)

    def _accept(self, passes: bool) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target, timeout=5)
        except OSError:
            near.close()
            return
        self._peers[near], self._peers[far] = far, near
        if passes:
            self._selector.register(near, selectors.EVENT_READ)
            self._selector.register(far, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        try:
            data = source.recv(CHUNK_BYTES)
            if data:
                self._peers[source].sendall(data)
                return
        except OSError:
            pass
        self._hang_up(source)

    def _hang_up(self, end: socket.socket) -> None:
        other = self._peers.pop(end, None)
        if other is None:
            return
        del self._peers[other]
        for item in (end, other):
            with contextlib.suppress(KeyError):
                self._selector.unregister(item)
            item.close()
