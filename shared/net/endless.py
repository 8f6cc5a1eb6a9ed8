"""Ends connections whose message never ends.

libzmq delivers a message when its last frame has arrived and keeps all frames until then; it limits the size of a
frame, not their number. A peer that always announces one more frame fills the memory, and no message is delivered.

Nothing is done while the process does not grow. Once it has grown, the bytes that the kernel received over each
connection are compared with its messages: a connection with more bytes than the largest message and no complete message
is ended.
"""

import asyncio
from collections.abc import Callable

from seedbed.shared.net.connections import hang_up, received_bytes
from seedbed.shared.net.reactor import Channel
from seedbed.shared.runtime.allocator import release_freed_memory

LOOK_EVERY_S = 0.2
GROWTH_BYTES = 32 << 20  # growth of the process, since the last close look, that starts close looks
CLOSE_LOOKS = 10  # number of close looks after the process has grown
SUSPICIOUS_BYTES = 1 << 20  # received over a connection without a message: close looks go on
RELEASE_AFTER_S = 1.0  # libzmq frees what it kept when its own thread has seen the end


class EndlessWatch:
    """Watches one router's connections. Owned by the router's loop; remembers a number for each connection.

    Args:
      limit_bytes: the largest whole message.
      on_ended: called when a connection was ended.
      memory: returns the memory of this process, bytes.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, channel: Channel, endpoint: str, limit_bytes: int,
        on_ended: Callable[[], None], memory: Callable[[], int],
    ) -> None:  # fmt: skip
        self._loop, self._channel, self._endpoint, self._limit = loop, channel, endpoint, limit_bytes
        self._on_ended, self._memory = on_ended, memory
        self._calm_bytes = self._memory()
        self._looks_left = 0
        self._known: dict[tuple[int, int], int] = {}  # bytes received when its newest message came
        self._timer = loop.call_later(LOOK_EVERY_S, self._look)

    def close(self) -> None:
        """Stop watching. Call it before the channel is closed. Idempotent."""
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        memory = self._memory()
        self._calm_bytes = min(self._calm_bytes, memory)
        if self._looks_left:
            self._look_closely()
        elif memory > self._calm_bytes + GROWTH_BYTES:
            self._looks_left = CLOSE_LOOKS
            self._known = received_bytes(self._endpoint)
            self._channel.senders = set()

    def _look_closely(self) -> None:
        """End connections that received more than a message may have and completed none; go on while others grow."""
        heard, self._channel.senders = self._channel.senders or set(), set()
        received = received_bytes(self._endpoint)
        is_drained = self._channel.is_drained()
        known = {}
        for place, count in received.items():
            before = self._known.get(place, 0)
            if place[0] in heard:
                before = count
            elif is_drained and count - before > self._limit and hang_up(place[0], self._endpoint):
                self._on_ended()
                self._loop.call_later(RELEASE_AFTER_S, release_freed_memory)
                continue
            known[place] = before
        self._known = known
        is_growing = any(count - known.get(place, count) > SUSPICIOUS_BYTES for place, count in received.items())
        self._looks_left = CLOSE_LOOKS if is_growing else self._looks_left - 1
        if not self._looks_left:
            self._calm_bytes, self._channel.senders = self._memory(), None
