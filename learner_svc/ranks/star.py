"""Small messages between learner ranks by way of the chief: every other rank has a TCP connection to it.

A message costs a few system calls at each end. The collectives of a process group hand it from thread to thread, which
takes much more processor time: `benchmarks/ranks.py` measures what a round of the ranks costs.
"""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Sequence

from torch.distributed import Store  # type: ignore[attr-defined]

KEY = "star"  # in the store: the chief's port and the token that its ranks present
HELLO = struct.Struct("<16sH")  # token, rank
HELLO_S = 5.0  # for a connection's first bytes
SIZE = struct.Struct("<Q")  # before each message, and each part of one
MAX_BYTES = 1 << 30  # of one message
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Star:
    """One rank's end. Its methods block until every rank that has to has called the same one.

    Owned by one thread at a time. Raises: OSError from every method if a rank is gone or silent for `timeout_s`.
    """

    def __init__(self, links: Sequence[socket.socket], *, is_chief: bool, timeout_s: float) -> None:
        """`links`: at the chief to the other ranks in their order, at these the one to the chief."""
        self._links = links
        self._is_chief = is_chief
        for link in links:
            link.settimeout(timeout_s)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def local_addresses(self) -> list[str]:
        """This rank's own numeric addresses, at which its connections end."""
        return [str(link.getsockname()[0]) for link in self._links]

    def gather(self, data: bytes) -> list[bytes]:
        """Return to the chief what every rank gave, in the order of ranks; to others nothing."""
        if self._is_chief:
            return [data, *map(_receive, self._links)]
        _send(self._links[0], data)
        return []

    def tell(self, data: bytes = b"") -> bytes:
        """Return what the chief gave."""
        if not self._is_chief:
            return _receive(self._links[0])
        for link in self._links:
            _send(link, data)
        return data

    def share(self, data: bytes) -> list[bytes]:
        """Return what every rank gave, in the order of ranks."""
        told = self.tell(b"".join(SIZE.pack(len(part)) + part for part in self.gather(data)))
        parts, start = [], 0
        while start < len(told):
            (size,) = SIZE.unpack_from(told, start)
            start += SIZE.size
            parts.append(told[start : start + size])
            start += size
        return parts

    def close(self) -> None:
        """Close the connections: a rank that waits for this one then gets an OSError."""
        for link in self._links:
            link.close()


def open_star(store: Store, host: str, rank: int, size: int, *, timeout_s: float) -> Star:
    """Connect the ranks, which have met at `store`. Blocks until all have come.

    `host` is the name or address at which the other ranks reach the chief.

    Raises: OSError if a rank does not come within `timeout_s`; RuntimeError if the store is gone.
    """
    if rank == 0:
        return Star(_accept_all(store, host, size, timeout_s), is_chief=True, timeout_s=timeout_s)
    port, token = store.get(KEY).decode().split()
    link = socket.create_connection((host, int(port)), timeout=timeout_s)
    link.sendall(HELLO.pack(bytes.fromhex(token), rank))
    return Star([link], is_chief=False, timeout_s=timeout_s)


def _accept_all(store: Store, host: str, size: int, timeout_s: float) -> list[socket.socket]:
    """Listen until every rank has connected, and return the connections in their order. Strangers are cut off."""
    token, deadline = secrets.token_bytes(16), time.monotonic() + timeout_s
    links: dict[int, socket.socket] = {}
    with _listen(host) as server:
        store.set(KEY, f"{server.getsockname()[1]} {token.hex()}")
        while len(links) < size - 1:
            server.settimeout(max(1e-3, deadline - time.monotonic()))
            link, _ = server.accept()
            link.settimeout(HELLO_S)
            try:
                told, rank = HELLO.unpack(_read(link, HELLO.size))
            except OSError:
                told, rank = b"", 0
            if hmac.compare_digest(told, token) and 0 < rank < size and rank not in links:
                links[rank] = link
            else:
                link.close()
    return [links[rank] for rank in sorted(links)]


def _listen(host: str) -> socket.socket:
    """Listen on a port that the system chooses, on all interfaces unless the ranks are all on this machine."""
    if host in LOOPBACK:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _send(link: socket.socket, data: bytes) -> None:
    link.sendall(SIZE.pack(len(data)) + data)


def _receive(link: socket.socket) -> bytes:
    (size,) = SIZE.unpack(_read(link, SIZE.size))
    if size > MAX_BYTES:
        raise OSError(f"a rank would send {size} bytes, more than {MAX_BYTES}")
    return _read(link, size)


def _read(link: socket.socket, size: int) -> bytes:
    """Read as many bytes. Raises: ConnectionError if the connection ends before."""
    read = bytearray()
    while len(read) < size:
        part = link.recv(min(size - len(read), 1 << 20))
        if not part:
            raise ConnectionResetError("the connection was closed")
        read += part
    return bytes(read)
