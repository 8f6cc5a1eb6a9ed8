"""The page in a real browser: it draws the curves of a run, and the browser has nothing to complain about."""

import html
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from seedbed.shared.runtime.metrics import Metrics
from tests.support.monitor_process import running
from tests.support.run_folders import row, write_run, write_status

for module in ("starlette", "uvicorn"):
    pytest.importorskip(module, reason="the extra `monitor` is not installed")

PAGE = Path(__file__).parents[4] / "services" / "tools" / "monitor" / "page"
BROWSER = shutil.which("chromium")
FIRST_COLOUR = (0x00, 0x72, 0xB2)  # --run0 in light colours
MIN_HEIGHT = 80  # pixels: the rising line has more; keys and ticked boxes have a few


def browse(address, folder):
    """The page after some seconds of its own time: its DOM, what the browser logged, and a picture."""
    picture = folder / "page.png"
    command = [
        BROWSER, "--headless=new", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr",
        "--window-size=1200,850", "--virtual-time-budget=5000", "--dump-dom", f"--screenshot={picture}",
        "--disable-background-networking", *(["--no-sandbox"] if os.geteuid() == 0 else []), address,
    ]  # fmt: skip
    try:
        said, logged = run_browser(command)
    except subprocess.TimeoutExpired:  # on a busy machine the browser's own time can stand still for ever
        said, logged = run_browser(command)
    return said, [line for line in logged.splitlines() if "CONSOLE" in line], picture


def run_browser(command):
    """Its output and log. Nothing of it is left, even if it does not end by itself."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, logged = process.communicate(timeout=45)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert process.returncode == 0, logged
    return said, logged


def rows_with(image, colour):
    """How many of a picture's rows have a pixel that is nearly of this colour."""
    return int((np.abs(np.asarray(image, dtype=int) - colour).max(axis=2) < 40).any(axis=1).sum())


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_the_page_shows_the_curves_services_and_alerts_of_a_run(tmp_path):
    """Lines in the run's colour, figures at every curve, the map of services; no error and no refused resource."""
    name = "first <b>run"
    run = write_run(tmp_path / "runs" / name, [row(n, evaluated="21.5" if n == 30 else "") for n in range(1, 60)])
    with Metrics("learner", "learner", 0xA1) as metrics:
        metrics.read_gauge("learner_state", "State.", lambda: 1)
        metrics.serve("127.0.0.1:0")
        write_status(run, "learner", "learner", incarnation=0xA1, metrics=metrics.address)
        write_status(run, "actor-0", "actor", incarnation=0xC3, metrics=metrics.address)
        with running(tmp_path / "runs") as (_, (host, port)):
            dom, complaints, picture = browse(f"http://{host}:{port}/", tmp_path)
    assert complaints == []
    assert "connected" in dom
    texts = [html.unescape(text) for text in re.findall(r">([^<>]+)<", dom)]
    assert name in texts  # as text: a folder's name is never markup
    assert {"29.5", "21.5", "● up", "✗ gone"} <= {re.sub(r"(up|gone) .*", r"\1", text.strip()) for text in texts}
    assert any("actor-0: ended, or not answering" in text for text in texts)
    assert dom.count("<canvas") >= 3
    image = pytest.importorskip("PIL.Image").open(picture).convert("RGB")
    assert rows_with(image.crop((0, 0, image.width // 3, image.height)), FIRST_COLOUR) > MIN_HEIGHT


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_scripts_are_well_formed(tmp_path):
    """As modules."""
    for script in PAGE.glob("*.js"):
        copy = tmp_path / f"{script.stem}.mjs"
        copy.write_bytes(script.read_bytes())
        subprocess.run(["node", "--check", str(copy)], check=True, capture_output=True, timeout=60)


def test_every_file_that_the_page_names_is_there():
    """Its own, none from elsewhere; scripts and styles are files, as the policy wants it."""
    text = (PAGE / "index.html").read_text()
    named = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert named
    for address in named:
        assert (PAGE / address.removeprefix("/static/")).is_file()
    assert not re.search(r"<style|style=|<script>|\son\w+=", text)
    for script in PAGE.glob("*.js"):
        for address in re.findall(r'from "([^"]+)"', script.read_text()):
            assert (PAGE / address).is_file()
    assert "MIT" in (PAGE / "uplot" / "LICENSE").read_text()
