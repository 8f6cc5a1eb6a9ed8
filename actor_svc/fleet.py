"""Places each group at an inference service: spreads groups evenly, and moves them when a service leaves or joins.

| a group moves because | to | when |
|---|---|---|
| its connection is closed for 3 s or silent for 10 s | the usable one with the fewest groups | at once, with its STEP |
| of BYE (draining), or turned away (full, no weights yet) | the same | at once; it waits if there is none |
| its service has more than its share of our groups | a service up for 5 s with fewer | between unrolls, one a second |
| its service is lost and its address is gone | a usable service, or else any | at once |

Shares are even; a remainder goes to the first in an order of addresses that differs from actor to actor, so that many
actors with one group each spread as well. Inference says in ACT when an unroll begins (capability `boundary`).
"""

import hashlib
from collections.abc import Iterable, Sequence

from seedbed.actor_svc.client import Action, Actions, ClientPhase, Frames, GroupClient, Received, Send
from seedbed.actor_svc.connection import ConnectionClient
from seedbed.shared.protocol.messages import Bye, Message

DRAW_EVERY_S = 1.0  # least time between two moves that only even out the load
STALL_S = 0.5  # a longer time between two polls means that this process itself was stalled

AddressedAction = tuple[str, Action]  # the address that the action's group is placed at, or that a Send goes to


class Fleet:
    """All groups and connections of one actor process. Owned by one thread.

    Args:
      seed: this actor's own number, which decides its order of addresses.
    """

    def __init__(self, groups: Iterable[GroupClient], *, seed: int = 0) -> None:
        self.groups = {group.group: group for group in groups}
        self.connections: dict[str, ConnectionClient] = {}
        self.num_moves = 0
        self._place: dict[int, str] = {}
        self._seed = seed
        self._check_at = float("-inf")
        self._polled_at: float | None = None
        self._draw_at = float("-inf")
        self._wish: tuple[ConnectionClient, ConnectionClient] | None = None  # source, target of the next move

    def set_addresses(self, addresses: Sequence[str], now: float) -> list[AddressedAction]:
        """Replace the known addresses, and return the HELLOs of groups that are placed at new ones.

        An address that is no longer among them is dropped as soon as its connection is lost or has no groups.
        """
        for address in addresses:
            if address not in self.connections:
                self.connections[address] = ConnectionClient(address, now)
        for address, connection in self.connections.items():
            connection.is_listed = address in addresses
        return self._tidy(now)

    def connected(self, address: str, now: float) -> list[AddressedAction]:
        """Note that the connection to an address is open, and return the HELLOs of its groups."""
        connection = self.connections.get(address)
        return _at(address, connection.connected(now)) if connection else []

    def disconnected(self, address: str, now: float) -> None:
        """Note that the connection to an address was closed; the socket dials again by itself."""
        if address in self.connections:
            self.connections[address].disconnected(now)

    def refused(self, address: str, cause: str) -> None:
        """Note why the handshake with an address failed; the socket tries again."""
        if address in self.connections:
            self.connections[address].refused(cause)

    def receive(self, address: str, message: Message, frames: Received, now: float) -> list[AddressedAction]:
        """Take a message from an address and return what to do about it.

        Raises: RemoteWireError if an ACT's frames have the wrong sizes.
        """
        connection = self.connections.get(address)
        return _at(address, connection.receive(message, frames, now)) if connection else []

    def submit(self, group: int, frames: Frames, bits: int, now: float) -> list[AddressedAction]:
        """Take a group's finished rows and return the STEP that carries them, after its move if one is due."""
        client = self.groups[group]
        moved = self._draw(client, *self._wish, now) if self._wish is not None and client.is_at_boundary else []
        return [*moved, *_at(self._place.get(group, ""), client.submit(frames, bits, now))]

    def poll(self, now: float, load: Sequence[tuple[str, float]] = ()) -> list[AddressedAction]:
        """Return what is due at `now`: moves of groups, PINGs and repeated HELLOs. Call it several times a second."""
        if self._polled_at is not None and now - self._polled_at > STALL_S:
            self._check_at = now + 1.0  # messages of the time before may still wait in the socket
        self._polled_at = now
        placed: list[AddressedAction] = []
        self._wish = None
        if now >= self._check_at:
            for connection in list(self.connections.values()):
                placed += self._evacuate(connection, now)
            placed += self._tidy(now)
            self._wish = self._unevenness(now)
        for address, connection in self.connections.items():
            placed += _at(address, connection.poll(now, load))
        return placed

    def leave(self, reason: str) -> list[AddressedAction]:
        """Take every group away, and return one BYE for each address that had any.

        BYE names session 0, which means all sessions of the connection: a HELLO under way may still open one, whose
        WELCOME will not be read.
        """
        placed: list[AddressedAction] = []
        for address, connection in self.connections.items():
            groups = list(connection.groups)
            for group in groups:
                connection.remove(group, reason)
            placed += _at(address, tuple(Send(group.group, Bye(session=0, reason=reason)) for group in groups[:1]))
        self._place.clear()
        return placed

    def complaints(self, now: float) -> list[str]:
        """Return a sentence for each connection over which groups cannot work, saying why."""
        texts = (connection.complaint(now) for connection in self.connections.values() if connection.groups)
        return [text for text in texts if text]

    # Within

    def _put(self, group: GroupClient, address: str, now: float) -> list[AddressedAction]:
        self._place[group.group] = address
        return _at(address, self.connections[address].add(group, now))

    def _move(
        self, group: GroupClient, source: ConnectionClient, target: ConnectionClient, now: float
    ) -> list[AddressedAction]:
        self.num_moves += 1
        return [*_at(source.address, source.remove(group, "moved")), *self._put(group, target.address, now)]

    def _tidy(self, now: float) -> list[AddressedAction]:
        """Drop addresses that are no longer listed and are lost or empty, and place the groups that are nowhere."""
        for address, connection in list(self.connections.items()):
            is_kept = connection.is_listed or (connection.groups and not connection.is_lost(now))
            if not is_kept and any(other.is_listed for other in self.connections.values()):
                del self.connections[address]
                for group in list(connection.groups):
                    connection.remove(group, "moved")
                    del self._place[group.group]
        homeless = [item for item in self.groups.values() if item.group not in self._place]
        placed: list[AddressedAction] = []
        for group in homeless if self.connections else ():
            if group.phase is not ClientPhase.DONE:
                placed += self._put(group, self._emptiest(self._usable(now) or self.connections.values()).address, now)
        return placed

    def _evacuate(self, connection: ConnectionClient, now: float) -> list[AddressedAction]:
        """Move the groups whose session at this connection is over, if another service can take them."""
        placed: list[AddressedAction] = []
        is_lost = connection.is_lost(now)
        for group in list(connection.groups):
            is_avoiding = now < connection.avoid_until and group.phase is ClientPhase.GREETING
            if (is_lost or is_avoiding) and group.phase is not ClientPhase.DONE:
                usable = [item for item in self._usable(now) if item is not connection]
                if not usable:
                    break
                placed += self._move(group, connection, self._emptiest(usable), now)
        return placed

    def _draw(
        self, group: GroupClient, source: ConnectionClient, target: ConnectionClient, now: float
    ) -> list[AddressedAction]:
        """Move a group that is between two unrolls away from a service that has more than its share."""
        if self._place.get(group.group) != source.address:
            return []
        self._wish, self._draw_at = None, now + DRAW_EVERY_S
        return self._move(group, source, target, now)

    def _unevenness(self, now: float) -> tuple[ConnectionClient, ConnectionClient] | None:
        """Return a service with more than its share of our groups and one with less; None if shares are even."""
        if now < self._draw_at or len(self.connections) < 2:
            return None
        settled = self._ordered(item for item in self.connections.values() if item.is_settled(now))
        lasting = [item for item in settled if item.is_lasting(now)]
        if len(settled) < 2 or not lasting:
            return None
        share, rest = divmod(sum(len(item.groups) for item in settled), len(settled))
        excess = {item: len(item.groups) - share - (index < rest) for index, item in enumerate(settled)}
        fullest, emptiest = max(settled, key=excess.__getitem__), min(lasting, key=excess.__getitem__)
        return (fullest, emptiest) if excess[fullest] > 0 > excess[emptiest] else None

    def _usable(self, now: float) -> list[ConnectionClient]:
        return [item for item in self.connections.values() if item.is_usable(now)]

    def _emptiest(self, connections: Iterable[ConnectionClient]) -> ConnectionClient:
        return min(self._ordered(connections), key=lambda item: (not item.is_listed, len(item.groups)))

    def _ordered(self, connections: Iterable[ConnectionClient]) -> list[ConnectionClient]:
        """Return connections in an order that differs from actor to actor, so that actors spread their groups."""

        def rank(connection: ConnectionClient) -> bytes:
            return hashlib.blake2b(f"{self._seed} {connection.address}".encode(), digest_size=8).digest()

        return sorted(connections, key=rank)


def _at(address: str, actions: Actions) -> list[AddressedAction]:
    return [(address, action) for action in actions]
