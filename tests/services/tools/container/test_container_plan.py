"""What a container's service is told: names, threads, folders; and what is refused before it starts."""

from dataclasses import replace

import pytest

from seedbed.learner_svc.ranks.ranks import place_of
from seedbed.services.tools.cli.experiment import EXPERIMENTS
from seedbed.services.tools.container.plan import OVERRIDES, Container, plan_service
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.load_config import parse_value


@pytest.fixture
def here(tmp_path):
    """An actor image without anything special, on eight cores."""
    return Container(host="4f5e", service="classic_control", cores=8, runs=tmp_path)


def settings_of(start):
    """What the command line says, the last word of each key."""
    return {key: parse_value(value) for key, value in (word.split("=", 1) for word in start.words[1:])}


@pytest.mark.parametrize("role", ContainerRole)
def test_each_replica_has_a_name_of_its_own(here, role):
    """Counted by name, restarts of two replicas would be one service's."""
    said = settings_of(plan_service(role, "cartpole", [], "", here))
    assert said["runtime.name"] == f"{role}-4f5e"
    assert said.get("inference.name") == (f"{role}-4f5e" if role is ContainerRole.INFERENCE else None)


def test_a_host_that_is_called_by_its_role_is_not_called_so_twice(here):
    """Kubernetes names pods by what they run."""
    said = settings_of(plan_service(ContainerRole.LEARNER, "cartpole", [], "", replace(here, host="learner-0")))
    assert said["runtime.name"] == "learner-0"


def test_a_learners_rank_is_the_number_of_its_host(here):
    """As a StatefulSet names its pods; other services have no rank."""
    several = replace(here, ranks=3)
    start = plan_service(ContainerRole.LEARNER, "cartpole", [], "", replace(several, host="learner-2"))
    assert place_of({**start.environment, "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}) == (2, 3)
    for start in (
        plan_service(ContainerRole.LEARNER, "cartpole", [], "", replace(here, host="learner-0")),
        plan_service(ContainerRole.INFERENCE, "cartpole", [], "", several),
    ):
        assert "RANK" not in start.environment
    for host in ("learner-3", "4f5e"):
        with pytest.raises(ConfigError, match="WORLD_SIZE"):
            plan_service(ContainerRole.LEARNER, "cartpole", [], "", replace(several, host=host))


def test_the_run_goes_to_a_folder_of_the_experiments_or_the_given_name(here):
    """So a second start finds the first's run."""
    assert settings_of(plan_service(ContainerRole.LEARNER, "pong", [], "", here))["run.dir"] == str(here.runs / "pong")
    assert settings_of(plan_service(ContainerRole.LEARNER, "pong", [], "pong-2", here))["run.dir"] == str(
        here.runs / "pong-2"
    )
    with pytest.raises(ConfigError, match="RUN"):
        plan_service(ContainerRole.LEARNER, "pong", [], "../pong", here)


def test_cores_are_divided_as_on_one_machine(here):
    """Half to the learner, a quarter to inference; what the user says is stronger."""
    assert settings_of(plan_service(ContainerRole.LEARNER, "cartpole", [], "", here))["runtime.threads"] == 4
    start = plan_service(ContainerRole.INFERENCE, "cartpole", [], "", here)
    assert settings_of(start)["runtime.threads"] == 2
    assert start.environment["OMP_NUM_THREADS"] == "2"
    assert (
        settings_of(plan_service(ContainerRole.LEARNER, "cartpole", ["runtime.threads=7"], "", here))["runtime.threads"]
        == 7
    )


def test_an_evaluator_is_an_actor_that_plays_evaluations(here):
    """Without one a run would never be measured."""
    assert ContainerRole.EVALUATOR.package == "actor"
    assert settings_of(plan_service(ContainerRole.EVALUATOR, "cartpole", [], "", here))["actor.mode"] == "eval"
    assert "actor.mode" not in settings_of(plan_service(ContainerRole.ACTOR, "cartpole", [], "", here))


def test_an_actor_steps_every_task_of_the_run_unless_one_is_chosen(here):
    """A process each; nothing must be said for that, and a name that is none is refused with the nearest."""
    for role in (ContainerRole.ACTOR, ContainerRole.EVALUATOR):
        assert plan_service(role, "memory_tasks", [], "", here).tasks == ("short", "middling", "long")
        assert plan_service(role, "memory_tasks", ["actor.task=long"], "", here).tasks == ()
        assert plan_service(role, "cartpole", [], "", here).tasks == ()
    assert plan_service(ContainerRole.LEARNER, "memory_tasks", [], "", here).tasks == ()
    with pytest.raises(ConfigError, match=r"TASK .* did you mean 'long'"):
        plan_service(ContainerRole.ACTOR, "memory_tasks", ["actor.task=longer"], "", here)


def test_inference_serves_a_run_that_is_there(here):
    """Named as the learner's is; another is refused with those that there are."""
    (here.runs / "pong-2").mkdir()
    with pytest.raises(ConfigError, match="no run 'pong-2', nor any other"):
        plan_service(ContainerRole.INFERENCE, "pong", [], "pong-2", here, serve="best")
    (here.runs / "pong-2" / "config.toml").touch()
    start = plan_service(ContainerRole.INFERENCE, "pong", [], "pong-2", here, serve="best")
    assert (start.package, *start.words[:2]) == ("served", str(here.runs / "pong-2"), "best")
    with pytest.raises(ConfigError, match="did you mean 'pong-2'"):
        plan_service(ContainerRole.INFERENCE, "pong", [], "", here, serve="best")
    assert plan_service(ContainerRole.INFERENCE, "pong", [], "pong-2", here).package == "inference"


@pytest.mark.parametrize(
    ("experiment", "remedy"),
    [
        ("atari_set", "COMPOSE_FILE=compose/compose.yaml:compose/atari.yaml EXPERIMENT=atari_set docker-compose up"),
        ("pong", "COMPOSE_FILE=compose/compose.yaml:compose/atari.yaml EXPERIMENT=pong docker-compose up --build"),
        ("procgen", "COMPOSE_FILE=compose/compose.yaml:compose/custom.yaml SERVICE=procgen EXPERIMENT=procgen "),
        ("services/minigrid/experiment.toml", "compose/custom.yaml SERVICE=minigrid "),
    ],
)
def test_an_image_that_cannot_step_the_environments_names_the_override(here, experiment, remedy):
    """Only where environments are stepped: the learner does not care."""
    with pytest.raises(ConfigError) as refused:
        plan_service(ContainerRole.ACTOR, experiment, [], "", here)
    assert remedy in str(refused.value)
    plan_service(ContainerRole.LEARNER, experiment, [], "", here)


def test_every_override_of_an_image_is_known():
    """The message names files that are there."""
    for name in (*OVERRIDES, "custom"):
        assert (EXPERIMENTS.parent / f"{name}.yaml").is_file()
