"""Watchdog: a hanging environment ends the process, whether it waits or computes."""

import subprocess
import sys

import pytest

from seedbed.shared.runtime.watchdog import Watchdog

SCRIPT = """
import threading, time
from seedbed.shared.runtime.watchdog import Watchdog

began = time.monotonic()
dog = Watchdog(lambda: time.monotonic() - began, 0.3, lambda seconds: print("hung", flush=True), grace_s=0.3)
dog.pet()
threading.Thread(target=lambda: {hang}, name="env", daemon=True).start()
while True:
    time.sleep(0.05)
    dog.pet()
"""


@pytest.mark.parametrize(
    ("hang", "is_reported"), [("threading.Event().wait()", True), ("sum(range(10**12))", False)], ids=["waits", "spins"]
)
def test_a_hanging_thread_ends_the_process(hang: str, is_reported: bool) -> None:
    """Exit code 1 and a traceback of where it hangs; the loop can report only if the interpreter lock is free."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(hang=hang)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "most recent call first" in done.stderr
    assert ("hung" in done.stdout) is is_reported


@pytest.mark.parametrize(("busy_s", "is_hanging"), [(0.0, False), (59.0, False), (61.0, True)])
def test_only_a_long_job_is_a_hang(busy_s: float, is_hanging: bool) -> None:
    """An idle thread waits for inference, however long."""
    dog = Watchdog(lambda: busy_s, 60.0, lambda _seconds: None)
    assert dog.is_hanging() is is_hanging


CLOSED = """
import threading
from seedbed.shared.runtime.watchdog import Watchdog

dog = Watchdog(lambda: 0.0, 0.1, lambda seconds: None, grace_s=0.1)
dog.pet()
{close}
threading.Event().wait(1.5)  # nobody pets it
"""


@pytest.mark.parametrize(("close", "exit_code"), [("dog.close()", 0), ("", 1)], ids=["closed", "left alone"])
def test_closing_calls_it_off(close: str, exit_code: int) -> None:
    """A watchdog that nobody pets ends its process, unless it was closed."""
    command = [sys.executable, "-c", CLOSED.format(close=close)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == exit_code
