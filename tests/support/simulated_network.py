"""A network without sockets and its clock: seeded, it delays, loses, doubles and reorders messages; perfect by default.

Nothing waits: time is a number that moves from one event to the next. Two runs with one seed are the same.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NetworkFaults:
    """What happens to messages, as probabilities and times."""

    loss: float = 0.0
    double: float = 0.0
    reorder: float = 0.0  # it may overtake those that were sent before it on its link
    min_delay_s: float = 0.0
    max_delay_s: float = 0.0  # each message takes its own time, evenly distributed


class SimulatedNetwork:
    """Carries messages by calling their receivers, and is the clock by which everything else happens."""

    def __init__(self, seed: int = 0, faults: NetworkFaults | None = None) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self.faults = faults or NetworkFaults()  # of what is sent from now on
        self.sent = self.lost = self.doubled = self.overtaken = 0
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._order = itertools.count()
        self._last_arrival: dict[Hashable, float] = {}  # by link

    def later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        """Call in so many seconds; of calls at one time, the one that was asked for first."""
        self._at(self.now + delay_s, call, *args)

    def send(self, link: Hashable, receive: Callable[..., None], *args: object) -> None:
        """Send a message over a link, one direction of one conversation: `receive` is called with it if it arrives."""
        faults = self.faults
        self.sent += 1
        copies = 0 if self.random.random() < faults.loss else 1 + (self.random.random() < faults.double)
        self.lost += copies == 0
        self.doubled += copies == 2
        for _ in range(copies):
            arrival = self.now + self.random.uniform(faults.min_delay_s, faults.max_delay_s)
            last = self._last_arrival.get(link, 0.0)
            if arrival < last and self.random.random() >= faults.reorder:
                arrival = last
            self.overtaken += arrival < last
            self._last_arrival[link] = max(arrival, last)
            self._at(arrival, receive, *args)

    def run(self, seconds: float) -> None:
        """Let time pass, and everything happen that is due in it."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call, args = heapq.heappop(self._events)
            call(*args)
        self.now = end

    def _at(self, time: float, call: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._events, (time, next(self._order), call, args))
