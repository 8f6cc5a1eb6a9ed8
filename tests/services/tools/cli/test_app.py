"""The command line itself: exit codes, messages, and what is imported for what."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from seedbed.services.tools.cli.app import main, service_words
from seedbed.services.tools.cli.bench.experiment import Point, rates
from seedbed.services.tools.cli.experiment import find_experiment, load_experiment
from seedbed.services.tools.cli.plan import Addresses, plan_run
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.runtime.health import CAUSE_VARIABLE
from seedbed.shared.runtime.service import DIE_WITH_PARENT

ROOT = Path(__file__).parents[4]


def test_help_names_every_command(capsys):
    """And costs no heavy import (see below)."""
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("train", "eval", "actor", "inference", "learner", "doctor", "explain", "bench", "env", "play"):
        assert command in text


def test_help_begins_with_what_a_newcomer_needs(capsys):
    """Training first, then what looks at runs; the services that a launcher starts come late."""
    main(["--help"])
    text = capsys.readouterr().out.partition("Commands")[2]
    places = [text.index(f"│ {command} ") for command in ("train", "runs", "eval", "env", "learner", "keys")]
    assert places == sorted(places)


@pytest.mark.parametrize("words", [[], ["keys"], ["env"]])
def test_no_command_shows_help_and_no_empty_error(words, capsys):
    """With the exit status of a wrong command line."""
    assert main(words) == 2
    shown = capsys.readouterr()
    assert "Usage" in shown.out
    assert shown.err == ""


def test_completion_can_be_installed(tmp_path):
    """The script that a shell loads asks this command."""
    detection = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"  # of who started us: no shell, perhaps
    environment = {**os.environ, "HOME": str(tmp_path), detection: "1"}
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "--show-completion", "bash"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "_SEEDBED_COMPLETE" in shown.stdout


def test_an_unknown_experiment_exits_78_with_a_suggestion(capsys):
    """In words, without a traceback."""
    assert main(["train", "cartpol"]) == 78
    assert "did you mean 'cartpole'" in capsys.readouterr().err


def test_an_unknown_key_exits_78_before_anything_starts(tmp_path, capsys):
    """No run folder is made for it."""
    assert main(["train", "cartpole", "actor.lane=3", "--run-dir", str(tmp_path / "run")]) == 78
    assert "did you mean 'lanes'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["eval"], ["train", "cartpole", "--bogus"], ["train", "cartpole", "--seconds", "x"]])
def test_a_wrong_command_line_is_told_without_a_traceback(words, capsys):
    """With where to read on, and the exit status of every command-line tool."""
    assert main(words) == 2
    assert f"seedbed {words[0]} --help" in capsys.readouterr().err


def test_training_nothing_in_particular_names_what_there_is(capsys):
    """The experiments, and the command that says what each is."""
    assert main(["train"]) == 78
    said = capsys.readouterr().err
    assert "cartpole" in said
    assert "seedbed experiments" in said


def test_a_run_folder_that_cannot_be_made_is_a_configuration_error(tmp_path, capsys):
    """Its path is in the message."""
    (tmp_path / "file").write_text("")
    assert main(["train", "cartpole", "--run-dir", str(tmp_path / "file" / "run")]) == 78
    assert "file/run: Not a directory" in capsys.readouterr().err.replace("\n", "")


def test_a_command_that_fails_leaves_its_cause_for_a_supervisor(tmp_path, monkeypatch):
    """An actor's settings are read by the command before there is a service."""
    monkeypatch.setenv(CAUSE_VARIABLE, str(tmp_path / "cause"))
    assert main(["actor", "cartpole", "actor.lnaes=3"]) == 78
    assert "lnaes" in (tmp_path / "cause").read_text()


@pytest.mark.parametrize("run", ["absent", "/absent", "runs/absent", "**"])
@pytest.mark.parametrize("command", ["eval", "explain"])
def test_an_unknown_run_is_told_so(command, run, tmp_path, monkeypatch, capsys):
    """With what a run folder is."""
    monkeypatch.chdir(tmp_path)
    assert main([command, run]) == 78
    assert "no run there" in capsys.readouterr().err


def test_a_services_words_name_the_file_of_an_experiment():
    """`seedbed actor cartpole key=value` and `--config FILE` alike."""
    words = service_words(["cartpole", "actor.lanes=3"], None)
    assert Path(words[0]).name == "cartpole.toml"
    assert words[1:] == ["actor.lanes=3"]
    assert service_words(["actor.lanes=3"], Path(words[0])) == words
    assert service_words(["env.id=CartPole-v1"], None) == ["env.id=CartPole-v1"]


def test_help_and_actors_need_no_torch():
    """An actor's machine has none, and --help must be quick."""
    code = (
        "import sys; from seedbed.services.tools.cli.app import main\n"
        "main(['--help']); main(['actor', '--help'])\n"
        "import seedbed.actor_svc.__main__\n"
        "sys.exit('torch' in sys.modules or 'gymnasium' not in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("start", ["command", "launcher"])
def test_modules_of_the_working_directory_are_found_and_hide_none(tmp_path, start):
    """`module:function` is looked for where the user stands, whose own folders may be called like our packages."""
    (tmp_path / "mine.py").write_text('def make():\n    raise ValueError("made here")\n')
    for name in ("shared", "services"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    if start == "command":
        command = [str(Path(sys.executable).with_name("seedbed")), "actor"]
    else:
        experiment = load_experiment(find_experiment("cartpole"), [], run_dir=tmp_path / "run", resume=False)
        planned = plan_run(experiment, Addresses(learner="tcp://127.0.0.1:9", inference=("tcp://127.0.0.1:9",)), 2)
        command = list(planned[-1].command[: planned[-1].command.index("seedbed.actor_svc") + 1])
    done = subprocess.run(
        [*command, "env.id=mine:make", "actor.upstream=tcp://127.0.0.1:9", "runtime.metrics_address="],
        cwd=tmp_path,
        env={**os.environ, DIE_WITH_PARENT: str(os.getpid())},
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "No module named" not in done.stderr
    assert "ValueError: made here" in done.stderr


def test_a_missing_extra_is_named_with_its_remedy():
    """Where torch cannot be imported, the message says what to install."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "from seedbed.services.tools.cli.app import main\n"
        "sys.exit(main(['inference', 'cartpole']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "pip install 'seedbed[torch]'" in done.stderr.replace("\n", " ")


def test_rates_of_a_bench_are_those_of_the_last_half():
    """A slow start does not count."""
    points = [Point(float(at), 10.0 * at if at <= 10 else 100.0 + 100.0 * (at - 10), 0.0, at / 4) for at in range(21)]
    trained, acted, stolen = rates(points)
    assert stolen == 0.25
    assert trained == pytest.approx(100.0)
    assert acted == 0.0


def test_a_bench_without_training_is_an_error():
    """Better none than a made-up figure."""
    with pytest.raises(SeedbedError, match="give it more"):
        rates([])


def test_constraints_pin_what_the_project_needs():
    """Every direct dependency has exactly one pin, and it lies within its range."""
    pins = read_pins()
    for requirement in requirements():
        assert requirement.specifier.contains(pins[canonical(requirement.name)]), requirement
    assert pins["torch"] == "2.13.0"


def test_constraints_pin_nothing_else():
    """Every pin is of a package that a dependency brings along, as far as what is installed here can tell."""
    reached = set()
    waiting = [(requirement, "") for requirement in requirements()]
    while waiting:
        requirement, extra = waiting.pop()
        key = canonical(requirement.name), extra, frozenset(requirement.extras)
        if (requirement.marker is not None and not requirement.marker.evaluate({"extra": extra})) or key in reached:
            continue
        reached.add(key)
        try:
            brings = importlib.metadata.requires(requirement.name) or []
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{requirement.name} is not installed")
        waiting += [(Requirement(text), name) for text in brings for name in ("", *requirement.extras)]
    assert set(read_pins()) - {name for name, *_ in reached} == set()


def read_pins():
    """constraints.txt: name → version."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert len(pins) == len({canonical(name) for name, _, _ in pins})
    return {canonical(name): version for name, _, version in pins}


def requirements():
    """What pyproject.toml asks for, extras and all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    return [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]


def canonical(name):
    """A package's name as indices compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_results_of_benches_are_json_lines():
    """With bench and machine first."""
    from seedbed.services.tools.cli.bench import format_result

    line = json.loads(format_result("pong", {"lanes": 4, "trained_steps_per_s": 2.5}))
    assert list(line)[:2] == ["bench", "machine"]
    assert line["lanes"] == 4


def test_a_bad_word_for_a_service_is_a_configuration_error():
    """`seedbed actor nonsense` names what there is."""
    with pytest.raises(ConfigError, match="no experiment named"):
        service_words(["nonsense"], None)


def test_every_pin_takes_every_python_that_the_project_takes():
    """Debian 12's own is 3.11.2, and a package that wants 3.11.5 ends its user's first command."""
    oldest = ("3.11.0", "3.12.0", "3.13.0")
    refused = {}
    for name in read_pins():
        try:
            asked = importlib.metadata.metadata(name).get("Requires-Python", "")
        except importlib.metadata.PackageNotFoundError:  # of an extra that is not installed here
            continue
        if missing := [version for version in oldest if version not in SpecifierSet(asked or "")]:
            refused[name] = missing
    assert refused == {}
