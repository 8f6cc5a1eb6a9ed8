"""The page says what the service counted, to this machine only."""

import contextlib
import socket
import threading
import urllib.request

import pytest

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.metrics import MAX_CONNECTIONS, Metrics


def test_the_page_shows_every_kind_of_metric():
    """Counters, gauges, histograms, and figures that are looked up when asked."""
    steps = 0
    with Metrics("inference", "inference-1", 255) as metrics:
        metrics.counter("batches_total", "Batches.").inc(3)
        metrics.gauge("lanes", "Lanes.", ("mode",)).labels(mode="train").set(8)
        metrics.histogram("forward_seconds", "Forward pass.").observe(0.003)
        metrics.read_counter("steps", "Steps.", lambda: steps)
        metrics.read_gauge("lag", "Lag.", lambda: 0.5)
        metrics.read_histogram("age", "Age.", (0, 1, 3), lambda: ((4, 2, 0, 1), 11.0))
        metrics.read_counters("ends", "Ends.", "reason", lambda: {"silent": steps, "closed": 1})
        metrics.serve("127.0.0.1:0")
        steps = 7
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=10) as reply:
            page = reply.read().decode()
    assert "seedbed_batches_total 3.0" in page
    assert 'seedbed_lanes{mode="train"} 8.0' in page
    assert 'seedbed_forward_seconds_bucket{le="0.005"} 1.0' in page
    assert "seedbed_steps_total 7.0" in page
    assert "seedbed_lag 0.5" in page
    counted = [(f'{{le="{bound}"}}', count) for bound, count in (("0.0", 4), ("1.0", 6), ("3.0", 6), ("+Inf", 7))]
    assert all(f"seedbed_age_bucket{label} {count}.0" in page for label, count in counted)
    assert ("seedbed_age_sum 11.0" in page, "seedbed_age_count 7.0" in page) == (True, True)
    assert 'seedbed_ends_total{reason="silent"} 7.0' in page
    assert 'incarnation="ff"' in page
    assert "process_resident_memory_bytes" in page


def test_closing_ends_the_thread():
    """Nothing is left behind, and closing again is no error."""
    before = threading.active_count()
    metrics = Metrics("a", "a", 1)
    metrics.serve("127.0.0.1:0")
    assert threading.active_count() == before + 1
    metrics.close()
    metrics.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("address", "said"),
    [("0.0.0.0:0", "open to the network"), ("nonsense", "not host:port"), ("127.0.0.1:x", "not host:port")],
)
def test_a_wrong_address_is_a_configuration_error(address, said):
    """The error names the key."""
    with Metrics("a", "a", 1) as metrics, pytest.raises(ConfigError, match=rf"runtime\.metrics_address.*{said}"):
        metrics.serve(address)


def test_a_taken_address_is_a_configuration_error():
    """The second page on one port is refused."""
    with Metrics("a", "a", 1) as first, Metrics("b", "b", 2) as second:
        first.serve("127.0.0.1:0")
        with pytest.raises(ConfigError, match="in use"):
            second.serve(first.address)


def test_idle_connections_cost_little_and_shut_nobody_out():
    """Hundreds that connect and say nothing: the oldest are hung up on, and a scrape is answered."""
    with Metrics("learner", "learner", 1) as metrics, contextlib.ExitStack() as stack:
        metrics.serve("127.0.0.1:0")
        host, _, port = metrics.address.rpartition(":")
        before = threading.active_count()
        for _ in range(300):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
        with urllib.request.urlopen(f"http://{metrics.address}/metrics", timeout=20) as answer:
            assert b"seedbed_service_info" in answer.read()
        assert threading.active_count() - before <= MAX_CONNECTIONS + 1
