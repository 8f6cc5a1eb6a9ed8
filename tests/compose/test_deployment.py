"""What the README promises of `docker-compose up`, and what its containers must not be able to do."""

import os
import re
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from seedbed.services.tools.cli.env.scaffold import choose_place, write_service
from tests.support.compose_stack import (
    BUILD_S,
    COMMANDS,
    MAIN,
    SHORT_FAREWELL,
    START_S,
    TRAINING,
    USER,
    Stack,
    compose_commands,
    docker,
    inspect,
    run_compose,
)
from tests.support.deployment import wait_until

ENDLESS = "run.steps=0 run.until_return=10000 eval.every_s=0"
OVERRIDES = ("atari", "corridor_cpp", "custom", "doom", "football", "gpu", "metrics", "serve")


@pytest.fixture(params=COMMANDS, ids=" ".join)
def command(request):
    """Each docker-compose that is there."""
    if request.param not in compose_commands():
        pytest.skip(f"no {' '.join(request.param)}")
    return request.param


@pytest.mark.parametrize("files", [MAIN, *(f"{MAIN}:compose/{name}.yaml" for name in OVERRIDES)])
def test_the_files_are_valid_alone_and_together(command, files):
    """As each docker-compose reads them."""
    assert "services:" in run_compose(["config"], {"COMPOSE_FILE": files}, 60, command)


def test_files_named_by_option_mean_the_same(command):
    """From the root, whichever `.env` is read then; an override is for actors and evaluators, and for nobody else."""
    by_option = run_compose(["-f", MAIN, "-f", "compose/atari.yaml", "config"], {}, 60, command)
    assert by_option.count("\n    image: seedbed-actor-atari\n") == 2
    assert run_compose(["config"], {"COMPOSE_FILE": f"{MAIN}:compose/atari.yaml"}, 60, command) == by_option


def test_a_second_compose_starts_scales_and_stops_the_same_deployment(command, tmp_path):
    """The other tests are of the first one that is there."""
    if command == compose_commands()[0]:
        pytest.skip("all other tests use it")
    with Stack("seedbedother", tmp_path, command, ARGS=ENDLESS) as stack:
        stack.up()
        stack.wait_trained("cartpole", 1)
        assert stack.page() == 200
        stack.up("--scale", "actor=2")
        stack.wait_healthy(*TRAINING)
        assert len(stack.containers("actor")) == 2
        stack.compose("stop")
        assert {code for _, code in stack.states().values()} == {0}


def test_up_solves_cartpole_shows_it_and_ends_and_a_second_up_says_that_it_is_over(tmp_path):
    """One command; the page is there meanwhile and afterwards; the run belongs to the user."""
    with Stack("seedbedcartpole", tmp_path, ARGS=SHORT_FAREWELL) as stack:
        stack.up()
        wait_until(lambda: stack.page() == 200, "the page is there", 120)
        assert stack.wait_ended("keys", *TRAINING) == dict.fromkeys(("keys", *TRAINING), 0)
        summary = stack.summary("cartpole")
        assert (summary["finished"], summary["reason"]) == (True, "until_return")
        assert summary["eval_return_mean"] >= 475
        owner = os.getuid() or USER
        assert {path.stat().st_uid for path in (stack.runs, *(stack.runs / "cartpole").rglob("*"))} == {owner}
        assert stack.page("/api/runs/cartpole") == 200
        assert stack.states()["monitor"] == ("running", 0)

        stack.up()
        assert stack.wait_ended("keys", *TRAINING) == dict.fromkeys(("keys", *TRAINING), 0)
        assert "run_already_finished" in stack.compose("logs", "learner")
        assert stack.summary("cartpole") == summary


def test_a_run_with_tasks_trains_all_of_them_and_then_its_policy_is_served_without_a_learner(tmp_path):
    """The experiment's name says what the tasks are; the second deployment reads the first one's run."""
    words = f"run.steps=100000 eval.episodes=5 {SHORT_FAREWELL}"
    with Stack("seedbedtasks", tmp_path, EXPERIMENT="memory_tasks", ARGS=words) as stack:
        stack.up()
        stack.wait_healthy("actor", "evaluator")
        assert stack.wait_ended(*TRAINING) == dict.fromkeys(TRAINING, 0)
        tasks = stack.summary("memory_tasks")["tasks"]
        assert set(tasks) == {"short", "middling", "long"}
        assert all(task["trained_steps"] > 0 and task["eval_episodes"] == 5 for task in tasks.values())
        stack.compose("down", "--timeout", "1")

        stack.change(COMPOSE_FILE=f"{MAIN}:compose/serve.yaml", ARGS="")
        stack.up()
        wait_until(lambda: played(stack) > 0, "episodes are played", START_S)
        assert set(stack.states()) == {"keys", "inference", "evaluator", "monitor"}


def test_an_environment_of_a_folder_of_the_users_own_is_learned(tmp_path):
    """As `seedbed env new` wrote it: its image is made from seedbed's, its override is beside it."""
    write_service("walk", choose_place("walk", tmp_path), tmp_path, vector=False)
    files = f"{MAIN}:{tmp_path / 'walk' / 'compose.yaml'}"
    variables = {
        "COMPOSE_FILE": files, "EXPERIMENT": "walk/experiment.toml", "PWD": str(tmp_path), "ARGS": SHORT_FAREWELL,
    }  # fmt: skip
    with Stack("seedbedown", tmp_path, **variables) as stack:
        stack.compose("build", "actor", timeout_s=BUILD_S)
        stack.up()
        stack.wait_healthy("actor", "evaluator")
        assert stack.wait_ended(*TRAINING) == dict.fromkeys(TRAINING, 0)
        assert stack.summary("walk")["eval_return_mean"] >= 0.98


def played(stack):
    """Episodes of a policy that is served, as Prometheus sees them."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(stack.fetch("/metrics")[1])
        for sample in family.samples
        if sample.name == "seedbed_served_episodes_total"
    )


def test_everyone_is_healthy_once_ready_and_nobody_has_been_restarted(training):
    """Health means ready; the links work with keys on all of them."""
    training.wait_healthy(*TRAINING, "monitor")
    assert {inspect(container)["RestartCount"] for container in training.all_containers()} == {0}


@pytest.mark.parametrize("service", [*TRAINING, "monitor"])
def test_a_container_is_nobodys_root_and_writes_nowhere_but_tmp(training, service):
    """Not even with capabilities that an image might bring; the learner became so, and has no way back."""
    (image_init,) = psutil.Process(inspect(training.the(service))["State"]["Pid"]).children()  # of the engine's init
    (process,) = image_init.children()
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert re.findall(r"^[UG]id:(.*)$", status, re.MULTILINE)[0].split() == [str(training.user(service))] * 4
    assert re.findall(r"^Cap\w+:\s+(.*)$", status, re.MULTILINE) == ["0" * 16] * 5
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    assert "Read-only file system" in training.exec(service, "touch", "/opt/seedbed/x", check=False)
    assert "Read-only file system" in training.exec(service, "touch", "/usr/x", check=False)
    training.exec(service, "touch", "/tmp/x")


def test_only_the_page_is_published_and_only_on_loopback(training):
    """No port of a link is open on this machine."""
    published = {
        name: {bound["HostIp"] for bounds in seen["NetworkSettings"]["Ports"].values() for bound in bounds or ()}
        for name in (*TRAINING, "monitor")
        if (seen := inspect(training.the(name)))
    }
    assert published.pop("monitor") == {"127.0.0.1"}
    assert not any(published.values())


def test_a_container_has_the_keys_of_its_role_alone(training):
    """Secrets are readable by the deployment's user and group alone, and nothing there can be changed."""
    expected = {
        "learner": {"/keys/learner/server.key"},
        "inference": {"/keys/inference/server.key", "/keys/inference/client.key"},
        "actor": {"/keys/environment/default/client.key"},
        "evaluator": {"/keys/environment/default/client.key"},
        "monitor": {"/keys/monitor/default/client.key"},
    }
    for service, files in expected.items():
        found = training.exec(service, "find", "/keys", "-name", "*.key", "-printf", "%p %m\n").splitlines()
        assert set(found) == {f"{file} 640" for file in files}
        folder = next(iter(files)).rpartition("/")[0]
        assert "Read-only file system" in training.exec(service, "touch", f"{folder}/x", check=False)


def test_actors_come_and_go_while_training_goes_on(training):
    """1 → 4 → 1: nobody else is started again."""
    before = [inspect(training.the(name))["State"]["StartedAt"] for name in ("learner", "inference", "evaluator")]
    training.up("--scale", "actor=4")
    assert len(training.containers("actor")) == 4
    training.wait_healthy("actor")
    training.wait_trained("cartpole", 10_000)
    training.up("--scale", "actor=1")
    assert len(training.containers("actor")) == 1
    training.wait_trained("cartpole", 10_000)
    after = [inspect(training.the(name))["State"]["StartedAt"] for name in ("learner", "inference", "evaluator")]
    assert after == before


def test_stop_is_heard_and_the_run_goes_on_later(training):
    """Everybody leaves in the ten seconds that there are: status 0, not killed; nothing trained is lost."""
    training.compose("stop")
    assert {name: code for name, (_, code) in training.states().items()} == dict.fromkeys(training.states(), 0)
    trained = training.summary("cartpole")["trained_steps"]
    training.up()
    training.wait_trained("cartpole", 1000)
    assert training.trained_steps("cartpole") > trained


@pytest.fixture
def contained(tmp_path):
    """Start one container of an image, asked for its health each second; it is gone afterwards."""
    names = []

    def start(*words: str) -> str:
        health = ("--health-interval", "1s", "--health-start-period", "1s", "--health-retries", "1")
        names.append(docker("run", "--detach", "--init", "--read-only", "--tmpfs", "/tmp", *health, *words).strip())
        return names[-1]

    yield start
    for name in names:
        docker("rm", "--force", name)


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (("seedbed-actor", "container", "actor", "pong"), "compose/atari.yaml EXPERIMENT=pong"),
        (("seedbed-actor", "container", "actor", "cartpole", "actor.lanse=1"), "did you mean 'lanes'"),
    ],
)
def test_what_no_restart_would_mend_stays_up_unhealthy_and_says_what_to_change(contained, words, remedy):
    """Under restart: on-failure an exit would be a loop."""
    container = contained("--restart", "on-failure", *words)
    wait_until(lambda: remedy in docker("logs", container), "it says what to change", 120)
    wait_until(lambda: inspect(container)["State"]["Health"]["Status"] == "unhealthy", "it is unhealthy", 120)
    # It may have been unhealthy before, for it was not ready yet.
    wait_until(lambda: remedy in inspect(container)["State"]["Health"]["Log"][-1]["Output"], "its health says so", 120)
    seen = inspect(container)
    assert (seen["State"]["Status"], seen["RestartCount"]) == ("running", 0)
