"""Which inference service each group is placed at: spread at first, moved when one is lost, drains or stays behind.

A group moves only when its session is over anyway (connection closed for 3 s, silent for 10 s, BYE, refused for now),
or, one at a time and between two STEPs, when a service that came up later has fewer groups.
"""

from collections.abc import Iterable, Sequence

from actor_svc.client import Action, Actions, Frames, GroupClient, Phase, Received, Turn
from actor_svc.connection import ConnectionClient
from shared.protocol.messages import Message

REBALANCE_S = 5.0  # a connection must have lasted this long before groups are drawn to it
STALL_S = 0.5  # polls further apart than this mean that we stood still ourselves

Placed = tuple[str, Action]  # the address that the action's group is placed at, or that a Send goes to


class Fleet:
    """All groups and connections of one actor process. Owned by one thread.

    Args:
      first: where in the list of addresses to begin, so that actors do not all choose the first one.
    """

    def __init__(self, groups: Iterable[GroupClient], *, first: int = 0) -> None:
        self.groups = {group.group: group for group in groups}
        self.connections: dict[str, ConnectionClient] = {}
        self.num_moves = 0
        self._place: dict[int, str] = {}
        self._first = first
        self._judge_at = float("-inf")
        self._polled_at: float | None = None
        self._rebalance_at = float("-inf")

    def set_addresses(self, addresses: Sequence[str], now: float) -> list[Placed]:
        """The addresses that exist now. One that is gone is dropped when it is lost or has no groups."""
        placed: list[Placed] = []
        for address in addresses:
            if address not in self.connections:
                self.connections[address] = ConnectionClient(address, now)
        for address, connection in list(self.connections.items()):
            is_gone = address not in addresses
            if is_gone and (not connection.groups or connection.is_lost(now)) and len(self.connections) > 1:
                del self.connections[address]
                for group in list(connection.groups):
                    connection.remove(group, "moved")
                    del self._place[group.group]
        for index, group in enumerate(self.groups.values()):
            if group.group not in self._place and group.phase is not Phase.DONE and self.connections:
                names = sorted(self.connections)
                placed += self._put(group, names[(self._first + index) % len(names)], now)
        return placed

    def connected(self, address: str, now: float) -> list[Placed]:
        """A connection is open."""
        connection = self.connections.get(address)
        return _at(address, connection.connected(now)) if connection else []

    def disconnected(self, address: str, now: float) -> None:
        """A connection was closed."""
        if address in self.connections:
            self.connections[address].disconnected(now)

    def refused(self, address: str, cause: str) -> None:
        """A handshake failed; it is tried again."""
        if address in self.connections:
            self.connections[address].refused(cause)

    def receive(self, address: str, message: Message, frames: Received, now: float) -> list[Placed]:
        """A message from an address. Raises RemoteWireError if an ACT's frames have the wrong sizes."""
        connection = self.connections.get(address)
        return _at(address, connection.receive(message, frames, now)) if connection else []

    def submit(self, group: int, frames: Frames, bits: int, now: float) -> list[Placed]:
        """A group's environments finished a tick or reset."""
        address = self._place.get(group, "")
        return _at(address, self.groups[group].submit(frames, bits, now))

    def poll(self, now: float, load: Sequence[tuple[str, float]] = ()) -> list[Placed]:
        """What time brings; call it several times a second."""
        if self._polled_at is not None and now - self._polled_at > STALL_S:
            self._judge_at = now + 1.0  # their messages may still wait in our socket
        self._polled_at = now
        placed: list[Placed] = []
        if now >= self._judge_at:
            for connection in list(self.connections.values()):
                placed += self._evacuate(connection, now)
            placed += self._rebalance(now)
        for address, connection in self.connections.items():
            placed += _at(address, connection.poll(now, load))
        return placed

    def leave(self, reason: str) -> list[Placed]:
        """Take every group away, with a BYE for each session."""
        placed: list[Placed] = []
        for address, connection in self.connections.items():
            for group in list(connection.groups):
                placed += _at(address, connection.remove(group, reason))
        self._place.clear()
        return placed

    def address_of(self, group: int) -> str | None:
        """Where a group is placed."""
        return self._place.get(group)

    def complaints(self, now: float) -> list[str]:
        """What keeps groups from working, for people."""
        texts = (connection.complaint(now) for connection in self.connections.values() if connection.groups)
        return [text for text in texts if text]

    # Within

    def _put(self, group: GroupClient, address: str, now: float) -> list[Placed]:
        self._place[group.group] = address
        return _at(address, self.connections[address].add(group, now))

    def _move(self, group: GroupClient, source: ConnectionClient, target: ConnectionClient, now: float) -> list[Placed]:
        self.num_moves += 1
        return [*_at(source.address, source.remove(group, "moved")), *self._put(group, target.address, now)]

    def _evacuate(self, connection: ConnectionClient, now: float) -> list[Placed]:
        """Move the groups whose session at this connection is over, if anyone else can take them."""
        placed: list[Placed] = []
        is_lost = connection.is_lost(now)
        for group in list(connection.groups):
            is_avoiding = now < connection.avoid_until and group.phase is Phase.GREETING
            if (is_lost or is_avoiding) and group.phase is not Phase.DONE:
                target = self._best(now, but=connection)
                if target is None:
                    break
                placed += self._move(group, connection, target, now)
        return placed

    def _best(self, now: float, but: ConnectionClient) -> ConnectionClient | None:
        usable = [item for item in self.connections.values() if item is not but and item.is_usable(now)]
        return min(usable, key=lambda item: len(item.groups), default=None)

    def _rebalance(self, now: float) -> list[Placed]:
        """Draw one group to a lasting connection that has at least two fewer than another."""
        if now < self._rebalance_at or len(self.connections) < 2:
            return []
        lasting = [
            item for item in self.connections.values() if item.is_usable(now) and now - item.changed_at > REBALANCE_S
        ]
        if len(lasting) < 2:
            return []
        fullest, emptiest = (choose(lasting, key=lambda item: len(item.groups)) for choose in (max, min))
        if len(fullest.groups) - len(emptiest.groups) < 2:
            return []
        group = next((item for item in fullest.groups if item.turn is Turn.ENVIRONMENT), None)
        if group is None:
            return []
        self._rebalance_at = now + REBALANCE_S
        return self._move(group, fullest, emptiest, now)


def _at(address: str, actions: Actions) -> list[Placed]:
    return [(address, action) for action in actions]
