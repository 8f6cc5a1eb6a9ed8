"""The batch script on real Slurm daemons: a run to its end, kills, wrong settings, scancel, time limit, a lost node."""

import json
import re
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.deployment import wait_until
from tests.support.host import kill
from tests.support.slurm_cluster import ENDED, OURS, RUN_S, Cluster, Job

ENDLESS = (
    "run.steps=0", "run.until_return=10000", "eval.every_s=0", "actor.lanes=64", "learner.batch=64",
    "learner.checkpoint_every_s=1",
)  # fmt: skip
ROLES = ("learner", "inference", "actor")
UNDER_WAY = 50_000  # more steps than can be between an actor and the learner


def tell(what: str, began: float) -> None:
    """Shown by `pytest -s`: the times of docs/slurm.md."""
    print(f"\n{what}: {time.monotonic() - began:.1f} s")


def service(role: str) -> str:
    """The command line of a service, not of what keeps it running."""
    return rf"^\S*python\S* \S*seedbed {role} "


def wait_gone(cluster: Cluster, job: Job) -> None:
    """Until the job has left nothing: no process, and none of its keys."""
    wait_until(lambda: not cluster.processes(OURS), "no process is left", RUN_S)
    assert not (job.own / "keys").exists()


@pytest.fixture
def training(cluster: Cluster, tmp_path: Path) -> Job:
    """A job that trains for as long as the test wants it."""
    job = cluster.submit(tmp_path, "cartpole", *ENDLESS)
    job.wait_trained()
    return job


def test_two_learner_ranks_on_two_nodes_solve_cartpole(cluster: Cluster, tmp_path: Path) -> None:
    """With keys that only their owner can read; the job ends with the run, with status 0, and leaves nothing."""
    began = time.monotonic()
    job = cluster.submit(tmp_path, "cartpole", "run.until_return=500")
    secrets = wait_until(lambda: list((job.own / "keys").rglob("*.key")), "there are keys", RUN_S)
    assert all(file.stat().st_mode & 0o077 == 0 for file in secrets)
    job.wait("RUNNING")
    tell("sbatch until it ran", began)
    assert job.wait(*ENDED) == "COMPLETED", job.said()
    tell("sbatch until the job had ended", began)
    found = job.summary()
    print({key: found.get(key) for key in ("reason", "trained_steps", "seconds")})
    assert found["finished"]
    assert found["eval_return_mean"] == 500
    ranks = [line for line in job.log("learner-0").splitlines() if '"ranks_met"' in line]
    assert json.loads(ranks[-1])["number"] == 2
    wait_gone(cluster, job)


@pytest.mark.parametrize("role", ROLES)
def test_a_service_that_is_killed_comes_back(cluster: Cluster, training: Job, role: str) -> None:
    """The run goes on with a new life of it."""
    before = training.trained()
    victims = [pid for pid, line in cluster.processes(service(role)).items() if "actor.mode=eval" not in line]
    began = time.monotonic()
    kill(victims[-1])
    wait_until(lambda: victims[-1] not in (new := cluster.processes(service(role))) and new, "it is back", RUN_S)
    training.wait_trained((before[0] + (role == "learner"), training.trained()[1] + UNDER_WAY))
    tell(f"kill -9 of {role} until training went on", began)


@pytest.mark.parametrize("role", ROLES)
def test_a_task_that_is_killed_starts_again_with_its_step(cluster: Cluster, training: Job, role: str) -> None:
    """What Slurm started, and what starts a service: the service ends with it."""
    epoch, _ = training.trained()
    old = set(cluster.processes(service(role)))
    began = time.monotonic()
    kill(min(cluster.processes(rf"^\S*bash -c .*keep .* - {role}\b")))
    wait_until(lambda: f"the step of {role} ended with status" in training.said(), "the job says so", RUN_S)
    wait_until(lambda: set(cluster.processes(service(role))) - old, "it is back", RUN_S)
    training.wait_trained((epoch + (role == "learner"), training.trained()[1] + UNDER_WAY))
    tell(f"kill -9 of a task of {role} until training went on", began)
    assert not old & set(cluster.processes(service(role)))


def test_a_service_that_dies_again_and_again_fails_the_job_and_is_named(cluster: Cluster, training: Job) -> None:
    """The learners save the run first."""

    def kill_again() -> bool:
        for pid in cluster.processes(service("inference")):
            with suppress(ProcessLookupError):
                kill(pid)
        return training.state() in ENDED

    wait_until(kill_again, "the job ends", RUN_S)
    assert training.state() == "FAILED"
    assert "inference-0" in training.said().splitlines()[-1]
    assert saved_steps(training) > 0


@pytest.mark.parametrize("word", ["learner.bathc=3", "inference.bidn=3", "actor.lnaes=3"])
def test_a_wrong_setting_fails_the_job_and_is_named(cluster: Cluster, tmp_path: Path, word: str) -> None:
    """No restart helps, so there is none; the job has the service's exit status."""
    job = cluster.submit(tmp_path, "cartpole", word)
    assert job.wait(*ENDED) == "FAILED"
    assert job.exit_status() == 78
    assert word.partition("=")[0] in job.said()
    wait_gone(cluster, job)


def test_scancel_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """No process and no key."""
    job = cluster.submit(tmp_path, "cartpole", *ENDLESS)
    job.wait_trained()
    began = time.monotonic()
    job.cancel()
    wait_gone(cluster, job)
    tell("scancel until nothing was left", began)


def test_a_job_that_is_stopped_saves_the_run_and_the_next_one_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    """From where the first one stopped."""
    job = cluster.submit(tmp_path, "cartpole", *ENDLESS)
    job.wait_trained()
    began = time.monotonic()
    job.stop()
    assert job.wait(*ENDED) == "COMPLETED", job.said()
    tell("USR2 to the batch script until the job had ended", began)
    wait_gone(cluster, job)
    following = cluster.submit(tmp_path, "cartpole", *ENDLESS, variables={"RUN_DIR": str(job.run)})
    following.run = job.run
    following.wait_trained((1.5, 0.0))
    assert following.trained()[1] >= saved_steps(job)


def saved_steps(job: Job) -> int:
    """Trained steps that the chief had when it left."""
    left = re.findall(r'^.*"learner_left".*$', job.log("learner-0"), re.MULTILINE)
    return int(json.loads(left[-1])["trained_steps"])


def test_at_its_time_limit_a_job_saves_and_queues_itself_again(cluster: Cluster, tmp_path: Path) -> None:
    """It goes on in its second life with the same run."""
    limit = ("--time=1", "--signal=B:USR1@20")
    job = cluster.submit(tmp_path, "cartpole", *ENDLESS, limit=limit)
    job.wait_trained()
    wait_until(lambda: " stopped, and queued again" in job.said(), "it is stopped", RUN_S)
    began = time.monotonic()
    job.wait_trained((1.5, 0.0))
    tell("saved before the time limit until training went on", began)
    assert job.trained()[1] >= saved_steps(job)


def test_a_lost_node_queues_the_job_again_and_it_goes_on(cluster: Cluster, training: Job) -> None:
    """Once Slurm has noticed, and when there are nodes enough: here the lost one comes back."""
    (node,) = [node for node in cluster.nodes if node.processes(service("inference"))]
    began = time.monotonic()
    node.kill()
    training.wait("PENDING")
    tell("power of inference's node cut until the job was in the queue", began)
    began = time.monotonic()
    cluster.boot(node)
    training.wait_trained((1.5, 0.0))
    tell("return of the node until training went on", began)


@pytest.mark.parametrize("role", ["learner", "inference"])
def test_each_task_of_a_group_on_a_node_gets_another_gpu(cluster: Cluster, tmp_path: Path, role: str) -> None:
    """As Slurm counts a node's GPUs: here they are files, and PyTorch finds none behind them."""
    two = ("--nodes=1", "--ntasks=2", "--cpus-per-task=1", "--gpus-per-node=2")
    groups = {"learners": two} if role == "learner" else {"inference": two}
    job = cluster.submit(tmp_path, "cartpole", *ENDLESS, **groups)
    job.wait_trained()
    wait_until(lambda: len(cluster.processes(service(role))) == 2, "both tasks run", RUN_S)
    found = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in cluster.processes(service(role))]
    assert sorted(word for words in found for word in words if word.startswith("CUDA_VISIBLE_DEVICES=")) == [
        "CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=1",
    ]  # fmt: skip
