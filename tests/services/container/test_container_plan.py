"""What a container's service is told: names, threads, folders; and what is refused before it starts."""

import os

import pytest

from services.cli.experiment import EXPERIMENTS
from services.container.plan import OVERRIDES, Container, check_runs, plan_service
from services.container.role import Role
from shared.errors import ConfigError
from shared.runtime.config import parse_value


@pytest.fixture
def here(tmp_path):
    """An actor image without anything special, on eight cores."""
    return Container(host="4f5e", service="classic_control", cores=8, runs=tmp_path)


def settings_of(start):
    """What the command line says, the last word of each key."""
    return {key: parse_value(value) for key, value in (word.split("=", 1) for word in start.words[1:])}


@pytest.mark.parametrize("role", Role)
def test_each_replica_has_a_name_of_its_own(here, role):
    """Counted by name, restarts of two replicas would be one service's."""
    said = settings_of(plan_service(role, "cartpole", [], "", here))
    assert said["runtime.name"] == f"{role}-4f5e"
    assert said.get("inference.name") == (f"{role}-4f5e" if role is Role.INFERENCE else None)


def test_the_run_goes_to_a_folder_of_the_experiments_or_the_given_name(here):
    """So a second start finds the first's run."""
    assert settings_of(plan_service(Role.LEARNER, "pong", [], "", here))["run.dir"] == str(here.runs / "pong")
    assert settings_of(plan_service(Role.LEARNER, "pong", [], "pong-2", here))["run.dir"] == str(here.runs / "pong-2")
    with pytest.raises(ConfigError, match="RUN"):
        plan_service(Role.LEARNER, "pong", [], "../pong", here)


def test_cores_are_divided_as_on_one_machine(here):
    """Half to the learner, a quarter to inference; what the user says is stronger."""
    assert settings_of(plan_service(Role.LEARNER, "cartpole", [], "", here))["runtime.threads"] == 4
    start = plan_service(Role.INFERENCE, "cartpole", [], "", here)
    assert settings_of(start)["runtime.threads"] == 2
    assert start.environment["OMP_NUM_THREADS"] == "2"
    assert settings_of(plan_service(Role.LEARNER, "cartpole", ["runtime.threads=7"], "", here))["runtime.threads"] == 7


def test_an_evaluator_is_an_actor_that_plays_evaluations(here):
    """Without one a run would never be measured."""
    assert Role.EVALUATOR.package == "actor"
    assert settings_of(plan_service(Role.EVALUATOR, "cartpole", [], "", here))["actor.mode"] == "eval"
    assert "actor.mode" not in settings_of(plan_service(Role.ACTOR, "cartpole", [], "", here))


@pytest.mark.parametrize(
    ("experiment", "remedy"),
    [
        ("pong", "COMPOSE_FILE=compose/compose.yaml:compose/atari.yaml EXPERIMENT=pong docker-compose up --build"),
        ("procgen", "COMPOSE_FILE=compose/compose.yaml:compose/custom.yaml SERVICE=procgen EXPERIMENT=procgen "),
        ("services/minigrid/experiment.toml", "compose/custom.yaml SERVICE=minigrid "),
    ],
)
def test_an_image_that_cannot_step_the_environments_names_the_override(here, experiment, remedy):
    """Only where environments are stepped: the learner does not care."""
    with pytest.raises(ConfigError) as refused:
        plan_service(Role.ACTOR, experiment, [], "", here)
    assert remedy in str(refused.value)
    plan_service(Role.LEARNER, experiment, [], "", here)


def test_every_override_of_an_image_is_known():
    """The message names files that are there."""
    for name in (*OVERRIDES, "custom"):
        assert (EXPERIMENTS.parent / f"{name}.yaml").is_file()


@pytest.mark.skipif(os.getuid() == 0, reason="root can write everywhere")
def test_runs_that_cannot_be_written_are_refused(tmp_path):
    """By whoever is not root."""
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="SEEDBED_UID"):
        check_runs(tmp_path, tmp_path / "pong", (os.getuid(), os.getgid()))


def test_runs_that_cannot_be_written_come_with_the_lines_for_the_env_file(tmp_path, monkeypatch):
    """The folder itself, or that of the run; a run that is not there yet will be made."""
    owner = tmp_path.stat()
    check_runs(tmp_path, tmp_path / "pong", (1000, 1000))
    monkeypatch.setattr(os, "access", lambda path, _mode: path.name != "pong")
    (tmp_path / "pong").mkdir()
    with pytest.raises(ConfigError) as refused:
        check_runs(tmp_path, tmp_path / "pong", (1000, 1001))
    said = str(refused.value)
    assert f"\nSEEDBED_UID={owner.st_uid}\nSEEDBED_GID={owner.st_gid}\n" in said
    assert "sudo chown -R 1000:1001 runs/pong" in said
    with pytest.raises(ConfigError, match="mount a folder"):
        check_runs(tmp_path / "nowhere", tmp_path / "nowhere" / "pong", (1000, 1000))
