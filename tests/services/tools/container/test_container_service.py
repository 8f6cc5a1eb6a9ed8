"""Real processes: a container's service that is refused for good waits, unhealthy, until it is stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from seedbed.learner_svc.ranks.ranks import RankLostError
from seedbed.services.tools.container.hold import ATTEMPT_VARIABLE, LONGEST_S, is_held
from tests.support.deployment import ServiceProcess, wait_until

TIMEOUT_S = 60


@pytest.fixture
def environment(tmp_path):
    """That of a container, with its files in a folder of the test's."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    return clean | {
        "SEEDBED_CAUSE_FILE": str(tmp_path / "cause"),
        "SEEDBED_RUNTIME__STATUS_FILE": str(tmp_path / "status.json"),
    }


def health(environment):
    """As the container's health check sees it: (is healthy, what it says)."""
    command = [sys.executable, "-S", "-m", "seedbed.shared.runtime.health"]
    installed = {"PYTHONPATH": str(Path(__file__).parents[4] / "src")}  # as the image has it; -S reads no .pth files
    asked = subprocess.run(
        command, env=environment | installed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return asked.returncode == 0, asked.stdout


@pytest.mark.parametrize(
    "words",
    [["actor", "pong"], ["actor", "cartpole", "actor.lanes=many"], ["actor", "memory_tasks", "env.kwargs.cues=many"]],
)
def test_a_wrong_setting_is_told_and_not_restarted(environment, words):
    """Unhealthy with the cause, no exit; stopped, it ends with the status that it failed with."""
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "container", *words]
    late = environment | {ATTEMPT_VARIABLE: "9"}  # so that it is not tried again while this looks
    with subprocess.Popen(command, env=late, stderr=subprocess.PIPE, text=True) as process:
        try:
            said = ""
            while "this is tried again" not in said:
                said += process.stderr.readline()
            assert process.poll() is None
            is_healthy, cause = health(environment)
            assert not is_healthy
            assert cause.strip() in said.replace("seedbed actor: ", "")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 78
        finally:
            process.kill()


def test_whoever_was_refused_goes_on_by_itself_once_that_is_mended(environment, tmp_path):
    """Nobody starts it again: the file is written anew, and the service comes up."""
    experiment = tmp_path / "mine.toml"
    experiment.write_text('[env]\nid = "CartPole-v1"\n[actor]\nlanse = 2\n')
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "container", "actor", str(experiment)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "this is tried again" not in process.stderr.readline():
                assert process.poll() is None
            experiment.write_text('[env]\nid = "CartPole-v1"\n[actor]\nlanes = 2\n')
            wait_until(lambda: health(environment) == (True, "ready\n"), "it is healthy")
        finally:
            process.kill()


def test_a_monitor_that_was_refused_waits_and_goes_on_as_well(environment, tmp_path):
    """The folder of runs is made, and the page comes up."""
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "monitor", "--runs", str(runs), "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            while "this is tried again" not in process.stderr.readline():
                assert process.poll() is None
            is_healthy, cause = health(environment)
            assert not is_healthy
            assert f"{runs} is no folder" in cause
            runs.mkdir()
            wait_until(lambda: health(environment) == (True, "ready\n"), "it is healthy")
        finally:
            process.kill()


def test_a_rank_that_lost_another_is_tried_again_at_once_however_often(environment):
    """After a second, also if many attempts failed for other reasons before: all ranks have to meet."""
    again = [sys.executable, "-c", "import os; print(os.environ['SEEDBED_START_ATTEMPT'])"]
    given = {"SEEDBED_START_COMMAND": json.dumps(again), "SEEDBED_START_ATTEMPT": "7"}
    command = [sys.executable, "-m", "seedbed.services.tools.container.hold", str(RankLostError.exit_code)]
    assert is_held(RankLostError.exit_code)
    done = subprocess.run(command, env=environment | given, capture_output=True, timeout=LONGEST_S / 2, check=True)
    assert done.stdout.split() == [b"0"]


@pytest.fixture
def finished(tmp_path):
    """A run that ended."""
    folder = tmp_path / "runs" / "cartpole"
    words = ["run.steps=500", "actor.lanes=16", "learner.batch=16", "eval.episodes=2", "eval.lanes=2", "eval.every_s=0"]
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "train",
        "cartpole",
        f"--run-dir={folder}",
        *words,
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=4 * TIMEOUT_S)
    return folder


def test_who_has_nothing_left_to_do_stays_where_that_is_asked_for(environment, finished):
    """Or it would be started again for ever; healthy it is not. Asked to leave, it does."""
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "container",
        "learner",
        "cartpole",
        f"--runs={finished.parent}",
    ]
    command += ["learner.bind=tcp://127.0.0.1:0", "learner.finished_s=0", "run.steps=500"]
    assert subprocess.run(command, env=environment, timeout=TIMEOUT_S, capture_output=True, check=False).returncode == 0
    with subprocess.Popen(
        command, env=environment | {"SEEDBED_STAY": "1"}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while "waits to be removed" not in process.stderr.readline():
                assert process.poll() is None
            assert health(environment) == (False, "this service has nothing left to do: its run is over\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()


def test_a_service_is_healthy_once_it_is_ready(environment, tmp_path):
    """Not before, and not when the file is that of a life that has ended."""
    assert health(environment) == (False, "not ready yet\n")
    status = tmp_path / "status.json"
    service = ServiceProcess("seedbed.actor_svc", "status", tmp_path, ["env.id=CartPole-v1", "actor.lanes=2"])
    assert service.status_file == status
    try:
        service.start().wait_ready()
        wait_until(lambda: health(environment) == (True, "ready\n"), "it is healthy")
    finally:
        service.close()
    is_healthy, said = health(environment)
    assert not is_healthy
    assert "does not answer" in said


@pytest.fixture
def of_tasks(environment):
    """An actor's container of a run with three tasks."""
    command = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "container",
        "actor",
        "memory_tasks",
        "actor.lanes=2",
    ]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: health(environment) == (True, "ready\n"), "all are ready")
            yield process
        finally:
            process.kill()


def test_an_actor_of_a_run_with_tasks_is_a_process_for_each(of_tasks, tmp_path):
    """Healthy once all are ready, each under a name of its own; asked to stop, all leave in order."""
    parts = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("status-*.json"))]
    assert [part["name"].rpartition("-")[2] for part in parts] == ["short", "middling", "long"]
    of_tasks.send_signal(signal.SIGTERM)
    assert of_tasks.wait(TIMEOUT_S) == 0
    assert not any(psutil.pid_exists(part["pid"]) for part in parts)


def test_where_one_task_fails_the_container_ends_and_leaves_nobody(of_tasks, tmp_path):
    """So that the engine starts all of them again."""
    parts = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("status-*.json"))]
    os.kill(parts[1]["pid"], signal.SIGKILL)
    assert of_tasks.wait(TIMEOUT_S) == 1
    assert not any(psutil.pid_exists(part["pid"]) for part in parts)
