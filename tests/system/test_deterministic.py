"""Deterministic mode in real processes: the same seed gives the same weights, whatever the clock does."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.learner_svc.run.checkpoint import load_latest
from tests.support.deployment import Deployment, at_least, wait_until
from tests.system.conftest import unruly

WORDS = (
    "run.deterministic=true", "actor.lanes=24", "actor.groups=3", "launch.actors=2", "actor.warmup_steps=9",
    "learner.unroll_length=8", "learner.batch=40", "learner.tensorboard=false", "policy.hidden=[16]", "policy.lstm=8",
    "eval.episodes=4", "eval.lanes=4", "eval.every_steps=6000", "run.steps=15000", "run.until_return=1000",
    "launch.video=false", "launch.probe=false",
)  # fmt: skip
APPO = ("algorithm.name=appo", "learner.reuse=2", "learner.minibatches=3")
ECHO = ("learner.echo=2", "learner.echo_batches=2", "learner.max_policy_lag=64")
R2D2 = ("algorithm.burn_in=4", "algorithm.replay_start=100", "algorithm.replay_ratio=2")
OTHER_TIMING = ("actor.inline_ms=0", "inference.inline_ms=0", "learner.checkpoint_every_s=0.3")


def train(folder: Path, experiment: str, *words: str) -> tuple[str, dict[str, str]]:
    """Train by `seedbed train`: the last evaluation, and a digest of each array of the final checkpoint."""
    command = [
        sys.executable, "-m", "seedbed.services.tools.cli.app", "train", experiment, "--run-dir", str(folder),
        *WORDS, *words,
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEEDBED_")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "deterministic: acting and training take turns" in ended.stdout
    checkpoint = load_latest(folder / "checkpoints")
    assert checkpoint is not None
    result = checkpoint.meta["run"]["last_result"]
    arrays = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in checkpoint.arrays.items()}
    return f"{checkpoint.step} updates, {result['return_mean']}", arrays


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "words"),
    [("cartpole", ()), ("acrobot", APPO), ("cartpole_r2d2", R2D2), ("cartpole", ECHO)],
    ids=["vtrace", "appo", "r2d2", "echo"],
)
def test_the_same_seed_gives_the_same_weights(tmp_path, experiment, words):
    """Also the same optimiser state and evaluation, with ticks and batches in other threads; another seed does not."""
    first = train(tmp_path / "first", experiment, *words)
    assert train(tmp_path / "second", experiment, *words, *OTHER_TIMING) == first
    _, weights = train(tmp_path / "third", experiment, *words, "run.seed=2")
    assert weights["policy.flat"] != first[1]["policy.flat"]


@pytest.mark.slow
def test_a_service_that_comes_back_is_refused(tmp_path):
    """Each of the three ends with the status that no supervisor restarts, and says why."""
    words = ("run.deterministic=true", "inference.lockstep_groups=2")
    for role in ("actor", "inference", "learner"):
        with Deployment(tmp_path / role, *words) as deployment:
            (tmp_path / role).mkdir()
            deployment.add_actor("actor")
            deployment.start().wait_trained(500)
            service = next(item for item in deployment.services if item.name == role)
            service.kill()
            service.start()
            assert service.wait_ended() == 78, role
            assert "deterministic" in service.errors()


@pytest.mark.slow
def test_an_environment_that_hangs_is_named_while_all_wait_for_it(tmp_path):
    """Once in inference's log, and as long as it hangs in its metrics and in those of the run."""
    words = ("run.deterministic=true", "inference.lockstep_groups=2", "inference.lease_s=30", "actor.max_stall_s=30")
    with Deployment(tmp_path, *words, env=unruly(tmp_path)) as deployment:
        deployment.add_actor("actor")
        deployment.start().wait_trained(500)
        assert deployment.inference.metric("awaited_groups") == 0
        (tmp_path / "hang").touch()
        awaited = wait_until(lambda: at_least(deployment.inference.metric("awaited_groups"), 1), "it is counted")
        wait_until(
            lambda: float(deployment.rows()[-1]["inference_awaited_groups"] or 0) == awaited, "the learner knows it"
        )
        (event,) = deployment.inference.events("groups_awaited")
        assert event["number"] == awaited
        assert all(group.endswith("of actor") for group in event["groups"])
