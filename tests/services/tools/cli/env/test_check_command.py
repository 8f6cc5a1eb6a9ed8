"""`seedbed env check` as a user and as CI meet it: exit status, table, JSON, and a service in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.link import Notes, check_service
from seedbed.services.tools.cli.env.target import Listen, find_target
from seedbed.services.tools.cli.env.verdicts import RULES, has_failed
from seedbed.services.tools.cli.service_folder import ServiceFolder
from seedbed.shared.errors import ConfigError
from seedbed.shared.net.keyring import Keyring
from tests.support.deployment import wait_until

CORRIDOR = Path(__file__).parents[5] / "services" / "corridor_cpp"
QUICK = CheckOptions(lanes=2, groups=2, soak_steps=40)
ACTOR = """
import sys
from seedbed.actor_svc.serve import serve
from seedbed.services.memory.env import make
sys.exit(serve(make, name="seedbed.services.memory.env:make"))
"""

TELLS_WHO_IT_IS = """
import os, pathlib, sys
from seedbed.actor_svc.serve import serve
from seedbed.services.memory.env import make

def make_and_tell(**settings):
    file = pathlib.Path("pid")
    file.with_suffix(".new").write_text(str(os.getpid()))
    file.with_suffix(".new").rename(file)
    return make(**settings)

sys.exit(serve(make_and_tell, name="seedbed.services.memory.env:make"))
"""


@pytest.fixture
def service(tmp_path):
    """A folder with a Python service."""
    (tmp_path / "actor.py").write_text(ACTOR)
    (tmp_path / "service.toml").write_text(
        'name = "memory"\ndescription = "for a test"\ncommand = ["python", "actor.py"]\n'
        'env_id = "seedbed.services.memory.env:make"\n'
    )
    found = find_target(str(tmp_path))
    assert isinstance(found, ServiceFolder)
    return found


def test_the_table_names_every_check(capsys):
    """Exit status 0 where all is well."""
    assert main(["env", "check", "seedbed.services.memory.env:make", "--soak-steps", "50"]) == 0
    text = capsys.readouterr().out
    assert "next-step reset" in text
    assert "0 failed" in text


def test_json_has_one_object_and_failures_exit_1(capsys):
    """For CI: name, verdict, what was found, why it matters, what to change."""
    words = ["env.kwargs={fault = 'bounds'}", "--json", "--soak-steps", "50"]
    assert main(["env", "check", "tests.services.tools.cli.env.test_in_process:make", *words]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "fail"
    broken = [item for item in said["checks"] if item["verdict"] == "fail"]
    assert [item["name"] for item in broken] == ["bounds"]
    assert broken[0]["why"] == RULES["bounds"].why
    assert broken[0]["change"] == RULES["bounds"].change


def test_an_unknown_target_exits_78(capsys):
    """As every wrong configuration."""
    assert main(["env", "check", "CartPol-v1"]) == 78
    assert "did you mean" in capsys.readouterr().err


def test_a_service_in_its_own_process_passes(service):
    """Three lives over real sockets: exercises, an unknown version, SIGTERM."""
    said = []
    results = check_service(service, QUICK, notes=Notes(doing=said.append))
    assert not has_failed(results), results
    assert {"finished", "unknown version", "stopped", "connection lost"} <= {item.name for item in results}
    assert "patience" in said


def test_a_folder_is_checked_for_the_values_of_its_environment_too(tmp_path, monkeypatch, capsys):
    """They become rows of the right type in the service, where nobody sees what they were."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["env", "new", "strider"]) == 0
    file = tmp_path / "strider" / "env.py"
    file.write_text(file.read_text().replace("self._flag], np.float32)", "self._flag], np.float64)"))
    capsys.readouterr()
    assert main(["env", "check", "strider", "--json", "--soak-steps", "20"]) == 1
    checks = {item["name"]: item["verdict"] for item in json.loads(capsys.readouterr().out)["checks"]}
    assert [name for name, verdict in checks.items() if verdict == "fail"] == ["dtypes"]
    assert checks["stopped"] == "pass"


def test_a_service_that_somebody_else_starts_passes(service):
    """It is told the address, and dialled from there; what needs a process of ours is skipped."""
    processes = []

    def start(address):
        words = [f"actor.upstream={address}", "actor.lanes=3", "actor.groups=1"]
        processes.append(subprocess.Popen([sys.executable, "actor.py", *words], cwd=service.folder))

    told = Notes(listening=start)
    results = {item.name: item for item in check_service(Listen("tcp://127.0.0.1:0"), QUICK, notes=told)}
    assert processes[0].wait(30) == 0
    assert not has_failed(list(results.values())), results
    assert results["lanes"].found == "1 groups of 3 lanes"
    assert results["stopped"].verdict == "skipped"


def test_a_service_with_keys_is_met_with_inferences(service, tmp_path):
    """As from another machine; without its key it is not let in."""
    keys = tmp_path / "keys"
    Keyring(keys).init()
    processes = []

    def start(address):
        words = [f"actor.upstream={address}", f"runtime.keys={keys}", "actor.lanes=3", "actor.groups=1"]
        processes.append(subprocess.Popen([sys.executable, "actor.py", *words], cwd=service.folder))

    target = find_target("tcp://127.0.0.1:0", keys=keys)
    assert isinstance(target, Listen)
    results = check_service(target, QUICK, notes=Notes(listening=start))
    assert processes[0].wait(30) == 0
    assert not has_failed(results), results


def test_keys_are_for_addresses(capsys):
    """An address beyond this machine needs them, and the message says how they are made; nothing else takes them."""
    assert main(["env", "check", "tcp://0.0.0.0:5999"]) == 78
    assert "seedbed keys init" in capsys.readouterr().err
    assert main(["env", "check", "CartPole-v1", "--keys", "keys"]) == 78
    assert "--keys" in capsys.readouterr().err


def test_a_command_that_cannot_run_is_a_configuration_error(tmp_path):
    """Named with its folder."""
    (tmp_path / "service.toml").write_text(
        'name = "x"\ndescription = "x"\ncommand = ["./absent"]\nenv_id = "x"\n', encoding="utf-8"
    )
    found = find_target(str(tmp_path))
    assert isinstance(found, ServiceFolder)
    with pytest.raises(ConfigError, match=r"cannot run '\./absent'"):
        check_service(found, QUICK)


def test_a_service_that_ends_at_once_is_told_with_its_last_words(service):
    """Not as a time-out."""
    (service.folder / "actor.py").write_text("raise SystemExit('no simulator here')")
    (result,) = check_service(service, QUICK)
    assert result.name == "started"
    assert "exit status 1 before HELLO: no simulator here" in result.found


FAILS_ON_THE_WAY = """
import sys
import gymnasium
from seedbed.actor_svc.serve import serve
from seedbed.services.memory.env import make

class Maze(gymnasium.Wrapper):
    ticks = 0
    def step(self, action):
        self.ticks += 1
        if self.ticks == 9:
            print("lost my way in the maze", file=sys.stderr)
            raise ValueError("lost")
        return super().step(action)

sys.exit(serve(lambda: Maze(make()), name="seedbed.services.memory.env:make"))
"""


def test_an_environment_that_fails_on_the_way_is_told_with_what_its_service_said(service):
    """The protocol has no message for it."""
    (service.folder / "actor.py").write_text(FAILS_ON_THE_WAY)
    results = {item.name: item for item in check_service(service, QUICK)}
    assert "lost my way in the maze" in results["no rebuilt lanes"].found


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal to orphans is Linux's")
def test_a_check_that_is_killed_takes_its_service_along(service):
    """Also by SIGKILL, which it cannot answer: a simulator that nobody steps would stay for good."""
    (service.folder / "actor.py").write_text(TELLS_WHO_IT_IS)
    told = service.folder / "pid"
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "env", "check", str(service.folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as check:
        wait_until(told.is_file, "the service makes its environment")
        started = psutil.Process(int(told.read_text()))
        os.kill(check.pid, signal.SIGKILL)
    try:
        wait_until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE, "the service ends")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            started.kill()


@pytest.mark.slow
@pytest.mark.skipif(not (CORRIDOR / "corridor").is_file(), reason="services/corridor_cpp has not been built")
def test_the_service_in_c_plus_plus_passes():
    """Written from the protocol's description alone."""
    found = find_target(str(CORRIDOR))
    assert isinstance(found, ServiceFolder)
    results = check_service(found, QUICK)
    assert not has_failed(results), results
