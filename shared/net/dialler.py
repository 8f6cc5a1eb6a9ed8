"""A connection to whichever of several addresses answers, while the addresses behind a name may change.

A service that is started again elsewhere keeps its name and gets another numeric address, and a name may resolve to
several of which one answers (localhost is ::1 and 127.0.0.1). So every address has a Dealer, and one of those that are
connected is in use, until it is lost or passed over. Names, numeric addresses and ipc paths may be mixed.
"""

from collections.abc import Callable, Sequence
from functools import partial

from seedbed.shared.net.addresses import look_up
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keys import DialKeys
from seedbed.shared.net.reactor import Buffer, Reactor
from seedbed.shared.net.resolver import Lookup, Resolver
from seedbed.shared.net.socket_options import MAX_FRAME_BYTES


class Dialler:
    """Sends and receives like a Dealer, over one of several addresses. Owned by the loop; a socket for each address."""

    def __init__(
        self,
        reactor: Reactor,
        upstream: Sequence[str],
        *,
        on_message: Callable[[list[bytes]], None],
        on_event: Callable[[str], None],
        max_frame_bytes: int = MAX_FRAME_BYTES,
        keys: DialKeys | None = None,
        lookup: Lookup = look_up,
    ) -> None:
        """Start looking up and dialling.

        Args:
          upstream: tcp://name:port, tcp://number:port or ipc://path; none: it is connected to nobody.
          on_message: called with each message's frames, of the connection in use alone.
          on_event: called with "connected", "disconnected" (before another takes its place, too) or "handshake_failed".
          keys: ours and the server's, which whoever has the name must have.
        Raises: ConfigError if an address is malformed, or across the network without keys (then also from the loop).
        """
        self.refusal = ""  # why the newest handshake failed
        self._reactor, self._max_frame_bytes, self._keys = reactor, max_frame_bytes, keys
        self._on_message, self._on_event = on_message, on_event
        self._dealers: dict[str, Dealer] = {}
        self._listed: list[str] = []
        self._in_use = ""
        self._since = reactor.loop.time()
        self._resolver = Resolver(upstream, self._found, lookup=lookup)

    @property
    def address(self) -> str:
        """The address in use; empty while none is connected."""
        return self._in_use

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Queue one message, copied; False when not connected or full."""
        dealer = self._dealers.get(self._in_use)
        return dealer is not None and dealer.send(frames)

    def pass_over(self) -> bool:
        """Change to the next connected address, because the one in use does not serve us; return whether it changed.

        An address to which its name no longer resolves is given up even if no other is connected.
        """
        former = self._in_use
        place = self._listed.index(former) + 1 if former in self._listed else 0
        others = [item for item in self._listed[place:] + self._listed[:place] if item != former]
        self._change([item for item in others if self._dealers[item].is_connected])
        return self._in_use != former

    def complaints(self, now: float) -> list[str]:
        """Return sentences on what keeps it from being connected; empty if it is connected."""
        if self._in_use:
            return []
        if self.refusal:
            return [self.refusal]
        waited_s = now - self._since
        dialled = [f"no connection to {address} for {waited_s:.0f} s" for address in self._dealers]
        return [*self._resolver.complaints(now), *dialled]

    def close(self, linger_ms: int = 0) -> None:
        """Hang up; what is queued may still leave for `linger_ms`. Idempotent."""
        self._resolver.close()
        self._in_use = ""
        for dealer in self._dealers.values():
            dealer.close(linger_ms)

    # Within

    def _found(self, addresses: list[str]) -> None:
        """Take the addresses to which the names resolve now; the one in use stays until it is lost or passed over."""
        self._listed = addresses
        for address in addresses:
            if address not in self._dealers:
                self._dealers[address] = Dealer(
                    self._reactor,
                    address,
                    on_message=partial(self._receive, address),
                    on_event=partial(self._changed, address),
                    max_frame_bytes=self._max_frame_bytes,
                    keys=self._keys,
                )
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connections to addresses that are neither listed nor in use."""
        for address in [item for item in self._dealers if item not in self._listed and item != self._in_use]:
            self._dealers.pop(address).close()

    def _receive(self, address: str, frames: list[bytes]) -> None:
        if address == self._in_use:
            self._on_message(frames)

    def _changed(self, address: str, event: str) -> None:
        if event == "handshake_failed":
            self.refusal = f"{address}: {self._dealers[address].refusal}"
            if not self._in_use:
                self._on_event(event)
        elif event == "connected" and not self._in_use:
            self._change([address])
        elif event == "disconnected" and address == self._in_use:
            self._change([item for item in self._listed if self._dealers[item].is_connected])

    def _change(self, candidates: Sequence[str]) -> None:
        """Use the first of these; with none, go on with the present one if it is connected and listed."""
        former = self._in_use
        if not candidates and former in self._listed and self._dealers[former].is_connected:
            return
        if former:
            self._in_use, self._since = "", self._reactor.loop.time()
            self._on_event("disconnected")
        if candidates:
            self._in_use, self.refusal = candidates[0], ""
            self._on_event("connected")
        self._hang_up()
