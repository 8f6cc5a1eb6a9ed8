"""A server's TCP and ipc connections as the kernel sees them: libzmq has no call that ends one, or tells what it sent.

libzmq names the descriptor that a message came over. Before anything is done to it, it is looked at: it may be another
connection's by now, or a file's.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

TCP_INFO_BYTES = 192
RECEIVED_AT = 128  # of u64 tcpi_bytes_received in linux/tcp.h, since Linux 4.1


def hang_up(descriptor: int, endpoint: str) -> bool:
    """End a connection that was accepted at this endpoint; False if the descriptor is no such connection."""
    with _accepted(descriptor, endpoint) as connection:
        if connection is None:
            return False
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:  # gone
            return False
    return True


def received_bytes(endpoint: str) -> dict[tuple[int, int], int]:
    """Return the bytes received so far over each TCP connection that was accepted at this endpoint.

    Keys are (descriptor, inode). Empty where the kernel does not tell.
    """
    found = {}
    for descriptor in _descriptors():
        with _accepted(descriptor, endpoint) as connection:
            if connection is None:
                continue
            try:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                place = descriptor, os.fstat(connection.fileno()).st_ino
            except OSError:  # gone, or not TCP
                continue
        if len(info) >= RECEIVED_AT + 8:
            found[place] = int(struct.unpack_from("=Q", info, RECEIVED_AT)[0])
    return found


def _descriptors() -> Iterator[int]:
    """Yield the descriptors of all files and sockets that this process has open; none where there is no /proc."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return
    yield from map(int, names)


@contextmanager
def _accepted(descriptor: int, endpoint: str) -> Iterator[socket.socket | None]:
    """Yield the connection behind a descriptor if it was accepted at the endpoint; None if it is anything else.

    It is looked at through a duplicate, which stays the same connection if libzmq closes its own meanwhile. If the
    process has no descriptor left for a duplicate, it is looked at directly.
    """
    try:
        seen = os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EMFILE:
            yield None
            return
        seen = descriptor
    try:
        connection = socket.socket(fileno=seen)
    except OSError:  # a file, a pipe
        connection = None
    try:
        yield connection if connection is not None and _is_accepted(connection, endpoint) else None
    finally:
        if connection is not None:
            connection.detach()
        if seen != descriptor:
            os.close(seen)


def _is_accepted(connection: socket.socket, endpoint: str) -> bool:
    """Whether this is a connection that was accepted at the endpoint."""
    try:
        return not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _is_at(connection, endpoint)
    except OSError:
        return False


def _is_at(connection: socket.socket, endpoint: str) -> bool:
    """Whether the local address of a connection is the endpoint's."""
    name = connection.getsockname()
    if endpoint.startswith("ipc://"):
        return connection.family == socket.AF_UNIX and name == endpoint.removeprefix("ipc://")
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(name[1] == int(endpoint.rpartition(":")[2]) and connection.getpeername())
