"""What somebody gets who installs the wheel, without a clone of the project."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 240
pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


def run(*words, folder, **variables):
    """What a command prints in a folder of its own; it must end well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    done = subprocess.run(
        words, cwd=folder, env=environment | variables, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, for a build leaves files in the tree."""
    copy = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(None, listed.split("\0")):
        if not file.startswith(("tests/", "docs/", "benchmarks/")):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file, follow_symlinks=False)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    run(*build, str(copy / "dist"), ".", folder=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


def test_the_wheel_has_its_licence(wheel):
    """As pyproject.toml names it."""
    with zipfile.ZipFile(wheel) as files:
        (metadata,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        (licence,) = [name for name in files.namelist() if name.endswith("/licenses/LICENSE")]
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert f"License-Expression: {project['license']}\n" in files.read(metadata).decode()
        assert files.read(licence) == (ROOT / "LICENSE").read_bytes()


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """What the wheel installs, in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    target = ["--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    run(sys.executable, "-m", "pip", "install", *target, str(wheel), folder=folder)
    return folder


def test_nothing_but_seedbed_is_installed(installed):
    """A user's project may have packages of any other name."""
    assert {path.name for path in installed.iterdir() if path.suffix != ".dist-info"} == {"bin", "seedbed"}


WALK = """
import gymnasium
from shared.steps import STEPS


class Walk(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low, {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.low + self.steps / STEPS, float(action), self.steps == STEPS, False, {}

    def render(self):
        import numpy
        return numpy.full((32, 32, 3), 8 * self.steps % 256, numpy.uint8)
"""


def test_a_project_may_have_packages_called_as_ours_once_were(installed, tmp_path):
    """`services` and `shared` of the user's are trained, checked and filmed."""
    for name, file, text in (("shared", "steps", "STEPS = 9"), ("services", "walk", WALK)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / f"{file}.py").write_text(text)
    seedbed = [sys.executable, str(installed / "bin" / "seedbed")]

    def call(*words):
        return run(*seedbed, *words, folder=tmp_path, PYTHONPATH=str(installed))

    words = ["actor.lanes=16", "learner.batch=16", "eval.episodes=2", "eval.lanes=2", "eval.every_s=0"]
    call("train", "--env", "services.walk:Walk", "--steps", "2000", "--run-dir=run", *words)
    assert (tmp_path / "run" / "policy.mp4").stat().st_size > 0
    assert " 0 failed" in call("env", "check", "services.walk:Walk", "--soak-steps", "100")
    assert "9" in call("eval", "run", "--episodes", "2", "--video", "again.mp4")
    assert (tmp_path / "again.mp4").stat().st_size > 0


def test_an_experiment_is_trained_by_its_name_in_an_empty_folder(installed, tmp_path):
    """The experiments come with the package."""
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ["actor.lanes=16", "learner.batch=16", "eval.episodes=2", "eval.lanes=2", "eval.every_s=0", "run.steps=500"]
    words += ["launch.video=false"]
    train = [str(installed / "bin" / "seedbed"), "train", "cartpole", "--run-dir=run", *words]
    run(sys.executable, *train, folder=empty, PYTHONPATH=str(installed))
    assert (empty / "run" / "summary.json").is_file()
    listed = run(
        sys.executable, "-c",
        "import seedbed.services.tools.cli.experiment as e; print(*e.experiment_names(), e.EXPERIMENTS)",
        folder=empty, PYTHONPATH=str(installed),
    )  # fmt: skip
    names, place = listed.split()[:-1], Path(listed.split()[-1])
    assert names == sorted(path.stem for path in (ROOT / "compose" / "experiments").glob("*.toml"))
    assert place.is_relative_to(installed)
