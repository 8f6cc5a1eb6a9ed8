"""Resolves names to numeric addresses every two seconds, because replicas come, go, and return at other addresses.

A look-up may block for long, so it is done in a thread, one name after the other; a callback is told when the addresses
change. A name that cannot be resolved keeps the addresses that it had: whether they still serve is for those to judge
who dial them, not for a name server.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Self

from seedbed.shared.net.addresses import check_address, look_up, split_name, tcp_address

EVERY_S = 2.0

Lookup = Callable[
    [str, int], Sequence[str]
]  # (name, port) → numeric hosts; may block; raises OSError if there are none


class Resolver:
    """Follows some addresses. Owned by the loop that made it; one daemon thread if there is a name among them.

    Args:
      addresses: numeric ones and ipc paths stand for themselves.
      on_found: called in the loop with all numeric addresses, in the order of the names, sorted within each: at once if
        nothing needs looking up, and whenever they change.
    Raises: ConfigError if an address is malformed.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        on_found: Callable[[list[str]], None],
        *,
        lookup: Lookup = look_up,
        every_s: float = EVERY_S,
    ) -> None:
        for address in addresses:
            check_address(address)
        self._loop = asyncio.get_running_loop()
        self._on_found, self._lookup, self._every_s = on_found, lookup, every_s
        self._names = {address: name for address in addresses if (name := split_name(address)) is not None}
        self._found: dict[str, list[str]] = {item: [] if item in self._names else [item] for item in addresses}
        self._missing: dict[str, tuple[float, str]] = {}  # name → since when it resolves to nothing, and why
        self._told: list[str] = []
        self._stopping = threading.Event()
        self._tell()
        if self._names:
            threading.Thread(target=self._follow, name="resolve", daemon=True).start()

    def complaints(self, now: float) -> list[str]:
        """Return a sentence for each name that does not resolve. `now` is the loop's time, seconds."""
        return [
            f"{address} does not resolve, for {now - since:.0f} s ({cause}): is that service up, and its name right?"
            for address, (since, cause) in self._missing.items()
        ]

    def close(self) -> None:
        """Stop; a look-up that hangs is left behind, its answer unheard. Idempotent."""
        self._stopping.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _follow(self) -> None:
        """Look up all names again and again until closed. Runs in the thread."""
        while not self._stopping.is_set():
            for address, (name, port) in self._names.items():
                cause = ""
                found: list[str] = []
                try:
                    found = sorted({tcp_address(host, port) for host in self._lookup(name, port)})
                except (OSError, UnicodeError) as error:  # a name with an empty or overlong part is a UnicodeError
                    cause = str(getattr(error, "strerror", None) or error)
                if self._stopping.is_set():
                    return
                with contextlib.suppress(RuntimeError):  # the loop is closed: so will this be
                    self._loop.call_soon_threadsafe(self._take, address, found, cause)
            self._stopping.wait(self._every_s)

    def _take(self, address: str, found: list[str], cause: str) -> None:
        """Take the result of one look-up. Runs in the loop."""
        if self._stopping.is_set():
            return
        if found:
            self._missing.pop(address, None)
            self._found[address] = found
            self._tell()
        elif not self._found[address]:
            since, _ = self._missing.get(address, (self._loop.time(), ""))
            self._missing[address] = since, cause or "no address"

    def _tell(self) -> None:
        addresses = list(dict.fromkeys(item for found in self._found.values() for item in found))
        if addresses != self._told:
            self._told = addresses
            self._on_found(addresses)
