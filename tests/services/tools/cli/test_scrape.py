"""Reading the services' /metrics pages."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from seedbed.services.tools.cli.scrape import (
    Scraper,
    fetch,
    labelled,
    parse_families,
    read_page,
    read_status,
    sum_samples,
)
from seedbed.shared.runtime.metrics import Metrics


@pytest.fixture
def metrics():
    """A served page with a counter, a gauge and a histogram."""
    with Metrics("learner", "learner", 1) as metrics:
        counter = metrics.counter("things", "Things.", ("kind",))
        counter.labels("a").inc(2)
        counter.labels("b").inc(3)
        metrics.gauge("level", "Level.").set(1.5)
        metrics.read_counters("steps", "Steps.", "task", lambda: {"pong": 4.0, "golf": 6.0})
        metrics.read_gauges("share", "Share.", "task", lambda: {"pong": 0.4})
        metrics.histogram("time_seconds", "Time.").observe(0.25)
        metrics.serve("127.0.0.1:0")
        yield metrics


def test_a_page_becomes_numbers(metrics):
    """Labels are summed up, buckets left out."""
    samples = sum_samples(parse_families(metrics.text().encode()))
    assert samples["seedbed_things_total"] == 5
    assert samples["seedbed_level"] == 1.5
    assert samples["seedbed_steps_total"] == 10
    assert samples[labelled("seedbed_steps_total", "golf")] == 6
    assert samples[labelled("seedbed_share", "pong")] == 0.4
    assert samples["seedbed_time_seconds_sum"] == 0.25
    assert samples["seedbed_time_seconds_count"] == 1
    assert not any(name.endswith(("_bucket", "_created")) for name in samples)


def test_a_service_is_read_over_http(metrics):
    """At the address of its status file."""
    samples = read_page(metrics.address)
    assert samples is not None
    assert samples["seedbed_level"] == 1.5


def test_a_proxy_of_the_users_is_not_asked(metrics):
    """It knows nothing of our loopback, and the table would stay empty."""
    imports = "import sys; from seedbed.services.tools.cli.scrape import read_page"
    code = f"{imports}; sys.exit(read_page({metrics.address!r}) is None)"
    variables = {"http_proxy": "http://127.0.0.1:1", "no_proxy": ""}
    assert subprocess.run([sys.executable, "-c", code], env=os.environ | variables, check=False).returncode == 0


def test_a_page_of_another_incarnation_is_none(metrics):
    """A port that a service left may be its successor's, or anybody's."""
    assert read_page(metrics.address, incarnation=1) is not None
    assert read_page(metrics.address, incarnation=2) is None


@pytest.fixture
def dripper():
    """The address of somebody who answers, a byte now and then, for ever."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.0 200 OK\r\n")
                while not ended.wait(0.02):
                    connection.sendall(b"X: y\r\n")

        thread = threading.Thread(target=drip)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        ended.set()
        thread.join()


def test_a_service_that_drips_is_left_at_the_deadline(dripper):
    """However often it sends a byte: the limit is on the whole visit."""
    with pytest.raises(TimeoutError):
        fetch(dripper, "/metrics", timeout_s=0.3)


def test_a_page_without_end_is_refused(metrics):
    """Before it fills the memory."""
    with pytest.raises(ValueError, match="more than 100 bytes"):
        fetch(metrics.address, "/metrics", max_bytes=100)


def test_a_service_that_does_not_answer_is_none():
    """Gone, or never there."""
    assert read_page("127.0.0.1:1") is None
    assert read_page("nonsense") is None


@pytest.mark.parametrize(
    ("text", "address"), [("", ""), ("{", ""), ("[]", ""), ('{"metrics": "127.0.0.1:9"}', "127.0.0.1:9")]
)
def test_the_address_is_in_the_status_file(tmp_path, text, address):
    """A file that is not there yet, or no status, is no address."""
    file = tmp_path / "status.json"
    assert read_status(file) == {}
    file.write_text(text)
    assert read_status(file).get("metrics", "") == address


def test_the_scraper_brings_pages_to_its_owner(metrics, tmp_path):
    """In a thread of its own; services that are not ready are skipped."""
    status = tmp_path / "learner.json"
    status.write_text(json.dumps({"metrics": metrics.address, "incarnation": 1}))
    seen = threading.Event()

    def clock() -> float:
        seen.set()
        return 7.0

    files = {"learner": status, "actor-0": tmp_path / "absent.json"}
    with Scraper(files, clock=clock, every_s=0.01) as scraper:
        assert seen.wait(20)
    pages = scraper.take()
    assert pages
    assert {(name, at) for name, _, at in pages} == {("learner", 7.0)}
    assert pages[0][1]["seedbed_level"] == 1.5
    assert scraper.take() == []
