"""`seedbed env new`: what it writes is an environment that keeps every rule, in a folder that hides nobody's."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.experiment import load_experiment
from seedbed.services.tools.cli.service_folder import read_manifest
from seedbed.services.tools.container.plan import Container, plan_service
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.errors import ConfigError

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the development extra")

ROOT = Path(__file__).resolve().parents[5]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory; the command's search path ends with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("words", [[], ["--vector"]])
def test_it_passes_its_own_tests_as_written(here, words, capsys):
    """In a folder whose user has packages called like ours; and the next commands are told."""
    for name in ("services", "shared"):
        (here / name).mkdir()
        (here / name / "__init__.py").touch()
    assert main(["env", "new", "walk", *words]) == 0
    said = capsys.readouterr().out
    assert "seedbed env check walk" in said
    assert "seedbed train walk/experiment.toml" in said
    command = [str(Path(sys.executable).with_name("seedbed")), "env", "check", "walk.env:make", "--soak-steps", "50"]
    checked = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=100)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_its_service_dials_from_any_folder(here):
    """`python walk`: its own files come first, nothing else of the user's does."""
    (here / "shared").mkdir()
    (here / "shared" / "__init__.py").touch()
    assert main(["env", "new", "walk"]) == 0
    command = [sys.executable, "walk", "actor.lane=3"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=100)
    assert "did you mean 'lanes'" in done.stderr
    assert done.returncode == 78


@pytest.mark.parametrize("in_clone", [False, True])
def test_its_files_agree_on_names(here, in_clone):
    """service.toml, experiment and environment; in a clone the package is seedbed.services.NAME."""
    if in_clone:
        (here / "services" / "tools" / "cli").mkdir(parents=True)
        (here / "services" / "tools" / "cli" / "app.py").touch()
    assert main(["env", "new", "my_walk", "--vector"]) == 0
    folder = here / "services" / "my_walk" if in_clone else here / "my_walk"
    env_id = "seedbed.services.my_walk.env:make" if in_clone else "my_walk.env:make"
    manifest = read_manifest(folder / "service.toml")
    assert manifest.env_id == env_id
    assert manifest.command == (["python", "-m", "seedbed.services.my_walk"] if in_clone else ["python", "."])
    experiment = load_experiment(folder / "experiment.toml", [], run_dir=here / "run", resume=False)
    assert experiment.settings.env.id == env_id
    assert "class MyWalkVectorEnv" in (folder / "env.py").read_text()
    assert tomllib.loads((folder / "experiment.toml").read_text())["run"]["name"] == "my_walk"
    assert experiment.settings.launch.service == "my_walk"
    assert (folder / "Dockerfile").exists() is not in_clone
    for path in folder.iterdir():
        left = path.read_text().replace("${PWD}", "").replace("${BASE}", "").replace("$PWD/runs", "")
        assert "$" not in left, path


def test_its_compose_file_overrides_seedbeds_and_gives_up_nothing_of_it(here):
    """Keys, health, the rest after a refusal and the read-only root come from there; its image from the actor's."""
    assert main(["env", "new", "walk"]) == 0
    override = yaml.safe_load((here / "walk" / "compose.yaml").read_text())["services"]
    ours = yaml.safe_load((ROOT / "compose" / "compose.yaml").read_text())["services"]
    assert set(override) == {"learner", "inference", "actor", "evaluator"} < set(ours)
    assert {key for service in override.values() for key in service} == {"volumes", "image", "build"}
    assert all(volume.endswith(":ro") for service in override.values() for volume in service["volumes"])
    recipe = (here / "walk" / "Dockerfile").read_text()
    assert "ARG BASE=seedbed-actor\nFROM ${BASE} AS actor\n" in recipe
    assert "COPY . /opt/seedbed/walk\nRUN chmod -R a+rX /opt/seedbed/walk\n" in recipe  # whatever the umask here
    assert recipe.endswith("ENV SEEDBED_SERVICE=walk\nUSER 1000:1000\n")
    assert override["actor"]["build"]["target"] == "actor"
    assert (here / "walk" / ".dockerignore").is_file()


def test_the_wrong_image_names_its_override(here):
    """Where the folder is, only its user knows."""
    assert main(["env", "new", "walk"]) == 0
    container = Container(host="h", service="classic_control", cores=1, runs=here)
    with pytest.raises(ConfigError, match=r"compose.yaml:FOLDER_OF_walk/compose.yaml EXPERIMENT=walk/experiment.toml "):
        plan_service(ContainerRole.ACTOR, "walk/experiment.toml", [], "", container)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my-walk", "cannot be a package's name"),
        ("class", "cannot be a package's name"),
        ("json", "the name of an installed module"),
        ("seedbed", "the name of an installed module"),
        ("taken", "is there already"),
    ],
)
def test_names_that_cannot_be_are_refused(here, name, said, capsys):
    """Nothing is written over, nothing is hidden."""
    (here / "taken").mkdir()
    (here / "taken" / "kept.txt").touch()
    assert main(["env", "new", name]) == 78
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert [path.name for path in here.rglob("*")] == ["taken", "kept.txt"]
