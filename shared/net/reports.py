"""Answers a monitor's LOOK over a server's own socket: its metrics, and the newest picture if there is one.

So a monitor in another container or machine sees what `/metrics` shows on loopback, with the same keys as all links.
With keys, only a peer of the role monitor is answered, and only its LOOKs are.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Look, MessageType, Report
from seedbed.shared.runtime.service import Service

PAGE_EVERY_S = 0.5  # a page is written at most this often, however many ask
MAX_WAITING = 64  # askers whose page is being written
MAX_GIVEN = 1024  # connections whose last answers are remembered
_MONITOR_PREFIX = f"{Role.MONITOR}:"
_LOOK_TYPE = bytes([MessageType.LOOK])  # second byte of its header: asked for with every message, so cheaply


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPicture:
    """A picture to show: its number, the packed policy version, when it arrived (loop time, seconds), its frame."""

    number: int
    version: int
    at: float
    frame: bytes


class Reports:
    """The answers to LOOK. Owned by the service's loop. Memory: one page, and small limits on connections.

    A connection gets each page and each picture once: a peer that asks but does not read would fill the memory.
    """

    def __init__(
        self, service: Service, send: Callable[[bytes, Sequence[bytes]], bool], owner: Callable[[bytes], str], *,
        picture: Callable[[float], ShownPicture | None] = lambda _now: None,
    ) -> None:  # fmt: skip
        """`send` and `owner` are the router's; `picture(now)` returns the newest one and notes that someone watches."""
        self._service, self._send, self._owner, self._picture = service, send, owner, picture
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[bytes, Look] = {}
        self._page, self._written_at = b"", float("-inf")
        self._writing: asyncio.Future[str] | None = None
        self._given: dict[bytes, tuple[float, int]] = {}  # to each route: when its page was written; its picture

    def take(self, route: bytes, frames: Sequence[bytes]) -> bool:
        """Answer a message if it comes from a monitor or is a LOOK; return False, and do nothing, for any other.

        Raises: RemoteWireError for a LOOK from another role, and for any other message from a monitor.
        """
        owner = self._owner(route)
        is_monitor = owner.startswith(_MONITOR_PREFIX)
        is_look = bool(frames) and frames[0][1:2] == _LOOK_TYPE
        if not frames or not (is_monitor or is_look):
            return False
        if not is_look or (owner and not is_monitor):  # judged before anything is decoded, which may cost much
            raise RemoteWireError("role", f"{owner} may {'not look' if is_look else 'only look'}")
        message = decode(frames[0])
        if not isinstance(message, Look):
            raise RemoteWireError("role", f"{owner or 'nobody'} may not send {type(message).__name__} here")
        if not message.wants_page or time.monotonic() - self._written_at < PAGE_EVERY_S:
            self._answer(route, message)
        elif len(self._waiting) < MAX_WAITING:
            self._waiting[route] = message
            self._write()
        return True

    def _write(self) -> None:
        """Write the page in another thread: it takes milliseconds."""
        if self._writing is None:
            self._writing = self._loop.run_in_executor(None, self._service.metrics.text)
            self._writing.add_done_callback(self._written)

    def _written(self, writing: "asyncio.Future[str]") -> None:
        self._writing = None
        if writing.cancelled():
            return
        self._page, self._written_at = writing.result().encode(), time.monotonic()
        waiting, self._waiting = self._waiting, {}
        for route, look in waiting.items():
            self._answer(route, look)

    def _answer(self, route: bytes, look: Look) -> None:
        now = self._loop.time()
        shown = self._picture(now) if look.wants_picture else None
        report = Report(
            incarnation=self._service.incarnation,
            service=self._service.service,
            name=self._service.name,
            run_id=self._service.run_id,
            picture=shown.number if shown is not None else 0,
            picture_version=shown.version if shown is not None else 0,
            picture_age_ms=int(1e3 * max(0.0, now - shown.at)) if shown is not None else 0,
        )
        page_at, number = self._given.pop(route, (0.0, 0))
        page = self._page if look.wants_page and page_at != self._written_at else b""
        is_new = shown is not None and shown.number not in (look.have_picture, number)
        picture = shown.frame if shown is not None and is_new else b""
        self._given[route] = self._written_at if page else page_at, shown.number if shown is not None else number
        if len(self._given) > MAX_GIVEN:
            del self._given[next(iter(self._given))]
        self._send(route, [encode(report), page, picture])
