"""`seedbed play --browser`: a page on loopback whose keys move the environment, and that nobody else may press."""

import http.client
import json
import re
import signal
import struct
import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from seedbed.services.tools.cli.app import main
from tests.support.browser import BROWSER, browsing

for module in ("orjson", "starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")

MEMORY = ["seedbed.services.memory.env:make", "env.kwargs={cues = 2, min_delay = 0, max_delay = 0}"]
END_S = 60


@contextmanager
def playing(*words, exit_code=0):
    """The command in a process of its own; itself, and (host, port) of its page."""
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "play", *words, "--browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = re.search(r"http://([\d.]+):(\d+)/", process.stdout.readline())
            assert found, process.stderr.read()
            services = psutil.Process(process.pid).children()
            assert len(services) == 1
            yield process, (found[1], int(found[2]))
            assert process.wait(END_S) == exit_code
            assert not services[0].is_running()
        finally:
            process.kill()


def ask(where, path, method="GET", **headers):
    """Status and body of one answer."""
    connection = http.client.HTTPConnection(*where, timeout=END_S)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def press(where, key):
    """What is shown after a key."""
    status, body = ask(where, f"/api/press?key={key}", "POST", Origin=f"http://{where[0]}:{where[1]}")
    assert status == 200, body
    return json.loads(body)


def test_keys_move_the_environment_until_the_game_is_over():
    """Figures, picture and keys are on the page; q ends it, with a summary."""
    with playing(*MEMORY) as (process, where):
        status, page = ask(where, "/")
        assert (status, b"seedbed play" in page) == (200, True)
        for file in set(re.findall(rb"/static/[\w.]+", page)):
            assert ask(where, file.decode())[0] == 200
        opening = json.loads(ask(where, "/api/game")[1])
        assert (opening["flags"], opening["steps"]) == ("first", 0)
        assert opening["keys"] == [[0, ["0", "left"]], [1, ["1", "right"]]]
        status, frame = ask(where, "/api/picture")
        height, width = struct.unpack("<II", frame[:8])
        assert (status, len(frame)) == (200, 8 + 3 * height * width)
        moved = press(where, "left")
        assert (moved["steps"], moved["actions"]) == (1, [0])
        assert moved["picture"] > opening["picture"]
        assert press(where, "x")["note"] == "'x' is no action here"
        ended = press(where, "right")
        assert ended["has_ended"]
        assert len(ended["returns"]) == 1
        assert press(where, "q")["is_over"]
        assert process.stdout.read().startswith("1 episodes, returns")


def test_strangers_are_refused():
    """Another name for this machine, another site's page; they move nothing."""
    with playing(*MEMORY) as (process, where):
        assert ask(where, "/", Host="evil.example")[0] == 421
        assert ask(where, "/api/press?key=0", "POST", Host="evil.example")[0] == 421
        assert ask(where, "/api/press?key=0", "POST", Origin="http://evil.example")[0] == 403
        assert ask(where, "/api/press?key=0")[0] == 405
        assert json.loads(ask(where, "/api/game")[1])["steps"] == 0
        process.send_signal(signal.SIGINT)


def test_ctrl_c_ends_in_order():
    """The service gets the signal as well, as from a terminal; the summary is told."""
    with playing(*MEMORY) as (process, where):
        press(where, "0")
        (service,) = psutil.Process(process.pid).children()
        service.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert "after 1 steps" in process.stdout.read()


def test_a_service_that_dies_ends_the_game():
    """Without a key; with what happened."""
    with playing(*MEMORY, exit_code=1) as (process, _where):
        psutil.Process(process.pid).children()[0].send_signal(signal.SIGKILL)
        assert "signal 9" in process.stderr.read()


def test_a_policy_is_not_played_in_the_browser(capsys):
    """Exit status 78."""
    assert main(["play", MEMORY[0], "--run", "some", "--browser"]) == 78
    assert "watched in the terminal" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_a_real_browser_plays(tmp_path):
    """Keys and buttons; the picture is drawn; nothing is complained of."""
    with playing(*MEMORY) as (_process, where), browsing(tmp_path) as browser:
        browser.open(f"http://{where[0]}:{where[1]}/")
        browser.wait("document.querySelectorAll('#keys button').length === 2", "a button for each action")
        browser.wait("document.querySelector('#picture').width > 1 && !document.querySelector('#picture').hidden")
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft")
        browser.wait("document.querySelector('#steps').textContent === '1'", "the key moves it")
        browser.evaluate("document.querySelectorAll('#keys button')[1].click()")
        browser.wait("document.querySelector('#steps').textContent === '2'", "the button moves it")
        assert browser.evaluate("document.querySelector('#actions').textContent") == "0  1"
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="q")
        browser.wait("document.querySelector('#notice').textContent.includes('The game is over')")
        assert not browser.logged
