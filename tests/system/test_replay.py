"""Experience that is used more than once, from replay and by data echoing, in real processes."""

import pytest

from tests.support.deployment import Deployment, wait_until

WORDS = (
    "algorithm.name=r2d2", "algorithm.burn_in=4", "algorithm.replay_sequences=400", "algorithm.replay_start=24",
    "algorithm.replay_ratio=2", "algorithm.target_every=20", "policy.lstm=8",
)  # fmt: skip


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "memory"])
def test_a_learner_that_is_killed_goes_on_from_replay(tmp_path, is_file):
    """With a file it begins with what it had stored; without one with nothing, and says so."""
    word = f"algorithm.replay_file={str(is_file).lower()}"
    with Deployment(tmp_path, *WORDS, word) as deployment:
        deployment.add_actor("actor")
        deployment.start().wait_trained(2000)
        saved = wait_until(deployment.checkpoint, "a checkpoint is there")
        kept = wait_until(lambda: float(deployment.rows()[-1]["replay_sequences"] or 0) > 100, "sequences are kept")
        assert kept
        deployment.learner.kill()
        deployment.learner.start().wait_ready()
        deployment.wait_trained(2000)
        first, second = deployment.learner.events("source_ready")
        assert first["recovered"] == 0
        assert (second["recovered"] > 100) == is_file
        assert second["torn"] == 0
        assert second["kept_in"] == ("file" if is_file else "memory")
        newest = wait_until(
            lambda: (found := deployment.checkpoint()) and found.step > saved.step and found, "it saves again"
        )
        row = deployment.rows()[-1]
        assert newest.meta["run"]["counters"]["updates"] == newest.step
        assert float(row["replay_ratio"]) == pytest.approx(2.0, rel=0.2)


def test_a_run_with_echo_trains_on_each_transition_several_times(tmp_path):
    """Three times here, but for what the buffer holds at the end."""
    with Deployment(tmp_path, "learner.echo=3", "run.steps=20000") as deployment:
        deployment.add_actor("actor")
        deployment.add_actor("evaluator", "actor.mode=eval")
        deployment.start()
        assert deployment.learner.wait_ended() == 0
        summary = deployment.summary()
        assert summary["trained_steps"] / summary["env_steps"] == pytest.approx(3.0, rel=0.2)
