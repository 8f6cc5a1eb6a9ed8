"""Waiting for what callbacks bring: no sleep, no look too many."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 30.0


class Changes:
    """A base class: whoever waits for a condition is woken whenever something has changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Something has changed."""
        self._changed.set()

    async def until(self, condition: Callable[[], bool], *, look_s: float | None = None) -> None:
        """Until the condition holds, looked at after each change, and every so often if something changes silently."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(look_s):
                        await self._changed.wait()


class Heard(Changes):
    """What the callbacks of one end of a link brought."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Any] = []  # a router's: (route, frames); a dealer's: frames
        self.events: list[str] = []
        self.num_drains = 0

    def note(self, to: list[Any], item: object) -> None:
        """Keep one thing more."""
        to.append(item)
        self.tell()

    def message(self, *parts: Any) -> None:
        """For `on_message`."""
        self.note(self.messages, parts[0] if len(parts) == 1 else parts)

    def event(self, name: str) -> None:
        """For `on_event`."""
        self.note(self.events, name)

    def drained(self) -> None:
        """For `on_drained`."""
        self.num_drains += 1
        self.tell()
