"""The launcher with real, tiny child processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from seedbed.services.tools.cli.launcher import Ended, Launcher, Reservation
from seedbed.services.tools.cli.plan import Process
from seedbed.services.tools.cli.supervisor import Outcome, Rules, Supervisor
from tests.support.deployment import living
from tests.support.full_disk import full_disk

QUICK = Rules(first_delay_s=0.01, max_delay_s=0.02, leave_grace_s=0.01)
PATIENCE_S = {"actor": 20.0, "inference": 20.0, "learner": 20.0}
WAIT = "import signal; signal.pause()"
APPEND = "import sys; open(sys.argv[1], 'a').write(sys.argv[2])"


class Watcher:
    """A view that remembers events, and runs a reaction at each refresh until it says True."""

    def __init__(self, react=None):
        self.events: list[str] = []
        self.react = react
        self.launcher: Launcher | None = None

    def happened(self, text: str) -> None:
        self.events.append(text)

    def refresh(self, supervisor: Supervisor, now: float) -> None:
        if self.react is not None and self.react(self.launcher):
            self.launcher.request_stop()
            self.react = None


def child(name: str, role: str, script: str, *words: object) -> Process:
    """A service that runs a few lines of Python."""
    return Process(name=name, role=role, command=(sys.executable, "-S", "-c", script, *map(str, words)))


def launch(
    processes, folder, *, react=None, rules=QUICK, steps=lambda: 0.0, patience_s=PATIENCE_S
) -> tuple[Ended, Watcher]:
    """Run to the end."""
    watcher = Watcher(react)
    watcher.launcher = Launcher(processes, folder, watcher, progress=steps, rules=rules, patience_s=patience_s)
    return watcher.launcher.run(), watcher


def test_the_learners_end_ends_the_run_and_everyone_else(tmp_path):
    """Exit 0 of the learner stops the others, and none is left."""
    processes = [child("learner", "learner", "pass"), child("actor-0", "actor", WAIT, tmp_path)]
    ended, _ = launch(processes, tmp_path)
    assert ended.outcome == Outcome(exit_code=0)
    assert living(tmp_path) == []


SAVE = (
    "import signal, sys\n"
    "def save(*_):\n"
    "    open(sys.argv[1], 'w').close()\n"
    "    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "open(sys.argv[1] + '-up', 'w').close()\n"
    "while True: signal.pause()\n"
)


def test_whatever_goes_wrong_in_the_launcher_the_learner_saves(tmp_path):
    """Services are asked to stop before they are killed."""
    saved = tmp_path / "saved"

    def fail(_launcher):
        if (tmp_path / "saved-up").exists():
            raise RuntimeError("of the view")

    with pytest.raises(RuntimeError, match="of the view"):
        launch([child("learner", "learner", SAVE, saved)], tmp_path, react=fail)
    assert saved.exists()
    assert living(tmp_path) == []


def test_a_service_that_cannot_be_started_dies_like_any_other(tmp_path):
    """It is tried again, and what the system said is the cause; the learner saves."""
    saved = tmp_path / "saved"
    gone = Process(name="actor-0", role="actor", command=(str(tmp_path / "gone"),))
    ended, watcher = launch([child("learner", "learner", SAVE, saved), gone], tmp_path)
    assert (ended.outcome.service, ended.outcome.exit_code) == ("actor-0", 1)
    assert "No such file" in ended.last_words
    assert sum("starting it again" in event for event in watcher.events) == Rules().max_deaths - 1
    assert living(tmp_path) == []


def test_what_a_killed_service_had_started_ends_with_it(tmp_path):
    """A minder, say, that can end its simulators no more: they would run on beside those of the next life."""
    script = (
        "import os, signal, subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-S', '-c', {WAIT!r}, sys.argv[1]])\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    rules = replace(QUICK, first_delay_s=60.0, max_delay_s=60.0)
    deadline = time.monotonic() + 20

    def has_ended(launcher):
        has_died = launcher.supervisor.services["actor-0"].deaths > 0
        return has_died and (not living(tmp_path / "simulator") or time.monotonic() > deadline)

    simulator = child("actor-0", "actor", script, tmp_path / "simulator")
    launch([child("learner", "learner", SAVE, tmp_path / "saved"), simulator], tmp_path, react=has_ended, rules=rules)
    assert time.monotonic() < deadline


def test_a_learner_that_cannot_save_when_it_is_stopped_fails_the_run(tmp_path):
    """Its exit status and last words are the run's: going on from the last checkpoint loses what came after."""
    script = (
        "import signal, sys\n"
        "def fail(*_):\n"
        "    print('no space left', file=sys.stderr)\n"
        "    sys.exit(74)\n"
        "signal.signal(signal.SIGTERM, fail)\n"
        "open(sys.argv[1], 'w').close()\n"
        "while True: signal.pause()\n"
    )
    ready = tmp_path / "ready"
    ended, _ = launch([child("learner", "learner", script, ready)], tmp_path, react=lambda _launcher: ready.exists())
    assert (ended.outcome.service, ended.outcome.exit_code) == ("learner", 74)
    assert ended.last_words == "no space left"


def test_services_are_stopped_in_the_direction_of_the_data(tmp_path):
    """Actors first, then inference, the learner last."""
    order = tmp_path / "order"
    order.touch()
    script = (
        "import signal, sys\n"
        "def leave(*_):\n"
        "    open(sys.argv[1], 'a').write(sys.argv[2] + ' ')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "open(sys.argv[1] + '-' + sys.argv[2], 'w').close()\n"
        "while True: signal.pause()\n"
    )
    roles = ["learner", "inference", "actor"]
    processes = [child(role, role, script, order, role) for role in roles]

    def are_up(_launcher):
        return all((tmp_path / f"order-{role}").exists() for role in roles)

    ended, watcher = launch(processes, tmp_path, react=are_up)
    assert order.read_text().split() == ["actor", "inference", "learner"]
    assert ended.outcome.reason == "asked to stop"
    assert not any("killed" in event for event in watcher.events)


def test_a_killed_service_is_started_again(tmp_path):
    """Kill -9 of an actor gives it a second life; the run goes on."""
    lives = tmp_path / "lives"
    actor = child("actor-0", "actor", f"{APPEND}\n{WAIT}", lives, "x")
    learner = child("learner", "learner", WAIT)

    def kill_once(launcher):
        count = lives.stat().st_size if lives.exists() else 0
        restarts = launcher.supervisor.services["actor-0"].restarts
        if count == 1 and restarts == 0 and (pid := launcher.process_id("actor-0")):
            os.kill(pid, signal.SIGKILL)
        return count == 2

    ended, watcher = launch([learner, actor], tmp_path, react=kill_once)
    assert ended.restarts == {"learner": 0, "actor-0": 1}
    assert any("actor-0 died (killed by SIGKILL)" in event for event in watcher.events)


def test_a_service_that_always_dies_fails_the_run_after_five_deaths(tmp_path):
    """The launcher gives up, says who and why, and shows what the service said last."""
    lives = tmp_path / "lives"
    actor = child("actor-0", "actor", f"{APPEND}\nraise OSError('no such simulator')", lives, "x")
    ended, watcher = launch([child("learner", "learner", WAIT, tmp_path), actor], tmp_path)
    assert lives.read_text() == "xxxxx"
    assert any("actor-0 died (exit 1: OSError: no such simulator)" in event for event in watcher.events)
    assert ended.outcome.exit_code == 1
    assert ended.outcome.service == "actor-0"
    assert "OSError: no such simulator" in ended.last_words
    assert living(tmp_path) == []


def test_steps_between_deaths_keep_the_run_going(tmp_path):
    """A service may die more than five times when steps are acted in between."""
    lives = tmp_path / "lives"
    actor = child("actor-0", "actor", f"{APPEND}\nsys.exit(1)", lives, "x")

    def count() -> float:
        return float(lives.stat().st_size) if lives.exists() else 0.0

    learner = child("learner", "learner", WAIT)
    ended, _ = launch([learner, actor], tmp_path, react=lambda _: count() >= 7, steps=count)
    assert ended.outcome.reason == "asked to stop"


def test_a_refused_configuration_is_not_restarted(tmp_path):
    """Exit 78 fails the run at once, with the service's message."""
    lives = tmp_path / "lives"
    words = "seedbed learner: cartpole.toml: [learner] bach: unknown key; did you mean 'batch'?"
    script = f"{APPEND}\nprint({words!r}, file=sys.stderr)\nsys.exit(78)"
    ended, _ = launch([child("learner", "learner", script, lives, "x")], tmp_path)
    assert ended.outcome == Outcome(
        exit_code=78, service="learner", reason="cannot go on, and a restart would not help"
    )
    assert ended.last_words == words
    assert lives.read_text() == "x"


def test_what_an_earlier_run_said_is_not_told_again(tmp_path):
    """A resumed run appends to the same files; only the newest life explains its own end."""
    for words in ("seedbed learner: the first", "seedbed learner: the second"):
        script = f"print({words!r}, file=sys.stderr)\nsys.exit(78)"
        ended, _ = launch([child("learner", "learner", f"import sys\n{script}")], tmp_path)
        assert ended.last_words == words


def test_a_service_that_ignores_the_request_to_stop_is_killed(tmp_path):
    """A stuck process costs its patience and no more."""
    stuck = "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(sys.argv[1], 'w').close()\n" + WAIT
    up = tmp_path / "up"

    def stop_when_up(launcher):
        if up.exists():
            launcher.request_stop()

    _, watcher = launch(
        [child("learner", "learner", stuck, up)],
        tmp_path,
        react=stop_when_up,
        patience_s={**PATIENCE_S, "learner": 0.1},
    )
    assert any("learner did not stop in time" in event for event in watcher.events)
    assert living(tmp_path) == []


def test_a_second_request_kills_at_once(tmp_path):
    """Whoever presses Ctrl-C twice does not wait."""
    stuck = "import signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen(sys.argv[1], 'w').close()\n" + WAIT
    up = tmp_path / "up"

    def insist(launcher):
        if up.exists():
            launcher.request_stop()

    start = time.monotonic()
    launch([child("learner", "learner", stuck, up)], tmp_path, react=insist)
    assert time.monotonic() - start < PATIENCE_S["learner"]


SILENT_VIEW = """
class SilentView:
    def happened(self, text): pass
    def refresh(self, supervisor, now): pass
"""
LAUNCHER_SCRIPT = (
    SILENT_VIEW
    + """
import sys
from pathlib import Path
from seedbed.services.tools.cli.launcher import Launcher
from seedbed.services.tools.cli.plan import Process

CHILD = '''
import sys, os, signal
from seedbed.shared.runtime.service import die_with_parent
die_with_parent()
open(sys.argv[1], "w").write(str(os.getpid()))
while True: signal.pause()
'''
folder = Path(sys.argv[1])
processes = [
    Process(name=name, role=role, command=(sys.executable, "-c", CHILD, str(folder / f"{name}.pid")))
    for name, role in (("learner", "learner"), ("inference-0", "inference"), ("actor-0", "actor"))
]
sys.exit(Launcher(processes, folder, SilentView(), progress=lambda: 0.0).run().outcome.exit_code)
"""
)


@pytest.fixture
def running_launcher(tmp_path):
    """A launcher in a process of its own with three services, and their process ids once all are up."""
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER_SCRIPT, str(tmp_path)], cwd=Path(__file__).parents[4]
    ) as launcher:
        deadline = time.monotonic() + 60
        files = [tmp_path / f"{name}.pid" for name in ("learner", "inference-0", "actor-0")]
        waiting = threading.Event()
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < deadline, "the services did not come up"
            assert launcher.poll() is None
            waiting.wait(0.02)
        services = [psutil.Process(int(file.read_text())) for file in files]
        yield launcher, services
        if launcher.poll() is None:
            launcher.kill()


def test_kill_9_of_the_launcher_leaves_nothing(running_launcher):
    """The kernel ends the services when the launcher is gone."""
    launcher, services = running_launcher
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    _, alive = psutil.wait_procs(services, timeout=20)
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_to_the_launcher_stop_the_run_in_order(running_launcher, number):
    """SIGTERM, Ctrl-C and a closed terminal all end everything."""
    launcher, services = running_launcher
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == 130
    _, alive = psutil.wait_procs(services, timeout=20)
    assert alive == []


STOPPED_AT_A_LINE = (
    SILENT_VIEW
    + """
import os, signal, sys
from pathlib import Path
from seedbed.services.tools.cli import launcher
from seedbed.services.tools.cli.plan import Process

def trace(frame, event, _):
    global lines
    if Path(frame.f_code.co_filename).name not in {"launcher.py", "threading.py", "queue.py"}:
        return None
    if event == "line" and running._children:
        lines -= 1
        if lines == 0:
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGTERM)
    return trace

lines = int(sys.argv[2])
service = Process(name="learner", role="learner", command=(sys.executable, "-c", "import signal; signal.pause()"))
running = launcher.Launcher([service], Path(sys.argv[1]), SilentView(), progress=lambda: 0.0)
sys.settrace(trace)
sys.exit(running.run().outcome.exit_code)
"""
)


@pytest.mark.parametrize("lines", range(10, 40, 8))
def test_a_signal_may_come_between_any_two_lines(tmp_path, lines):
    """What its handler does never waits for what the interrupted line holds."""
    command = [sys.executable, "-c", STOPPED_AT_A_LINE, tmp_path, str(lines)]
    assert subprocess.run(command, timeout=30, check=False).returncode == 130


def test_a_reserved_port_can_be_bound_by_a_service_and_by_nobody_else():
    """Reserved: listening needs SO_REUSEADDR, as libzmq sets it; and the port is never handed out to another."""
    reservation = Reservation()
    port = int(reservation.address.rpartition(":")[2])
    try:
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))
        for _ in range(2):  # a restart finds it again
            with socket.socket() as service:
                service.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                service.bind(("127.0.0.1", port))
                service.listen()
        others = [Reservation() for _ in range(20)]
        assert reservation.address not in {other.address for other in others}
        for other in others:
            other.close()
    finally:
        reservation.close()


def test_children_do_not_inherit_seedbeds_own_variables(tmp_path, monkeypatch):
    """The snapshot holds what they said; a variable that came later must not change a restarted service."""
    monkeypatch.setenv("SEEDBED_RUN__SEED", "7")
    seen = tmp_path / "seen"
    script = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    launch([child("learner", "learner", script, seen)], tmp_path)
    environment = json.loads(seen.read_text())
    assert "SEEDBED_RUN__SEED" not in environment
    assert environment["SEEDBED_DIE_WITH_PARENT"] == str(os.getpid())


def test_a_full_disk_costs_the_launchers_log_and_not_the_run(tmp_path):
    """Nobody's checkpoint is worth less because a line of launcher.jsonl could not be written."""
    with full_disk():
        ended, _ = launch([child("learner", "learner", "pass")], tmp_path)
    assert ended.outcome == Outcome(exit_code=0)


@pytest.mark.parametrize("code", [0, 78])
def test_an_end_that_a_service_did_not_choose_is_a_death(tmp_path, code):
    """An environment may end the process as it likes: it is told, and the service is started again."""
    lives = tmp_path / "lives"
    script = f"{APPEND}\nimport os, signal\nos._exit({code}) if len(open(sys.argv[1]).read()) == 1 else signal.pause()"
    actor = replace(child("actor-0", "actor", script, lives, "x"), leaves_cause=True)

    def has_come_back(_launcher):
        return lives.exists() and lives.stat().st_size == 2

    ended, watcher = launch([child("learner", "learner", WAIT), actor], tmp_path, react=has_come_back)
    assert ended.restarts["actor-0"] == 1
    assert any(f"actor-0 died (exit {code}" in event for event in watcher.events)


def test_an_end_that_a_service_chose_is_believed(tmp_path):
    """It left why."""
    file = tmp_path / "services" / "actor-0.cause"
    script = "import sys; open(sys.argv[1], 'w').write('no such environment'); sys.exit(78)"
    actor = replace(child("actor-0", "actor", script, file), leaves_cause=True)
    ended, _ = launch([child("learner", "learner", WAIT), actor], tmp_path)
    assert (ended.outcome.exit_code, ended.outcome.service) == (78, "actor-0")
