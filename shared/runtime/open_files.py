"""The limit of this process on open files, of which each connection is one."""

import contextlib
import resource
import sys

REFUSED = "open_files"  # the reason for which a peer is refused when there are no more
USEFUL_FILES = 1 << 17  # more than one process can have connections


def raise_file_limit() -> int:
    """Raise the limit as far as this process may, and return it.

    A shell sets a low limit for programs that use `select`, which none of the services does.
    """
    wanted = min(USEFUL_FILES, most_files())
    if file_limit() < wanted:
        with contextlib.suppress(ValueError):  # macOS has a lower limit of its own: there it stays as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    return file_limit()


def file_limit() -> int:
    """Return how many files this process may have open."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def most_files() -> int:
    """Return how far this process may raise its limit."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def _number(limit: int) -> int:
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit


def how_to_raise(limit: int) -> str:
    """Return a sentence that says how to start a service with more open files than `limit`."""
    more = max(4096, 4 * limit)
    return (
        f"allow more open files where the service is started: `ulimit -Hn {more}` in a root shell, LimitNOFILE={more} "
        f"for systemd, ulimits.nofile: {more} in a compose file, the container runtime's own limit in Kubernetes"
    )
