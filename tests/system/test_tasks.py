"""One run fed by several tasks: real processes, one of which is killed, and others that have no place in the run."""

import json
import subprocess
import sys

import pytest

from seedbed.services.tools.cli.scrape import labelled
from tests.support.deployment import Deployment, wait_until

ENV = (
    "env.id=seedbed.services.memory.env:make",
    "tasks.short.env.kwargs={min_delay=0, max_delay=2}",
    "tasks.long.env.kwargs={min_delay=3, max_delay=6}",
    "tasks.long.weight=2",
)
LANES = 12  # of an actor


@pytest.fixture
def deployment(tmp_path):
    """A learner and an inference, and an actor for each of two tasks; not started."""
    with Deployment(tmp_path, env=ENV) as made:
        for task in ("short", "long"):
            made.add_actor(f"actor-{task}", f"actor.task={task}")
        yield made


def trained(deployment: Deployment, task: str) -> float:
    """Steps of a task that were trained on; 0 while nobody says."""
    return deployment.learner.page().get(labelled("learner_task_trained_steps_total", task), 0.0)


def wait_task(deployment: Deployment, task: str, steps: float = 300) -> None:
    """Until so many more steps of a task are trained."""
    start = trained(deployment, task)
    wait_until(lambda: trained(deployment, task) >= start + steps, f"{steps:.0f} more steps of {task} are trained")


def test_a_task_goes_on_while_another_is_gone(deployment):
    """Its actor killed, a task has no share; the others have all of it, and it has its own again when it is back."""
    deployment.start()
    wait_task(deployment, "short")
    wait_task(deployment, "long")
    wait_until(lambda: deployment.inference.metric("sessions") == 4, "all groups are in")
    short, _long = deployment.actors
    short.kill()
    deployment.wait_lanes(LANES)
    stopped_at = trained(deployment, "short")
    wait_task(deployment, "long", 1000)
    assert trained(deployment, "short") - stopped_at <= LANES * 8 * 4, "no more than what had been acted"
    short.start()
    wait_task(deployment, "short")

    def is_whole() -> bool:
        page = deployment.learner.page()  # read while the learner counts, so not of one moment
        tasks = [page[labelled("learner_task_trained_steps_total", task)] for task in ("short", "long")]
        return page["learner_trained_steps_total"] == sum(tasks)

    wait_until(is_whole, "the tasks' steps are all steps")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("actor.task=longer",), "no task 'longer'; did you mean 'long'"),
        ((), "this run has the tasks short, long"),
    ],
)
def test_an_actor_without_a_task_of_the_file_does_not_start(tmp_path, words, told):
    """Exit status 78 and the names there are, before anything is dialled."""
    command = [sys.executable, "-m", "seedbed.actor_svc", *ENV, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 78
    assert told in ended.stderr


def test_who_has_no_place_in_the_run_is_refused_and_nobody_else_notices(deployment):
    """An unknown task and other spaces end their actors with 78, leaf and both shapes named."""
    alone = ("env.id=seedbed.services.memory.env:make", "actor.groups=1", "actor.lanes=2")
    upstream = f"actor.upstream={deployment.inference_address}"
    deployment.start()
    wait_task(deployment, "long")
    for words, told in (
        (("actor.task=golf",), ("actor.task is 'golf'; this run has the tasks short, long",)),
        ((), ("actor.task is not set; this run has the tasks short, long",)),
        (
            ("actor.task=short", "env.kwargs={cues=5, min_delay=0, max_delay=2}"),
            ("setting kwargs", '"cues": 5'),
        ),
    ):
        command = [sys.executable, "-m", "seedbed.actor_svc", *alone, *words, upstream]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 78, ended.stderr
        for part in told:
            assert part in ended.stderr
    wait_task(deployment, "long")
    assert deployment.inference.is_running


def test_a_task_with_other_spaces_than_the_first_is_refused(tmp_path):
    """One policy has one action space: leaf, both spaces and the remedy are named; the first task trains on."""
    env = (*ENV, "tasks.wide.env.kwargs={cues=5}")
    with Deployment(tmp_path, env=env) as deployment:
        deployment.add_actor("actor-short", "actor.task=short")
        deployment.start()
        wait_task(deployment, "short")
        wide = deployment.add_actor("actor-wide", "actor.task=wide").start()
        assert wide.wait_ended() == 78
        told = wide.errors()
        assert "task 'wide' does not fit the policy: observation space: ours" in told
        assert "float32[5]" in told
        assert "float32[6]" in told
        assert "separate runs" in told
        wait_task(deployment, "short")


def test_a_run_reports_each_task(tmp_path):
    """From `seedbed train` to the summary, the table, the curves and `seedbed eval`."""
    folder = tmp_path / "run"
    words = (
        "run.steps=3000", "learner.unroll_length=8", "learner.batch=16", "learner.max_policy_lag=1000",
        "learner.metrics_every_s=0.2", "learner.tensorboard=false", "learner.precision=fp32", "policy.hidden=[16]",
        "actor.lanes=6", "eval.episodes=5", "eval.lanes=4", "launch.video=false", "run.name=two",
        "tasks.short.random_score=0.25", "tasks.short.human_score=1", "tasks.long.random_score=0.25",
        "tasks.long.human_score=1",
    )  # fmt: skip
    file = tmp_path / "two.toml"
    file.write_text("[run]\nname = 'two'\n")
    seedbed = [sys.executable, "-m", "seedbed.services.tools.cli.app"]
    ended = subprocess.run(
        [*seedbed, "train", str(file), "--run-dir", str(folder), *ENV, *words],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["env_id"], summary["eval_episodes"]) == ("tasks", 10)
    tasks = summary["tasks"]
    assert list(tasks) == ["short", "long"]
    assert [task["eval_episodes"] for task in tasks.values()] == [5, 5]
    assert summary["eval_return_mean"] == pytest.approx(sum(t["eval_return_mean"] for t in tasks.values()) / 2)
    assert summary["eval_normalised_mean"] == pytest.approx((summary["eval_return_mean"] - 0.25) / 0.75)
    assert sum(task["share"] for task in tasks.values()) == pytest.approx(1.0, abs=1e-5)
    assert sum(task["trained_steps"] for task in tasks.values()) == summary["trained_steps"]
    assert (folder / "curves.png").stat().st_size > 20_000
    played = subprocess.run(
        [*seedbed, "eval", str(folder), "--episodes", "3"], capture_output=True, text=True, timeout=90
    )
    assert played.returncode == 0, played.stdout + played.stderr
    for word in ("short", "long", "mean over tasks"):
        assert word in played.stdout


@pytest.mark.learning
def test_every_task_reaches_its_own_threshold(tmp_path):
    """One recurrent policy learns three delays: each remembered in nine of ten whole episodes, with a seed."""
    folder = tmp_path / "run"
    seedbed = [
        sys.executable,
        "-m",
        "seedbed.services.tools.cli.app",
        "train",
        "memory_tasks",
        "--run-dir",
        str(folder),
    ]
    ended = subprocess.run([*seedbed, "launch.video=false"], capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["reason"] == "until_return"
    assert set(summary["tasks"]) == {"short", "middling", "long"}
    assert all(task["eval_return_mean"] >= 0.9 for task in summary["tasks"].values()), summary["tasks"]
