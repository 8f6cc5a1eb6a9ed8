"""A real inference that runs out of file descriptors goes on serving, says what to do, and takes more when it may."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from seedbed.services.tools.cli.scrape import read_page, read_status
from seedbed.shared.net.file_reserve import RESERVED, most_connected
from tests.support.deployment import Deployment, wait_until

RESIDENT, VISITOR = 12, 6
FREE = 20  # descriptors that are left for connections
MANY = 400  # connections, more than the process may have in all
LIMIT = 256


@contextlib.contextmanager
def connections(address: str, number: int) -> Iterator[None]:
    """So many TCP connections that say nothing, dialled at once."""
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
        yield


@contextlib.contextmanager
def descriptors_left(process_id: int, used: int) -> Iterator[int]:
    """A running process with FREE descriptors for connections, and the usual reserve; yields its limit."""
    soft, hard = resource.prlimit(process_id, resource.RLIMIT_NOFILE)
    limit = used + RESERVED + FREE
    resource.prlimit(process_id, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield limit
    finally:
        resource.prlimit(process_id, resource.RLIMIT_NOFILE, (soft, hard))


def test_who_is_in_is_served_while_others_find_no_descriptor(deployment: Deployment) -> None:
    """The newcomers are refused by a reason of their own; once there is room, an actor comes in."""
    inference = deployment.inference
    with descriptors_left(inference.process.pid, inference.process.num_fds()) as limit:
        with connections(inference_address(deployment), MANY):
            wait_until(lambda: inference.by_label("refused_peers_total").get("open_files"), "newcomers are refused")
            deployment.wait_trained(500)
            assert inference.process.num_fds() < limit
        (refusal,) = [event for event in inference.events("peer_refused") if event["reason"] == "open_files"]
        assert "ulimit" in refusal["hint"]
    deployment.add_actor("visitor", "actor.groups=1").start()
    deployment.wait_lanes(RESIDENT + VISITOR)
    assert inference.events("few_open_files") == []


def inference_address(deployment: Deployment) -> str:
    """Where the inference listens."""
    return str(read_status(deployment.inference.status_file)["endpoint"])


def test_a_service_that_may_open_few_files_says_so_at_its_start_and_survives_more_connections(tmp_path: Path) -> None:
    """It raises its own limit as far as it may. Its metrics page answers while connections wait outside."""
    status, log = tmp_path / "inference.json", tmp_path / "inference.jsonl"
    words = [
        "inference.bind=tcp://127.0.0.1:0", "inference.upstream=tcp://127.0.0.1:9", f"runtime.status_file={status}",
        f"runtime.log_file={log}", "runtime.threads=1",
    ]  # fmt: skip
    service = [sys.executable, "-m", "seedbed.inference_svc", *words]
    with subprocess.Popen(["sh", "-c", f'ulimit -Sn 96 && ulimit -Hn {LIMIT} && exec "$@"', "sh", *service]) as process:
        try:
            found = wait_until(lambda: read_status(status), "it is ready")
            (warning,) = [line for line in events(log) if line["event"] == "few_open_files"]
            assert (warning["limit"], warning["connections"]) == (LIMIT, most_connected(LIMIT))
            assert "ulimit" in warning["hint"]
            with connections(str(found["endpoint"]), MANY):
                wait_until(lambda: any(line.get("reason") == "open_files" for line in events(log)), "it says why")
                # Until the first of them are ended there may be no descriptor for reading the limit.
                page = wait_until(lambda: whole_page(str(found["metrics"])), "its metrics page answers")
            assert page["process_max_fds"] == LIMIT
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def events(log: Path) -> list[dict[str, object]]:
    """The lines of a log that are complete."""
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]]


def whole_page(address: str) -> dict[str, float] | None:
    """The samples of a metrics page; None unless it has those of the process, which are read from files."""
    page = read_page(address)
    return page if page is not None and "process_max_fds" in page else None
