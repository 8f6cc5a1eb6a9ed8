"""Real processes: how a service becomes ready, ends, and says why."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.service import DIE_WITH_PARENT, RepeatedSignals, split_words

TIMEOUT_S = 60


@contextlib.contextmanager
def probe(*words: str, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen]:
    """The probe service as a process, killed at the end."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.probe_service", *words]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    with subprocess.Popen(
        command, env=clean | (environment or {}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen) -> tuple[int, str]:
    """Wait for its exit: (code, stderr)."""
    _, errors = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "uvloop"), [(signal.SIGTERM, "true"), (signal.SIGTERM, "false"), (signal.SIGINT, "true")]
)
def test_a_signal_drains_and_exits_cleanly(number, uvloop):
    """The work sees `stopping`, ends on its own, and the exit code is 0."""
    with probe(f"runtime.uvloop={uvloop}", "run.name=wait") as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        code, errors = end(process)
    assert code == 0
    assert number.name in errors
    assert "service_ended" in errors


def test_readiness_is_a_whole_file(tmp_path):
    """It says where the service listens and who it is; one left by an earlier life is gone before that."""
    file = tmp_path / "services" / "probe.json"
    file.parent.mkdir()
    file.write_text("left over")
    with probe("run.name=wait", f"runtime.status_file={file}", "runtime.name=probe-3") as process:
        process.stdout.readline()
        status = json.loads(file.read_text())
        with urllib.request.urlopen(f"http://{status.pop('metrics')}/metrics", timeout=TIMEOUT_S) as reply:
            page = reply.read().decode()
        assert f'incarnation="{status.pop("incarnation"):x}"' in page
        assert status == {
            "service": "probe", "name": "probe-3", "pid": process.pid, "endpoint": "tcp://127.0.0.1:1", "run_id": "r",
        }  # fmt: skip
        assert os.listdir(file.parent) == [file.name]


def test_a_service_that_never_was_ready_leaves_no_file(tmp_path):
    """A stale file must not look like readiness."""
    file = tmp_path / "probe.json"
    file.write_text("left over")
    with probe("run.name=done", f"runtime.status_file={file}", "runtime.metrics_address=0.0.0.0:0") as process:
        code, errors = end(process)
    assert code == 78
    assert "open to the network" in errors
    assert not file.exists()


@pytest.mark.parametrize(
    ("way", "uvloop", "code", "said"),
    [
        ("code", "true", 7, ""),
        ("reject", "true", 78, "seedbed probe: the spaces differ\nseedbed probe: set env.id\n"),
        ("crash", "true", 1, "seedbed probe: ValueError: boom\n"),
        ("task", "true", 1, "seedbed probe: the environment broke\n"),
        ("callback", "true", 1, "seedbed probe: the environment broke\n"),
        ("callback", "false", 1, "seedbed probe: the environment broke\n"),
    ],
)
def test_the_exit_code_says_whether_a_restart_helps(tmp_path, way, uvloop, code, said):
    """78 is the user's to mend; stderr has the reason in plain words, the log has the rest."""
    log = tmp_path / "probe.jsonl"
    with probe(f"runtime.uvloop={uvloop}", f"run.name={way}", f"runtime.log_file={log}") as process:
        assert end(process) == (code, said)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    if way == "crash":
        assert "ValueError: boom" in events[-1]["exception"]
    assert events[-1]["event"] == {"crash": "service_crashed", "code": "service_ended"}.get(way, "service_failed")


def test_a_wrong_word_is_named_before_anything_starts():
    """Configuration errors come as one line, without a traceback."""
    with probe("runtime.nme=x") as process:
        code, errors = end(process)
    assert code == 78
    assert errors == "seedbed probe: command line 'runtime.nme=x': [runtime] nme: unknown key; did you mean 'name'?\n"


def test_a_second_signal_ends_at_once():
    """Whoever insists need not wait for the drain."""
    with probe("run.name=slow") as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "draining\n"
        deadline, wait_s = time.monotonic() + TIMEOUT_S, 0.4  # longer than signals count as one
        while process.poll() is None and time.monotonic() < deadline:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
            wait_s *= 4  # one more would kill it while it closes
        code, errors = end(process)
    assert code == 1
    assert "second SIGTERM" in errors


def test_under_a_launcher_a_second_signal_changes_nothing():
    """systemd signals all processes at once, and then the launcher asks each: that is no reason not to save."""
    with probe("run.name=slow", environment={DIE_WITH_PARENT: str(os.getpid())}) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "draining\n"
        for _ in range(2):
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.4)  # longer than signals count as one
            process.terminate()


def test_signals_that_come_together_are_one_request():
    """`timeout` sends its own to the process and to its group; that is no reason not to drain."""
    insistence = RepeatedSignals()
    assert [insistence.is_new(now) for now in (10.0, 10.001, 10.2, 10.4)] == [True, False, False, True]


def test_a_closed_stderr_changes_no_exit_code():
    """What nobody reads any more is not said; the cause is in the log."""
    with probe("run.name=reject") as process:
        process.stderr.close()
        assert process.wait(TIMEOUT_S) == 78


def test_a_status_file_that_cannot_be_written_ends_the_service(tmp_path):
    """With the file and what to do; no restart would help."""
    (tmp_path / "file").write_text("")
    with probe("run.name=wait", f"runtime.status_file={tmp_path / 'file' / 'probe.json'}") as process:
        code, errors = end(process)
    assert code == 74
    assert "a file is where a folder should be" in errors


def test_a_drain_has_a_limit():
    """A service that hangs while stopping ends with an error that says so."""
    with probe("run.name=stuck") as process:
        process.stdout.readline()
        process.terminate()
        code, errors = end(process)
    assert code == 1
    assert "was asked to stop and still runs" in errors


def test_a_service_dies_with_its_parent():
    """A killed launcher, which can tell nobody, leaves no service behind."""
    with probe("launch") as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        try:
            parent.kill()
            poll = select.poll()
            poll.register(child, select.POLLIN)
            assert poll.poll(1000 * TIMEOUT_S), "the child outlived its parent"
        finally:
            os.close(child)


def test_a_parent_that_is_already_gone_is_noticed():
    """The parent may end before its child can ask the kernel to watch it."""
    with probe("run.name=wait", environment={DIE_WITH_PARENT: str(2**22 - 1)}) as process:
        assert end(process)[0] == 1
        assert process.stdout.closed or process.stdout.read() == ""


def test_without_being_asked_a_service_outlives_its_parent():
    """One that was started by hand does not depend on the shell's life."""
    with probe("run.name=wait", environment={DIE_WITH_PARENT: "0"}) as process:
        assert process.stdout.readline() == "ready\n"


def test_niceness_is_applied():
    """The configured niceness is the process's."""
    with probe("run.name=wait", "runtime.nice=7") as process:
        process.stdout.readline()
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(ours + 7, 19)


@pytest.mark.parametrize(
    ("argv", "file", "words"),
    [
        ([], None, []),
        (["a.toml"], "a.toml", []),
        (["a.toml", "run.seed=1"], "a.toml", ["run.seed=1"]),
        (["--config", "a.toml", "run.seed=1"], "a.toml", ["run.seed=1"]),
        (["run.seed=1", "run.name=x"], None, ["run.seed=1", "run.name=x"]),
    ],
)
def test_a_command_line_is_a_file_and_words(argv, file, words):
    """The file comes first, if there is one."""
    assert split_words(argv) == (None if file is None else Path(file), words)


def test_an_option_that_no_service_has_is_told_so():
    """Not taken for a file."""
    with pytest.raises(ConfigError, match=r"--help: no such option; write \[EXPERIMENT.toml\]"):
        split_words(["--help"])


@pytest.mark.parametrize(("is_stuck", "said"), [(False, "torn down\n"), (True, "")], ids=["alone", "a thread is stuck"])
def test_who_leaves_does_not_wait_for_what_is_stuck(is_stuck, said):
    """A simulator that never returns is left as it is: its own teardown might hang or abort."""
    script = f"""
import atexit, threading
from seedbed.shared.runtime.service import leave
atexit.register(print, "torn down")
if {is_stuck}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
leave(3)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, said)
