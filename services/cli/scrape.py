"""Reads the /metrics pages of a run's services in a thread of its own: nobody's page may hold up the launcher."""

import contextlib
import http.client
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

EVERY_S = 1.0
TIMEOUT_S = 1.0
MAX_PAGE_BYTES = 4 * 1024 * 1024

_straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # services are on this machine

Page = tuple[str, Mapping[str, float], float]  # service, samples, time


def parse_page(text: str) -> dict[str, float]:
    """Sample name → value, summed over its labels; the buckets of histograms are left out."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
    return samples


def read_status(status_file: Path) -> dict[str, Any]:
    """What a service wrote when it was ready; empty while it is not."""
    try:
        status = json.loads(status_file.read_bytes())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def metrics_address(status_file: Path) -> str:
    """The host:port of a service's /metrics; "" while it is not ready."""
    return str(read_status(status_file).get("metrics", ""))


def read_page(address: str) -> dict[str, float] | None:
    """One service's samples; None if it does not answer in time."""
    try:
        with _straight.open(f"http://{address}/metrics", timeout=TIMEOUT_S) as answer:
            return parse_page(answer.read(MAX_PAGE_BYTES).decode())
    except (OSError, ValueError, http.client.HTTPException):
        return None


class Scraper:
    """A daemon thread that visits each service once a second; `take` gives what has come since, in the caller's."""

    def __init__(
        self, status_files: Mapping[str, Path], *, clock: Callable[[], float] = time.monotonic, every_s: float = EVERY_S
    ) -> None:
        self._status_files, self._clock, self._every_s = status_files, clock, every_s
        self._pages: SimpleQueue[Page] = SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._visit_all, name="scrape", daemon=True)

    def __enter__(self) -> "Scraper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(2 * TIMEOUT_S)

    def take(self) -> Sequence[Page]:
        """The pages that were read since the last call, oldest first."""
        pages: list[Page] = []
        with contextlib.suppress(Empty):
            while True:
                pages.append(self._pages.get_nowait())
        return pages

    def _visit_all(self) -> None:
        while not self._stopping.is_set():
            for name, status_file in self._status_files.items():
                address = metrics_address(status_file)
                samples = read_page(address) if address else None
                if samples is not None:
                    self._pages.put((name, samples, self._clock()))
            self._stopping.wait(self._every_s)
