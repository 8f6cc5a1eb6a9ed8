"""A web server of ours: its socket, and uvicorn set up for a page that few people look at."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from shared.errors import ConfigError

BACKLOG = 64
MAX_CONNECTIONS = 200
GRACE_S = 2  # for answers under way when the server ends


class Server(uvicorn.Server):
    """uvicorn under our own signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs this has them."""
        yield


def make_server(app: ASGIApp) -> Server:
    """A server for `serve(sockets=[bind(…)])`; it ends when `should_exit` is set."""
    return Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
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
