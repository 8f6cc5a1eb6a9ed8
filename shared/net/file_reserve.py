"""Keeps some descriptors of the process free, so that new connections cannot take the last ones.

libzmq accepts every connection as long as there is a descriptor. When there is none left, it survives, but its thread
tries again without a pause, and nothing else in the process can open a file or a connection. So a connection that would
take one of the last descriptors is ended at once. Its peer dials again later, and others are served meanwhile.

The kernel always gives the lowest free number, so a connection's own number tells how many are in use.
"""

from collections.abc import Callable

from seedbed.shared.net.connections import hang_up
from seedbed.shared.runtime.open_files import file_limit

MANY_CONNECTIONS = 1024  # with fewer at most, inference warns at its start, and `seedbed doctor` before
RESERVED = 64  # for logs, the metrics page, and connections that this service dials itself


def most_connected(limit: int) -> int:
    """Return how many descriptors connections may take, of as many as the process may have."""
    return limit - min(RESERVED, limit // 4)


class FileReserve:
    """Ends connections of one server that would take the last descriptors. Owned by its loop.

    Args:
      on_refused: called for each connection that was ended.
      limit: returns how many descriptors the process may have; it may change while the process runs.
    """

    def __init__(self, on_refused: Callable[[], None], limit: Callable[[], int] = file_limit) -> None:
        self._on_refused, self._limit = on_refused, limit

    def accepted(self, descriptor: int, endpoint: str) -> None:
        """End the connection that was accepted at this endpoint if its descriptor is one of the last."""
        if descriptor >= most_connected(self._limit()) and hang_up(descriptor, endpoint):
            self._on_refused()
