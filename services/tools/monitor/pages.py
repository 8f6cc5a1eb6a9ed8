"""Visits the /metrics pages of services, all at once and only on this machine. Blocking, with a limit on the time.

A page counts only if it names the incarnation that the status file names: after a service has ended, its port may
belong to anybody.
"""

import concurrent.futures
import http.client
import ipaddress
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from prometheus_client import Metric

from seedbed.services.tools.cli.scrape import TIMEOUT_S, fetch, incarnation_of, parse_families, sum_samples
from seedbed.services.tools.monitor.folder import Status

PATIENCE_S = TIMEOUT_S + 0.2  # for all visits of one round together
KEEP_S = 3.0  # a page that old still stands for a service whose turn has not come
NUM_THREADS = 32


class PageState(StrEnum):
    """Whether a service's page could be read, or why not."""

    UP = "up"  # its page is here
    SILENT = "silent"  # connected, but no answer in time, or none that is a page
    GONE = "gone"  # nobody there, or somebody else
    ELSEWHERE = "elsewhere"  # its page is not on this machine, or it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One service's page as it was read."""

    answer: PageState
    families: Sequence[Metric] = field(default=())

    def samples(self) -> dict[str, float]:
        """Sample name → value, summed over its labels, without buckets."""
        return sum_samples(self.families)


class Visitor:
    """Reads many pages side by side. A context manager; threads exist from the first visit on and sleep in between.

    A visit that takes longer than a round goes on beside it, so that a round never takes longer than `PATIENCE_S`.
    Owned by one thread at a time. Memory: the last page of each service of the last round.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="visit")
        self._clock = clock
        self._running: dict[int, Future[Page]] = {}  # by incarnation, as all below
        self._last: dict[int, tuple[float, Page]] = {}
        self._gone: set[int] = set()  # incarnations that have ended: they do not come back

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def visit(self, statuses: Iterable[Status]) -> dict[int, Page]:
        """The page of each service, by incarnation."""
        asked = {status.incarnation: status for status in statuses}
        self._gone &= set(asked)
        for incarnation, status in asked.items():
            if incarnation not in self._gone and incarnation not in self._running:
                self._running[incarnation] = self._pool.submit(read_page, status)
        concurrent.futures.wait([self._running[key] for key in asked if key in self._running], PATIENCE_S)
        now = self._clock()
        for incarnation, future in tuple(self._running.items()):
            if future.done():
                del self._running[incarnation]
                self._last[incarnation] = now, future.result()
        self._last = {key: last for key, last in self._last.items() if key in asked}
        self._gone |= {key for key, (_, page) in self._last.items() if page.answer is PageState.GONE}
        return {incarnation: self._page(incarnation, now) for incarnation in asked}

    def _page(self, incarnation: int, now: float) -> Page:
        """What is known of a service now."""
        at, page = self._last.get(incarnation, (now, Page(answer=PageState.SILENT)))
        return page if page.answer is PageState.GONE or now - at < KEEP_S else Page(answer=PageState.SILENT)


def read_page(status: Status) -> Page:
    """Read the /metrics page of one service now."""
    host, _, port = status.metrics.rpartition(":")
    if not port.isdecimal() or not is_loopback(host):
        return Page(answer=PageState.ELSEWHERE)
    try:
        families = parse_families(fetch(status.metrics, "/metrics").body)
    except ConnectionRefusedError:
        return Page(answer=PageState.GONE)
    except (OSError, ValueError, OverflowError, http.client.HTTPException):
        return Page(answer=PageState.SILENT)
    if incarnation_of(families) != f"{status.incarnation:x}":
        return Page(answer=PageState.GONE)
    return Page(answer=PageState.UP, families=families)


def is_loopback(host: str) -> bool:
    """Whether a host, as in an address or a Host header, is this machine and no other."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
