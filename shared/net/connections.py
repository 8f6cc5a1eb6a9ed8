"""A server's TCP and ipc connections as the kernel sees them: libzmq has no call that ends one, or tells what it sent.

libzmq names the descriptor that a message came over. Before anything is done to it, it is looked at: it may be another
connection's by now, or a file's.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing

TCP_INFO_BYTES = 192
RECEIVED_AT = 128  # of u64 tcpi_bytes_received in linux/tcp.h, since Linux 4.1


def hang_up(descriptor: int, endpoint: str) -> bool:
    """End a connection that was accepted at this endpoint; False if the descriptor is no such connection."""
    connection = _accepted(descriptor, endpoint)
    if connection is None:
        return False
    with closing(connection):
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
        connection = _accepted(descriptor, endpoint)
        if connection is None:
            continue
        with closing(connection):
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


def _accepted(descriptor: int, endpoint: str) -> socket.socket | None:
    """Return a duplicate of this descriptor, for the caller to close, if it is a connection accepted at the endpoint.

    None if it is anything else.
    """
    try:
        duplicate = os.dup(descriptor)
    except OSError:
        return None
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:  # a file, a pipe
        os.close(duplicate)
        return None
    try:
        if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _is_at(connection, endpoint):
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _is_at(connection: socket.socket, endpoint: str) -> bool:
    """Whether the local address of a connection is the endpoint's."""
    name = connection.getsockname()
    if endpoint.startswith("ipc://"):
        return connection.family == socket.AF_UNIX and name == endpoint.removeprefix("ipc://")
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    return bool(name[1] == int(endpoint.rpartition(":")[2]) and connection.getpeername())
