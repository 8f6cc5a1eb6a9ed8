"""Reads the /metrics pages of a run's services in threads of its own: nobody's page may hold up who asks.

A page counts only if it names the incarnation that was asked for: after a service has ended, its port may belong to
anybody, its own successor too.
"""

import contextlib
import http.client
import io
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from seedbed.services.tools.cli.run_state import read_object
from seedbed.shared.figures import service

EVERY_S = 1.0
TIMEOUT_S = 1.0  # for a whole visit, from dialling to the last byte
NUM_THREADS = 16
MAX_PAGE_BYTES = 4 * 1024 * 1024
INFO = service.INFO.sample
KEPT_LABELS = ("task", "statistic")  # whose samples are told apart

Page = tuple[str, Mapping[str, float], float]  # service, samples, time


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An HTTP answer: its status, headers and body."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes


class _Heard:
    """Bytes that have come, in the shape of the socket that `HTTPResponse` reads from."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, _mode: str) -> io.BytesIO:
        """The answer's bytes as a file, which is what http.client asks a socket for."""
        return io.BytesIO(self._data)


def fetch(address: str, path: str, *, timeout_s: float = TIMEOUT_S, max_bytes: int = MAX_PAGE_BYTES) -> Fetched:
    """What a service's own page server says at a path, the proxies of the user left aside.

    `timeout_s` is for all of it together: whoever sends a byte now and then is not waited for.

    Raises: OSError, TimeoutError among them; ValueError, OverflowError or HTTPException for no address or answer.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + timeout_s
    with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n".encode("ascii"))
        pieces, num_bytes = [], 0
        while num_bytes <= max_bytes:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"{address}{path} took longer than {timeout_s:g} s")
            connection.settimeout(left_s)
            piece = connection.recv(1 << 16)
            if not piece:
                break
            pieces.append(piece)
            num_bytes += len(piece)
        else:
            raise ValueError(f"{address}{path} has more than {max_bytes} bytes")
    answer = http.client.HTTPResponse(_Heard(b"".join(pieces)))  # type: ignore[arg-type]
    answer.begin()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return Fetched(status=answer.status, headers=headers, body=answer.read())


def parse_families(page: bytes) -> tuple[Metric, ...]:
    """The metrics of a page. Raises: ValueError for what is none."""
    return tuple(text_string_to_metric_families(page.decode()))


def incarnation_of(families: Iterable[Metric]) -> str:
    """The incarnation that a page names, hexadecimal; empty if it names none."""
    labels = (sample.labels for family in families if family.name == INFO for sample in family.samples)
    return next((found.get("incarnation", "") for found in labels), "")


def sum_samples(families: Iterable[Metric]) -> dict[str, float]:
    """Sample name → value, summed over its labels; the buckets of histograms are left out.

    Those of a task, of a statistic, or of a task's statistic stand there once more, under `labelled(name, …)`.
    """
    samples: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                samples[sample.name] = samples.get(sample.name, 0.0) + sample.value
                values = [sample.labels[label] for label in KEPT_LABELS if label in sample.labels]
                if values:
                    samples[labelled(sample.name, *values)] = sample.value
    return samples


def labelled(name: str, *values: str) -> str:
    """What a sample with values of `KEPT_LABELS` is called, in that order; without any, its own name."""
    return f"{name}{{{','.join(values)}}}" if values else name


def read_status(status_file: Path) -> dict[str, Any]:
    """Return what a service wrote when it was ready; empty while it is not."""
    return read_object(status_file)


def read_page(address: str, incarnation: int | None = None) -> dict[str, float] | None:
    """One service's samples; None if it does not answer in time, or another than this incarnation does."""
    try:
        families = parse_families(fetch(address, "/metrics").body)
    except (OSError, ValueError, OverflowError, http.client.HTTPException):
        return None
    if incarnation is not None and incarnation_of(families) != f"{incarnation:x}":
        return None
    return sum_samples(families)


class Scraper:
    """A daemon thread that visits all services once a second, side by side; `take` gives what has come since."""

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
        with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="scrape") as pool:
            while not self._stopping.is_set():
                list(pool.map(self._visit, self._status_files))
                self._stopping.wait(self._every_s)

    def _visit(self, name: str) -> None:
        status = read_status(self._status_files[name])
        address, incarnation = str(status.get("metrics", "")), status.get("incarnation")
        if not address or not isinstance(incarnation, int):
            return
        samples = read_page(address, incarnation)
        if samples is not None:
            self._pages.put((name, samples, self._clock()))
