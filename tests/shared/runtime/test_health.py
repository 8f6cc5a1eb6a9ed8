"""Whether the service of a container is alive: what starts it anew, and what does not."""

import http.server
import json
import threading

import pytest

from seedbed.shared.runtime.health import (
    CAUSE_VARIABLE,
    PARTS,
    STATUS_VARIABLE,
    check_alive,
    check_ready,
    leave_cause,
)


class PageHandler(http.server.BaseHTTPRequestHandler):
    """A service's metrics, of incarnation ab."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'seedbed_service_info{incarnation="ab"} 1\n')

    def log_message(self, *_words):
        """Nothing."""


@pytest.fixture
def container(tmp_path):
    """The variables of a container whose service has begun, and its page."""
    with http.server.HTTPServer(("127.0.0.1", 0), PageHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status = {"metrics": f"127.0.0.1:{server.server_port}", "incarnation": 0xAB, "endpoint": "tcp://127.0.0.1:1"}
        (tmp_path / "status").write_text(json.dumps(status))
        yield {STATUS_VARIABLE: str(tmp_path / "status"), CAUSE_VARIABLE: str(tmp_path / "cause")}, server
        server.shutdown()


def test_a_service_that_answers_is_alive(container):
    """And ready."""
    variables, _ = container
    assert check_alive(variables) == check_ready(variables) == ""


def test_a_service_that_was_ready_and_answers_no_more_is_not(container):
    """Whoever looks starts it anew."""
    variables, server = container
    server.shutdown()
    server.server_close()
    assert check_alive(variables)


def test_a_service_that_starts_is_left_alone(container, tmp_path):
    """It may take as long as it likes."""
    variables, _ = container
    (tmp_path / "status").unlink()
    assert check_ready(variables)
    assert check_alive(variables) == ""


def test_one_of_several_in_a_container_that_starts_is_left_alone_and_one_that_hangs_is_not(container, tmp_path):
    """An actor of a run with tasks is a process for each, and each may take as long as it likes."""
    variables, server = container
    (tmp_path / "parts").write_text(json.dumps({PARTS: [str(tmp_path / "starting"), variables[STATUS_VARIABLE]]}))
    variables[STATUS_VARIABLE] = str(tmp_path / "parts")
    assert check_ready(variables)
    assert check_alive(variables) == ""
    server.shutdown()
    server.server_close()
    assert check_alive(variables)


def test_a_service_that_was_refused_is_left_alone(container, tmp_path):
    """It holds, for somebody to read why."""
    variables, server = container
    (tmp_path / "cause").write_text("no such environment\n")
    server.shutdown()
    server.server_close()
    assert check_ready(variables) == "no such environment"
    assert check_alive(variables) == ""


def test_a_cause_is_replaced_as_a_whole(tmp_path, monkeypatch):
    """Whoever reads meanwhile, or is left when a process is killed in writing, has the old one or the new one."""
    monkeypatch.setenv(CAUSE_VARIABLE, str(tmp_path / "cause"))
    leave_cause("the first")
    with (tmp_path / "cause").open() as reader:
        leave_cause("the second")
        assert reader.read() == "the first\n"
    assert [file.read_text() for file in tmp_path.iterdir()] == ["the second\n"]


def test_a_cause_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch, capsys):
    """And is said, with the file."""
    (tmp_path / "cause").mkdir()
    monkeypatch.setenv(CAUSE_VARIABLE, str(tmp_path / "cause"))
    leave_cause("the end")
    assert str(tmp_path / "cause") in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["cause"]
