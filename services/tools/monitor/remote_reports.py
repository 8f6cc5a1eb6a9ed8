"""What services say over the link whose /metrics is out of reach, as in other containers: asked while somebody looks.

A replica whose address its name no longer stands for has left in order, and is forgotten at once. One that does not
answer though its address is there, or was the last one, is kept as silent for `FORGET_S`: somebody should look at it.

The loop asks and takes answers; visitors' threads read. Every method may be called by any thread. Memory: one page and
one picture for each service that was heard within that time, `MAX_SERVICES` at most.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seedbed.services.tools.cli.scrape import incarnation_of, parse_families
from seedbed.services.tools.monitor.folder import MAX_DEATHS, Death, Status
from seedbed.services.tools.monitor.pages import Page, PageState
from seedbed.services.tools.monitor.pictures import Picture
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.roles import Role
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.messages import Look, Report, unpack_version
from seedbed.shared.protocol.pictures import check_picture

WANTED_S = 10.0  # after somebody looked
PAGE_EVERY_S, PICTURE_EVERY_S = 1.0, 0.25
SILENT_S = 3.5  # without an answer, though asked
FORGET_S = 600.0  # longer than Prometheus waits before it alerts
MAX_SERVICES = 1000


@dataclass(slots=True)
class _Told:
    """What one service said last, and when."""

    status: Status
    address: str  # where it was heard
    run_id: str
    heard_at: float
    page: bytes = b""
    parsed: Page | None = None
    picture: Picture | None = None
    pictured_at: float = 0.0


@dataclass(slots=True)
class _Asked:
    """When an address was asked last."""

    page_at: float = float("-inf")
    picture_at: float = float("-inf")
    told: int = 0  # incarnation that answered


@dataclass(slots=True)
class RemoteReports:
    """The newest report of each service that was heard over the link, and when to ask for the next one.

    Args:
      clock: returns seconds that never go back.
      wall_clock: returns seconds since 1970.
    """

    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _told: dict[int, _Told] = field(default_factory=dict)
    _asked: dict[str, _Asked] = field(default_factory=dict)
    _deaths: deque[tuple[str, Death]] = field(default_factory=lambda: deque(maxlen=MAX_DEATHS))  # with their run's id
    _wanted_at: float = float("-inf")
    _asking_since: float = float("-inf")
    _watched: dict[str, float] = field(default_factory=dict)  # run id → when somebody asked for its picture

    # Visitors

    def look(self) -> None:
        """Somebody looks: services are asked from now on, for a while."""
        with self._lock:
            now = self.clock()
            if now - self._wanted_at > WANTED_S:
                self._asking_since = now
            self._wanted_at = now

    def of(self, run_id: str) -> list[tuple[Status, Page]]:
        """Every service of a run that was heard of, with its page; names that two of them have are told apart."""
        with self._lock:
            now = self.clock()
            self._told = {key: told for key, told in self._told.items() if self._age(told, now) < FORGET_S}
            found = [told for told in self._told.values() if told.run_id == run_id and run_id]
            names = [told.status.name for told in found]
            return [
                (
                    told.status if names.count(told.status.name) == 1 else _numbered(told.status),
                    self._page(told) if self._age(told, now) < SILENT_S else Page(answer=PageState.SILENT),
                )
                for told in found
            ]

    def deaths(self, run_id: str) -> list[Death]:
        """Lives of a run's services that ended while somebody looked, oldest first."""
        with self._lock:
            return [death for run, death in self._deaths if run == run_id]

    def picture(self, run_id: str) -> Picture | None:
        """The newest of a run; it is asked for from now on."""
        with self._lock:
            now = self.clock()
            self._watched[run_id] = now
            found = [
                replace(told.picture, age_s=told.picture.age_s + now - told.pictured_at)
                for told in self._told.values()
                if told.run_id == run_id and run_id and told.picture is not None
            ]
        return min(found, key=lambda picture: picture.age_s, default=None)

    def _age(self, told: _Told, now: float) -> float:
        """For how long a service has not answered though it was asked."""
        return now - max(told.heard_at, self._asking_since)

    @staticmethod
    def _page(told: _Told) -> Page:
        if told.parsed is None:
            try:
                families = parse_families(told.page)
            except ValueError:
                families = ()
            is_own = incarnation_of(families) == f"{told.status.incarnation:x}"
            told.parsed = Page(answer=PageState.UP, families=families) if is_own else Page(answer=PageState.SILENT)
        return told.parsed

    # The loop

    def due(self, address: str, role: Role) -> Look | None:
        """What to ask at an address now; None: nothing."""
        with self._lock:
            now = self.clock()
            asked = self._asked.setdefault(address, _Asked())
            told = self._told.get(asked.told)
            self._watched = {run_id: at for run_id, at in self._watched.items() if now - at < WANTED_S}
            wants_page = now - self._wanted_at < WANTED_S and now - asked.page_at >= PAGE_EVERY_S
            is_watched = told is not None and told.run_id in self._watched and role is Role.INFERENCE
            wants_picture = is_watched and now - asked.picture_at >= PICTURE_EVERY_S
            if not wants_page and not wants_picture:
                return None
            asked.page_at = now if wants_page else asked.page_at
            asked.picture_at = now if wants_picture else asked.picture_at
            have = told.picture.number if told is not None and told.picture is not None else 0
            return Look(wants_page=wants_page, wants_picture=wants_picture, have_picture=have)

    def forget(self, addresses: Sequence[str]) -> None:
        """All addresses that there are; what was known of others goes, and who was there has left."""
        with self._lock:
            self._asked = {address: asked for address, asked in self._asked.items() if address in addresses}
            self._told = {key: told for key, told in self._told.items() if told.address in addresses}

    def take(self, address: str, role: Role, frames: Sequence[bytes]) -> None:
        """An answer from an address. Raises: RemoteWireError for what is none."""
        report = decode(frames[0]) if frames else None
        if not isinstance(report, Report) or len(frames) != 3 or report.service != role:
            raise RemoteWireError("report", f"what came from {address} is no report of {role}")
        if frames[2]:
            check_picture(frames[2])
        with self._lock:
            now, asked = self.clock(), self._asked.setdefault(address, _Asked())
            told = self._told.get(report.incarnation)
            if told is None:
                told = self._meet(address, asked, report, now)
            asked.told, told.address, told.heard_at, told.run_id = report.incarnation, address, now, report.run_id
            if frames[1]:
                told.page, told.parsed = frames[1], None
            if frames[2]:
                told.picture, told.pictured_at = _picture(report, frames[2]), now

    def _meet(self, address: str, asked: _Asked, report: Report, now: float) -> _Told:
        """A life that is new here; the one that was at this address before has ended."""
        former = self._told.pop(asked.told, None)
        if former is not None:
            death = Death(at=self.wall_clock(), service=former.status.name, exit=f"replaced at {address}")
            self._deaths.append((former.run_id, death))
        if len(self._told) >= MAX_SERVICES:
            raise RemoteWireError("report", f"more than {MAX_SERVICES} services report")
        status = Status(
            name=report.name, role=report.service, incarnation=report.incarnation, metrics="", at=self.wall_clock()
        )
        told = _Told(status=status, address=address, run_id=report.run_id, heard_at=now)
        self._told[report.incarnation] = told
        return told


def _numbered(status: Status) -> Status:
    return replace(status, name=f"{status.name}-{status.incarnation & 0xFFFF:04x}")


def _picture(report: Report, frame: bytes) -> Picture:
    epoch, step = unpack_version(report.picture_version)
    return Picture(
        incarnation=f"{report.incarnation:x}", number=report.picture, epoch=epoch, step=step,
        age_s=report.picture_age_ms / 1e3, frame=frame,
    )  # fmt: skip
