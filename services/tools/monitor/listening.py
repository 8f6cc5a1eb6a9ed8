"""A web server of ours: its socket, and uvicorn set up for a page that few people look at."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from seedbed.shared.errors import ConfigError

BACKLOG = 64
MAX_CONNECTIONS = 200
MAX_SILENT = 100  # of them, that have not asked for anything yet
SILENT_S = 10.0  # for so long at most
GRACE_S = 2  # for answers under way when the server ends


class PageServer(uvicorn.Server):
    """uvicorn under our own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs this server."""
        yield


class _Connection(H11Protocol):
    """Hung up on if it does not ask for anything: after a while, and the oldest at once where there are many.

    So nobody who only connects, or sends a request byte by byte, shuts out those who look.
    """

    def connection_made(self, transport: Any) -> None:
        """A connection is open on which nothing was said yet."""
        super().connection_made(transport)
        self._silent: dict[_Connection, None] = vars(self.server_state).setdefault("silent", {})  # oldest first
        self._silent[self] = None
        self._timer: asyncio.TimerHandle = self.loop.call_later(SILENT_S, transport.abort)
        if len(self._silent) > MAX_SILENT:
            oldest = next(iter(self._silent))
            oldest._count_no_more()
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Perhaps the rest of a request."""
        super().data_received(data)
        if self.cycle is not None:
            self._count_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection among the silent ones no longer, because it is gone."""
        self._count_no_more()
        super().connection_lost(exc)

    def _count_no_more(self) -> None:
        self._timer.cancel()
        self._silent.pop(self, None)


def make_server(app: ASGIApp) -> PageServer:
    """A server for `serve(sockets=[bind(…)])`; it ends when `should_exit` is set."""
    return PageServer(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            http=_Connection,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=GRACE_S,
        )
    )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises: ConfigError if the address is none of this machine's, or taken."""
    bare = host.strip("[]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((bare, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        remedy = "give another --port" if port else "give another --host"
        raise ConfigError(f"cannot bind {host}:{port}: {error.strerror or error}; {remedy}") from error
    listener.setblocking(False)
    return listener


def shown_host(host: str) -> str:
    """The host as a browser on this machine would write it."""
    bare = host.strip("[]")
    if bare in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{bare}]" if ":" in bare else bare
