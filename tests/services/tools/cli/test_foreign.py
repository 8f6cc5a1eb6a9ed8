"""Environments that a program of another language steps: started, restarted and ended with the run, and evaluated."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from seedbed.services.tools.cli.evaluate import load_policy, play_episodes
from seedbed.services.tools.cli.experiment import choose_source, find_experiment, load_experiment
from seedbed.services.tools.cli.plan import Addresses, Process, plan_run
from seedbed.services.tools.cli.probe.ask import probe_environment
from seedbed.services.tools.cli.service_folder import find_folder, minded, open_service
from seedbed.services.tools.container.plan import Container, plan_service
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.load_config import parse_value
from seedbed.shared.runtime.service import DIE_WITH_PARENT
from tests.support.deployment import wait_until

FLAGS = Path(__file__).parents[3] / "support" / "flags_service"
ADDRESSES = Addresses(learner="tcp://127.0.0.1:1", inference=("tcp://127.0.0.1:2", "tcp://127.0.0.1:3"))
PATIENCE_S = 60.0
TRAINING_S = 240.0  # on a machine that does much else; else ten


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """A copy of the service's folder, so that its processes can be told from others; it runs on this Python."""
    monkeypatch.setenv("PYTHON", sys.executable)
    return Path(shutil.copytree(FLAGS, tmp_path / "flags"))


def programs_in(folder: Path) -> list[psutil.Process]:
    """The service's processes: all that were started in its folder."""
    found = []
    for process in psutil.process_iter(["cwd", "status"]):
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def plan(file: Path, run_dir: Path, *words: str) -> dict[str, Process]:
    """The processes of a run."""
    experiment = load_experiment(file, words, run_dir=run_dir, resume=False)
    return {process.name: process for process in plan_run(experiment, ADDRESSES, 4)}


@pytest.mark.timeout(300)
def test_one_command_trains_it_and_one_evaluates_it(flags, tmp_path):
    """Behind a script, written from the protocol alone; killed once, it comes back, and nothing is left at the end."""
    run_dir, builds = tmp_path / "run", tmp_path / "builds"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    environment |= {"FLAGS_BUILDS": str(builds)}
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "train", str(flags), "--run-dir", str(run_dir)]
    log = run_dir / "logs" / "launcher.jsonl"
    with (tmp_path / "said").open("wb") as output:
        trainer = subprocess.Popen([*command, "run.steps=3_000"], env=environment, stdout=output, stderr=output)
        try:
            wait_until(lambda: (run_dir / "metrics.csv").exists() or trainer.poll() is not None, "rows", TRAINING_S)
            trained = [item for item in programs_in(flags) if item.environ()["SEEDBED_ACTOR__MODE"] == "train"]
            next(item for item in trained if "main.py" in item.cmdline()).kill()
            assert trainer.wait(TRAINING_S) == 0, (tmp_path / "said").read_text()
        finally:
            trainer.kill()
            trainer.wait()
    assert programs_in(flags) == []
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["name"] for line in lines if line["event"] == "service_died"} == {"actor-0"}
    assert json.loads((run_dir / "summary.json").read_text())["eval_return_mean"] > 3
    assert set(builds.read_text().split()) == {"built"}
    played = play_episodes(load_policy(run_dir), 12, greedy=True, seed=1)
    assert played.names == ("return", "length", "last_flag")
    assert played.returns.mean() > 3
    assert len(played.returns) == 12
    assert programs_in(flags) == []


def test_a_run_starts_it_with_what_it_must_know(flags, tmp_path):
    """In its own folder, by the variables that every language understands."""
    words = ("env.kwargs={level = 3}", "eval.env={max_episode_steps = 9}", "launch.inference=2", "actor.lanes=4")
    planned = plan(flags / "experiment.toml", tmp_path / "run", *words)
    actor, evaluator = planned["actor-0"], planned["eval-0"]
    assert (actor.role, actor.folder) == ("actor", flags)
    assert list(actor.command[-2:]) == ["sh", "start.sh"]
    told = {name: value for name, value in actor.environment.items() if name.startswith("SEEDBED_")}
    assert told == {
        "SEEDBED_ACTOR__UPSTREAM": "tcp://127.0.0.1:2,tcp://127.0.0.1:3",
        "SEEDBED_ACTOR__MODE": "train",
        "SEEDBED_ACTOR__GROUPS": "2",
        "SEEDBED_ACTOR__LANES": "4",
        "SEEDBED_ACTOR__NAME": "actor-0",
        "SEEDBED_ENV__KWARGS": '{"level": 3}',
        "SEEDBED_EVAL__ENV": '{"max_episode_steps": 9}',
        DIE_WITH_PARENT: str(os.getpid()),
    }
    changed = {name: value for name, value in evaluator.environment.items() if actor.environment.get(name) != value}
    assert changed == {
        "SEEDBED_ACTOR__UPSTREAM": "tcp://127.0.0.1:3,tcp://127.0.0.1:2",
        "SEEDBED_ACTOR__MODE": "eval",
        "SEEDBED_ACTOR__GROUPS": "1",
        "SEEDBED_ACTOR__LANES": "5",
        "SEEDBED_EVAL__LANES": "5",
        "SEEDBED_ACTOR__NAME": "eval-0",
    }
    assert parse_value(told["SEEDBED_ENV__KWARGS"]) == {"level": 3}, "a service in Python reads it like any setting"


def test_tasks_may_have_services_of_their_own(flags, tmp_path):
    """Some tasks are stepped by programs, others by seedbed's actors."""
    file = tmp_path / "tasks.toml"
    file.write_text(f'[tasks.a.env]\nid = "Flags-v0"\nservice = "{flags}"\n[tasks.b.env]\nid = "CartPole-v1"\n')
    planned = plan(file, tmp_path / "run", "learner.max_policy_lag=100")
    assert planned["actor-a-0"].folder == flags
    assert planned["actor-a-0"].environment["SEEDBED_ACTOR__TASK"] == "a"
    assert planned["actor-b-0"].folder is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env.service=nowhere"], "nowhere"),
        (["env.id=Other-v0"], "Flags-v0"),
    ],
)
def test_a_wrong_service_is_refused_before_anything_starts(flags, tmp_path, words, expected):
    """A folder that is none, or another environment's name; no run folder is left."""
    with pytest.raises(ConfigError, match=expected):
        load_experiment(flags / "experiment.toml", words, run_dir=tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_folder_stands_for_its_experiment(flags):
    """As an argument of train; a folder without one says what is missing."""
    assert find_experiment(str(flags)) == flags / "experiment.toml"
    (flags / "experiment.toml").unlink()
    (flags / "service.toml").unlink()
    with pytest.raises(ConfigError, match=r"experiment\.toml"):
        find_experiment(str(flags))


def test_a_service_alone_needs_no_experiment(flags):
    """As the argument or after --env: its environment, with settings that suit what it says of itself."""
    (flags / "experiment.toml").unlink()
    for argument, env in ((str(flags), None), (None, str(flags))):
        file, words = choose_source(argument, ["learner.batch=8"], env=env, memory=False)
        assert file is None
        assert words == ['env.id="Flags-v0"', f'env.service="{flags}"', "run.recipe=auto", "learner.batch=8"]


def test_it_is_looked_at_before_a_run_like_any_other(flags):
    """Its spaces are known, so that networks are tried and recipes chosen; what it lacks is told."""
    probe = probe_environment(EnvConfig(id="Flags-v0", service=str(flags)), PATIENCE_S)
    assert (probe.backend, probe.spec.env_id, probe.lanes) == ("service", "Flags-v0", 1)
    (flags / "start.sh").write_text("echo there is no simulator here >&2; exit 3")
    with pytest.raises(ConfigError, match="no simulator here"):
        probe_environment(EnvConfig(id="Flags-v0", service=str(flags), max_episode_steps=7), PATIENCE_S)


def test_a_service_is_found_beside_its_experiment_here_or_by_name(flags, tmp_path, monkeypatch):
    """In this order."""
    assert find_folder(".", flags) == flags
    monkeypatch.chdir(tmp_path)
    assert find_folder("flags") == flags
    found = find_folder("corridor_cpp")
    assert found is not None
    assert found.name == "corridor_cpp"
    assert find_folder("nothing") is None
    assert open_service(EnvConfig(id="Flags-v0", service="flags")).manifest.name == "flags"


def test_in_containers_it_has_an_image_of_its_own(flags, tmp_path):
    """The same file starts learner and inference there."""
    here = Container(host="h", service="flags", cores=2, runs=tmp_path)
    assert plan_service(ContainerRole.LEARNER, str(flags / "experiment.toml"), [], "", here).package == "learner"


def test_an_actor_of_such_an_experiment_becomes_the_program(flags):
    """`seedbed actor` of the same file, on any machine; the program sees its variables and words are settings."""
    said = flags / "said.json"
    (flags / "start.sh").write_text('exec "$PYTHON" say.py')
    (flags / "say.py").write_text(
        "import json, os\nopen('said.json', 'w').write(json.dumps({**os.environ, 'pid': os.getpid()}))\n"
    )
    process = subprocess.Popen(
        [
            sys.executable, "-m", "seedbed.services.tools.cli.app", "actor", str(flags / "experiment.toml"),
            "actor.mode=eval", "actor.upstream=tcp://127.0.0.1:9,tcp://127.0.0.1:10",
        ],
    )  # fmt: skip
    assert process.wait(PATIENCE_S) == 0
    found = json.loads(said.read_text())
    assert found["pid"] == process.pid, "signals and the exit status are the program's"
    assert found["SEEDBED_ACTOR__UPSTREAM"] == "tcp://127.0.0.1:9,tcp://127.0.0.1:10"
    assert (found["SEEDBED_ACTOR__MODE"], found["SEEDBED_ACTOR__LANES"]) == ("eval", "5")
    assert DIE_WITH_PARENT not in found


# The minder


def start_minded(folder: Path, script: str) -> subprocess.Popen[bytes]:
    """A shell script under the minder, as launcher and `env check` start it."""
    return subprocess.Popen(
        minded(["sh", "-c", script], niceness=0, tells_all=True),
        cwd=folder,
        env={**os.environ, DIE_WITH_PARENT: str(os.getpid())},
        start_new_session=True,
    )


def test_sigterm_reaches_the_program_behind_a_script(tmp_path):
    """And its exit status is told, though the script was ended by the signal."""
    for status in (0, 7):
        (tmp_path / "program.py").write_text(
            f"import signal, sys, threading\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit({status}))\n"
            "open('up', 'w').close()\nwhile True:\n    threading.Event().wait(0.01)\n"
        )
        process = start_minded(tmp_path, f"{sys.executable} program.py; true")
        wait_until((tmp_path / "up").exists, "the program")
        process.terminate()
        assert process.wait(PATIENCE_S) == status
        (tmp_path / "up").unlink()
    assert programs_in(tmp_path) == []


def test_the_programs_end_is_the_minders(tmp_path):
    """By status or by signal; what it left behind is ended."""
    assert start_minded(tmp_path, "exit 78").wait(PATIENCE_S) == 78
    assert start_minded(tmp_path, "kill -9 $$").wait(PATIENCE_S) == -signal.SIGKILL
    assert start_minded(tmp_path, "sleep 1000 & exit 3").wait(PATIENCE_S) == 3
    assert programs_in(tmp_path) == []


def test_a_program_that_cannot_run_is_a_wrong_configuration(tmp_path, capfd):
    """Status 78, which no launcher restarts, and the command by name."""
    process = subprocess.Popen(
        minded(["no-such-program"], niceness=0, tells_all=True),
        env={**os.environ, DIE_WITH_PARENT: str(os.getpid())}, start_new_session=True,
    )  # fmt: skip
    assert process.wait(PATIENCE_S) == ConfigError.exit_code
    assert "no-such-program" in capfd.readouterr().err


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path):
    """Not even what a script had started."""
    launcher = (
        "import os, subprocess, sys\n"
        f"os.environ[{DIE_WITH_PARENT!r}] = str(os.getpid())\n"
        "subprocess.Popen(sys.argv[1:], start_new_session=True).wait()\n"
    )
    script = f"\"{sys.executable}\" -c \"import time; open('up', 'w'); time.sleep(1000)\"; true"
    process = subprocess.Popen(
        [sys.executable, "-c", launcher, *minded(["sh", "-c", script], niceness=0, tells_all=True)], cwd=tmp_path
    )
    wait_until((tmp_path / "up").exists, "the program")
    process.kill()
    process.wait()
    wait_until(lambda: programs_in(tmp_path) == [], "everything ends")


SIMULATOR = "import pathlib, time; pathlib.Path('up').touch(); time.sleep(1000)"
ACTOR = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SIMULATOR!r}], start_new_session=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_simulator_in_a_session_of_its_own_ends_with_its_actor(tmp_path, number):
    """However the actor ended, also by a kill; its status is told."""
    process = subprocess.Popen(
        minded([sys.executable, "-c", ACTOR], niceness=0, tells_all=False),
        cwd=tmp_path, env={**os.environ, DIE_WITH_PARENT: str(os.getpid())}, start_new_session=True,
    )  # fmt: skip
    wait_until((tmp_path / "up").exists, "the simulator")
    (actor,) = psutil.Process(process.pid).children()
    actor.send_signal(number)
    assert process.wait(PATIENCE_S) == -number
    assert programs_in(tmp_path) == []


def test_a_simulator_in_a_session_of_its_own_ends_with_its_launcher(tmp_path):
    """Which can end nothing itself when it is killed."""
    launcher = (
        "import os, subprocess, sys\n"
        f"os.environ[{DIE_WITH_PARENT!r}] = str(os.getpid())\n"
        "subprocess.Popen(sys.argv[1:], start_new_session=True).wait()\n"
    )
    command = minded([sys.executable, "-c", ACTOR], niceness=0, tells_all=False)
    process = subprocess.Popen([sys.executable, "-c", launcher, *command], cwd=tmp_path)
    wait_until((tmp_path / "up").exists, "the simulator")
    process.kill()
    process.wait()
    wait_until(lambda: programs_in(tmp_path) == [], "everything ends")
