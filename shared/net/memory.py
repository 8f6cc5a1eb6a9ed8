"""Dealer and Router on in-process queues, with seeded faults: what `endpoints` offers, without a socket.

`Network` stands where a `Reactor` does. Callbacks run from the loop, never inside `send`, as with sockets. Connections
can be cut and messages lost, doubled, delayed and overtaken; the same seed gives the same faults.
"""

import asyncio
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.addresses import check_address, refuse_open_bind, refuse_open_dial
from seedbed.shared.net.endpoints import HIGH_WATER_MESSAGES, MAX_FRAME_BYTES
from seedbed.shared.net.reactor import MAX_FRAMES, Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How a network treats each message."""

    loss: float = 0.0  # probability
    duplicate: float = 0.0  # probability
    overtake: float = 0.0  # probability of changing places with the message before
    longest_delay_s: float = 0.0  # uniform from zero


class Network:
    """All in-process endpoints of a loop. Owned by the loop's thread; its memory is bounded by the queues' limits."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop | None = None, *, seed: int = 0, faults: Faults | None = None
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.faults = faults or Faults()
        self.random = random.Random(seed)
        self.routers: dict[str, Router] = {}
        self.dealers: list[Dealer] = []
        self.ports = itertools.count(1)
        self.routes = itertools.count(1)

    def last_stall_end(self, now: float) -> float:
        """As the Reactor's; queues do not stall."""
        del now
        return -math.inf

    def connect_all(self) -> None:
        """Connect every dealer whose router is there."""
        for dealer in tuple(self.dealers):
            router = self.routers.get(dealer.address)
            if dealer.pipe is None and router is not None:
                Pipe(self, dealer, router)

    def cut(self, dealer: "Dealer") -> None:
        """Break a dealer's connection, losing what is under way; it dials again at once, behind a new route."""
        if dealer.pipe is not None:
            dealer.pipe.break_off()
        self.loop.call_soon(self.connect_all)

    def close(self) -> None:
        """Close every endpoint."""
        for dealer in tuple(self.dealers):
            dealer.close()
        for router in tuple(self.routers.values()):
            router.close()


class Pipe:
    """One connection: a queue in each direction, at most `HIGH_WATER_MESSAGES` long."""

    def __init__(self, network: Network, dealer: "Dealer", router: "Router") -> None:
        self.network, self.dealer, self.router = network, dealer, router
        self.route = b"\0" + next(network.routes).to_bytes(4, "big")
        self.is_broken = False
        self._queues: tuple[deque[list[bytes]], deque[list[bytes]]] = (deque(), deque())  # up, down
        dealer.pipe = self
        router.pipes[self.route] = self
        network.loop.call_soon(self._tell, "connected")

    def put(self, direction: int, frames: Sequence[Buffer]) -> bool:
        """Send one message up (0) or down (1) as the network's faults allow; False when that queue is full."""
        queue, network = self._queues[direction], self.network
        if len(queue) >= HIGH_WATER_MESSAGES:
            return False
        faults, dice = network.faults, network.random
        if faults.loss and dice.random() < faults.loss:
            return True
        copies = 2 if faults.duplicate and dice.random() < faults.duplicate else 1
        for _ in range(copies):
            queue.append([bytes(frame) for frame in frames])
            if faults.overtake and len(queue) > 1 and dice.random() < faults.overtake:
                queue[-1], queue[-2] = queue[-2], queue[-1]
            if faults.longest_delay_s:
                network.loop.call_later(dice.random() * faults.longest_delay_s, self._arrive, direction)
            else:
                self._arrive(direction)
        return True

    def break_off(self) -> None:
        """End the connection; both sides notice."""
        if not self.is_broken:
            self.is_broken = True
            self.router.pipes.pop(self.route, None)
            self.dealer.pipe = None
            self.dealer.state = "lost"
            self.network.loop.call_soon(self.dealer.tell, "disconnected")

    def _tell(self, event: str) -> None:
        """The dealer learns of its connection, unless that is already over."""
        if not self.is_broken:
            self.dealer.state = event
            self.dealer.tell(event)

    def _arrive(self, direction: int) -> None:
        """The queue's next message is here; it is handed on from the loop."""
        if direction == 0:
            self.router.waiting += 1
        self.network.loop.call_soon(self._take, direction)

    def _take(self, direction: int) -> None:
        """Hand on the queue's next message; a frame over the receiver's limit ends the connection."""
        if direction == 0:
            self.router.waiting -= 1
        if self.is_broken:
            return
        frames = self._queues[direction].popleft()
        receiver = self.router if direction == 0 else self.dealer
        if max(map(len, frames)) > receiver.max_frame_bytes:
            self.network.cut(self.dealer)
            return
        if direction == 1:
            if len(frames) <= MAX_FRAMES:
                self.dealer.on_message(frames)
            return
        if len(frames) < MAX_FRAMES:  # the route is one of a socket's frames
            self.router.on_message(self.route, frames)
        if self.router.on_drained is not None and self.router.is_drained():
            self.router.on_drained()


class Dealer:
    """`endpoints.Dealer` on a Network."""

    def __init__(
        self,
        network: Network,
        address: str,
        *,
        on_message: Callable[[list[bytes]], None],
        on_event: Callable[[str], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        check_address(address)
        refuse_open_dial(address)
        self.address, self.max_frame_bytes = address, max_frame_bytes
        self.state = "connecting"
        self.pipe: Pipe | None = None
        self.on_message = on_message
        self._network, self._on_event, self._is_closed = network, on_event, False
        network.dealers.append(self)
        network.connect_all()

    @property
    def is_connected(self) -> bool:
        """Whether the connection stands."""
        return self.state == "connected"

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Queue one message, copied; False when not connected or full."""
        return self.pipe is not None and self.is_connected and self.pipe.put(0, frames)

    def close(self, linger_ms: int = 0) -> None:
        """Hang up. Idempotent."""
        del linger_ms
        if not self._is_closed:
            self._is_closed = True
            self._network.dealers.remove(self)
            if self.pipe is not None:
                self.pipe.break_off()
            self.state = "closed"

    def tell(self, event: str) -> None:
        """Pass on an event, unless closed."""
        if self._on_event is not None and not self._is_closed:
            self._on_event(event)


class Router:
    """`endpoints.Router` on a Network."""

    def __init__(
        self,
        network: Network,
        bind: str,
        *,
        on_message: Callable[[bytes, list[bytes]], None],
        on_drained: Callable[[], None] | None = None,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        check_address(bind)
        refuse_open_bind(bind)
        self.endpoint = bind.removesuffix(":0") + f":{next(network.ports)}" if bind.endswith(":0") else bind
        if self.endpoint in network.routers:
            raise ConfigError(f"{bind} is in use: stop the process that holds it, or choose another port")
        self.max_frame_bytes, self.on_message, self.on_drained = max_frame_bytes, on_message, on_drained
        self.pipes: dict[bytes, Pipe] = {}
        self.waiting = 0  # messages that have arrived and are not handed on
        self._network = network
        network.routers[self.endpoint] = self
        network.connect_all()

    def send(self, route: bytes, frames: Sequence[Buffer]) -> bool:
        """Queue one message for a peer, copied; False when it is gone or its queue is full."""
        pipe = self.pipes.get(route)
        return pipe is not None and pipe.put(1, frames)

    def is_drained(self) -> bool:
        """Whether every message that has arrived was handed on."""
        return self.waiting == 0

    def close(self, linger_ms: int = 0) -> None:
        """Unbind; every peer notices. Idempotent."""
        del linger_ms
        if self._network.routers.get(self.endpoint) is self:
            del self._network.routers[self.endpoint]
            for pipe in tuple(self.pipes.values()):
                pipe.break_off()
