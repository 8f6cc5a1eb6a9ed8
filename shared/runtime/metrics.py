"""The Prometheus metrics of a process, and the loopback page that serves them.

The hot path counts in plain attributes; `read_counter` and `read_gauge` read these at each scrape.
"""

import ipaddress
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import declare
from seedbed.shared.figures import service as service_figures
from seedbed.shared.figures.declare import PREFIX

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

# → number by the values of one or several labels; called in the page's thread
ReadLabelled = Callable[[], Mapping[str, float]] | Callable[[], Mapping[tuple[str, ...], float]]
_Family = CounterMetricFamily | GaugeMetricFamily
MAX_CONNECTIONS = 64  # to the page, at a time
IDLE_S = 10.0  # a connection that says nothing is closed
SHUTDOWN_POLL_S = 0.05  # how long `close` may block
SECONDS_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


Answer = tuple[Mapping[str, str], bytes]  # headers and body
ReadHistogram = Callable[[], tuple[Sequence[int], float]]  # returns the count of each range, and the sum of all values


def describe_picture(incarnation: int, number: int, version: int, age_s: float) -> dict[str, str]:
    """Return the headers of a picture: process, number, packed policy version, age."""
    return {
        "X-Seedbed-Incarnation": f"{incarnation:x}",
        "X-Seedbed-Number": str(number),
        "X-Seedbed-Version": str(version),
        "X-Seedbed-Age": f"{max(0.0, age_s):.2f}",
    }


class _Page(ThreadingMixIn, WSGIServer):
    """The page's server: one short-lived thread for each scrape, which cannot keep the process alive.

    A silent connection occupies a thread and a descriptor; if there are too many, the oldest are closed.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in its own thread, closing the oldest one if there are too many."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS:
                with suppress(OSError):
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                del self._open[next(iter(self._open))]
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that was served."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that hung up or sent nothing."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _SilentHandler(WSGIRequestHandler):
    """A handler that logs nothing about scrapes."""

    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: an access log would say only that Prometheus asks."""


class _Readings(Collector):
    """A collector of numbers that are read at each scrape."""

    def __init__(self) -> None:
        self.counters: list[tuple[str, str, Callable[[], float]]] = []
        self.gauges: list[tuple[str, str, Callable[[], float]]] = []
        self.histograms: list[tuple[str, str, Sequence[float], ReadHistogram]] = []
        self.labelled: list[tuple[type[_Family], str, str, str | tuple[str, ...], ReadLabelled]] = []

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics. Called by the registry in the page's thread."""
        for name, description, read in tuple(self.counters):
            yield CounterMetricFamily(name, description, value=read())
        for name, description, read in tuple(self.gauges):
            yield GaugeMetricFamily(name, description, value=read())
        for name, description, bounds, read_all in tuple(self.histograms):
            counts, total = read_all()
            upto = [str(bound) for bound in map(float, bounds)] + ["+Inf"]
            buckets = list(zip(upto, accumulate(counts), strict=True))
            yield HistogramMetricFamily(name, description, buckets=buckets, sum_value=total)
        for kind, name, description, labels, read_each in tuple(self.labelled):
            family = kind(name, description, labels=_as_tuple(labels))
            for values, figure in tuple(read_each().items()):
                family.add_metric(_as_tuple(values), figure)
            yield family


class Metrics:
    """All metrics of one service, under the prefix `seedbed_`. A context manager; any thread may call it."""

    def __init__(self, service: str, name: str, incarnation: int) -> None:
        self.registry = CollectorRegistry()
        self.address = ""  # host:port once served
        self._readings = _Readings()
        self._pages: dict[str, Callable[[], Answer | None]] = {}
        self._metrics_page = prometheus_client.make_wsgi_app(self.registry)
        self._server: tuple[WSGIServer, threading.Thread] | None = None
        self.registry.register(self._readings)
        prometheus_client.ProcessCollector(registry=self.registry)
        prometheus_client.GCCollector(registry=self.registry)
        labels = {"service": service, "name": name, "incarnation": f"{incarnation:x}"}
        info = service_figures.INFO
        self.gauge(info.name, info.meaning, info.labels).labels(**labels).set(1)

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        """Make a metric that only rises."""
        return Counter(PREFIX + name, description, labels, registry=self.registry)

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        """Make a metric that rises and falls."""
        return Gauge(PREFIX + name, description, labels, registry=self.registry)

    def histogram(
        self, name: str, description: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> Histogram:
        """Make a histogram; the default ranges are for seconds."""
        return Histogram(PREFIX + name, description, labels, buckets=buckets, registry=self.registry)

    def read_counter(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Make a counter that `read` returns; it is called in the page's thread."""
        self._readings.counters.append((PREFIX + name, description, read))

    def read_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Make a gauge that `read` returns; it is called in the page's thread."""
        self._readings.gauges.append((PREFIX + name, description, read))

    def read_histogram(self, name: str, description: str, bounds: Sequence[float], read: ReadHistogram) -> None:
        """Make a histogram that `read` returns in the page's thread: counts up to each bound, and above the last."""
        self._readings.histograms.append((PREFIX + name, description, bounds, read))

    def read(self, metric: declare.Metric, read: Callable[[], float]) -> None:
        """Make a declared counter or gauge; `read` is called in the page's thread."""
        add = self.read_counter if metric.kind is declare.Kind.COUNTER else self.read_gauge
        add(metric.name, metric.meaning, read)

    def read_labelled(self, metric: declare.Metric, read: ReadLabelled) -> None:
        """Make a declared counter or gauge with labels; `read` is called in the page's thread."""
        add = self.read_counters if metric.kind is declare.Kind.COUNTER else self.read_gauges
        add(metric.name, metric.meaning, metric.labels, read)

    def page(self, path: str, read: Callable[[], Answer | None]) -> None:
        """Serve another path besides /metrics; `read` is called in the page's thread; None means not found."""
        self._pages[path] = read

    def read_counters(self, name: str, description: str, labels: str | tuple[str, ...], read: ReadLabelled) -> None:
        """Make a counter by the values of one or several labels; `read` is called in the page's thread."""
        self._readings.labelled.append((CounterMetricFamily, PREFIX + name, description, labels, read))

    def read_gauges(self, name: str, description: str, labels: str | tuple[str, ...], read: ReadLabelled) -> None:
        """Make a gauge by the values of one or several labels; `read` is called in the page's thread."""
        self._readings.labelled.append((GaugeMetricFamily, PREFIX + name, description, labels, read))

    def text(self) -> str:
        """Return the page in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry).decode()

    def serve(self, address: str) -> None:
        """Serve /metrics at host:port on this machine; port 0: any free one.

        Raises: ConfigError if the address is malformed, open to the network, or taken.
        """
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ConfigError(f"runtime.metrics_address: {address!r} is not host:port, for example 127.0.0.1:0")
        if not _is_loopback(host):
            raise ConfigError(f"runtime.metrics_address: {address} is open to the network: use 127.0.0.1:{port}")
        try:
            server = make_server(host.strip("[]"), int(port), self._answer, _Page, _SilentHandler)
        except OSError as error:
            raise ConfigError(f"runtime.metrics_address: {address}: {error.strerror or error}") from error
        thread = threading.Thread(target=server.serve_forever, args=(SHUTDOWN_POLL_S,), name="metrics", daemon=True)
        thread.start()
        self._server = server, thread
        self.address = f"{host}:{server.server_port}"

    def _answer(self, environment: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        """Answer one request, in its own thread."""
        read = self._pages.get(environment.get("PATH_INFO", ""))
        if read is None:
            page: Iterable[bytes] = self._metrics_page(environment, start)
            return page
        answer = read()
        if answer is None:
            start("204 No Content", [])
            return []
        headers, body = answer
        start("200 OK", [("Content-Type", "application/octet-stream"), *headers.items()])
        return [body]

    def close(self) -> None:
        """Close the page and end its thread. Idempotent."""
        if self._server is not None:
            server, thread = self._server
            self._server = None
            server.shutdown()
            server.server_close()
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _as_tuple(labels: Sequence[str]) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else tuple(labels)


def _is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
