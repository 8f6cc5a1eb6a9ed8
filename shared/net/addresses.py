"""Checks addresses, refuses those that are open to the network without keys, and looks up names."""

import fcntl
import ipaddress
import os
import socket
from pathlib import Path

from seedbed.shared.errors import ConfigError


def check_address(address: str) -> None:
    """Raise ConfigError unless this is tcp://host:port or ipc://path."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    is_tcp = scheme == "tcp" and bool(host) and port.isdecimal() and int(port) < 65536
    if not is_tcp and not (scheme == "ipc" and rest):
        raise ConfigError(f"{address!r} is no address: write tcp://host:port, for example tcp://127.0.0.1:5555")


def split_name(address: str) -> tuple[str, int] | None:
    """Return (name, port) of an address whose host is a name; None for a numeric host or an ipc path."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    return None if scheme == "ipc" or _numeric(host) is not None else (host, int(port))


def look_up(name: str, port: int) -> list[str]:
    """Return every numeric host to which a name resolves now; blocks. Raises: OSError if it resolves to none."""
    return [str(entry[4][0]) for entry in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)]


def tcp_address(host: str, port: int) -> str:
    """Return tcp://host:port for a numeric host, an IPv6 host in brackets."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The host as a number, or None for a name."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_local(address: str) -> bool:
    """Whether only this machine can be at the other end: loopback or ipc. Names other than localhost may be anyone."""
    scheme, _, rest = address.partition("://")
    host = rest.rpartition(":")[0]
    number = _numeric(host)
    return scheme == "ipc" or host == "localhost" or (number is not None and number.is_loopback)


def refuse_open_bind(bind: str) -> None:
    """Raise ConfigError unless only this machine can connect to an address that is bound without keys."""
    if not is_local(bind):
        raise ConfigError(
            f"{bind} is open to the network and there are no keys: anyone could send. Make keys with  "
            f"seedbed keys init keys  and give each service those of its role (runtime.keys=keys), "
            f"or bind tcp://127.0.0.1:{bind.rpartition(':')[2]}"
        )


def refuse_open_dial(address: str) -> None:
    """Raise ConfigError if an address is across the network: without keys anybody on the way could read and answer."""
    if not is_local(address):
        raise ConfigError(
            f"{address} is across the network and there are no keys: anyone on the way could read and answer. Take the "
            f"folder of a key that  seedbed keys new  made where the server is, and name it as runtime.keys, "
            f"or dial 127.0.0.1 through a tunnel (ssh -L)"
        )


def lock_ipc_path(bind: str) -> int | None:
    """Lock a file beside an ipc path: a second bind would take the path over without an error.

    Returns: the descriptor that holds the lock; None for an address that is no ipc path.
    Raises: ConfigError if another process holds the lock, or the file cannot be opened.
    """
    if not bind.startswith("ipc://"):
        return None
    path = Path(bind.removeprefix("ipc://") + ".lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"cannot bind {bind}: {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(f"{bind} is in use: stop the process that holds it, or choose another path") from error
    return descriptor
