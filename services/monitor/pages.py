"""Visits the /metrics pages of services, all at once and only on this machine. Blocking, with a limit on the time.

A page counts only if it names the incarnation that the status file names: after a service has ended, its port may
belong to anybody.
"""

import http.client
import ipaddress
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from services.cli.scrape import MAX_PAGE_BYTES
from services.monitor.folder import Status

TIMEOUT_S = 1.0
NUM_THREADS = 8
INFO = "seedbed_service_info"


class Answer(StrEnum):
    """What came of a visit."""

    UP = "up"  # its page is here
    SILENT = "silent"  # connected, but no answer in time, or none that is a page
    GONE = "gone"  # nobody there, or somebody else
    ELSEWHERE = "elsewhere"  # its page is not on this machine, or it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One visit."""

    answer: Answer
    families: Sequence[Metric] = field(default=())

    def samples(self) -> dict[str, float]:
        """Sample name → value, summed over its labels, without buckets."""
        found: dict[str, float] = {}
        for family in self.families:
            for sample in family.samples:
                if not sample.name.endswith(("_bucket", "_created")):
                    found[sample.name] = found.get(sample.name, 0.0) + sample.value
        return found


class Visitor:
    """Reads many pages side by side. A context manager; threads exist from the first visit on and sleep in between."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="visit")
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
        pages = dict.fromkeys(self._gone, Page(answer=Answer.GONE))
        new = [status for incarnation, status in asked.items() if incarnation not in self._gone]
        for status, page in zip(new, self._pool.map(read_page, new), strict=True):
            pages[status.incarnation] = page
            if page.answer is Answer.GONE:
                self._gone.add(status.incarnation)
        return pages


def read_page(status: Status) -> Page:
    """One service's page, now."""
    host, _, port = status.metrics.rpartition(":")
    if not port.isdecimal() or not is_loopback(host):
        return Page(answer=Answer.ELSEWHERE)
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read(MAX_PAGE_BYTES).decode()
        families = tuple(text_string_to_metric_families(text))
    except ConnectionRefusedError:
        return Page(answer=Answer.GONE)
    except (OSError, ValueError, OverflowError, http.client.HTTPException):
        return Page(answer=Answer.SILENT)
    finally:
        connection.close()
    if incarnation_of(families) != f"{status.incarnation:x}":
        return Page(answer=Answer.GONE)
    return Page(answer=Answer.UP, families=families)


def incarnation_of(families: Iterable[Metric]) -> str:
    """The incarnation that a page names, hexadecimal; empty if it names none."""
    labels = (sample.labels for family in families if family.name == INFO for sample in family.samples)
    return next((found.get("incarnation", "") for found in labels), "")


def is_loopback(host: str) -> bool:
    """Whether a host, as in an address or a Host header, is this machine and no other."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
