"""The algorithm of docs/own_algorithm.md trains through every service: its acting rule, its field, its network."""

from seedbed.learner_svc.run.checkpoint import load_latest
from tests.support.deployment import Deployment, wait_until
from tests.support.own_algorithm import NAME, write_module


def test_it_trains_and_goes_on_after_a_kill(tmp_path, monkeypatch):
    """Inference records what the rule adds; the network beside the policy is in every checkpoint."""
    write_module(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ("run.steps=12000", "eval.every_s=0", f"algorithm.name={NAME}", "algorithm.critic_units=32")
    with Deployment(tmp_path, *words) as deployment:
        deployment.add_actor("actor-0")
        deployment.add_actor("evaluator", "actor.mode=eval")
        deployment.start()
        deployment.wait_trained(1000)
        wait_until(deployment.checkpoint, "something is saved")
        deployment.learner.kill()
        deployment.learner.start().wait_ready()
        for service in deployment.services:
            assert service.wait_ended() == 0, service.errors()
        summary = deployment.summary()
        assert (summary["finished"], summary["reason"]) == (True, "steps")
        header, *rows = (deployment.run_dir / "metrics.csv").read_text().splitlines()
        column = header.split(",").index("critic_from_head")
        assert any(float(row.split(",")[column] or 0) > 0 for row in rows)
        checkpoint = load_latest(deployment.run_dir / "checkpoints")
        assert checkpoint is not None
        assert "network.critic.optimiser.mean" in checkpoint.arrays
