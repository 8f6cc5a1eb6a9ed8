"""A learner that is slower than its environments: they wait for it, and nobody's memory grows."""

from tests.support.deployment import BATCH, UNROLL_LENGTH, Deployment, wait_until

LANES = 2 * 24
MAX_GROWTH_MB = 15.0


def test_environments_wait_for_a_slow_learner(tmp_path):
    """Groups are held for credit, what inference keeps is bounded by the window, and memory is flat."""
    with Deployment(tmp_path, "policy.hidden=[1024, 1024]", "learner.checkpoint_every_s=1") as deployment:
        deployment.add_actor("fast", "actor.lanes=24")
        deployment.start()
        deployment.wait_trained(2000)
        inference, learner, folder = deployment.inference, deployment.learner, deployment.run_dir / "checkpoints"
        # The first checkpoints take memory for as much as they hold, which stays with the process.
        wait_until(lambda: len(list(folder.glob("*-latest-*.json"))) > 2, "checkpoints are written")
        before, memory_mb = inference.page(), (inference.rss_mb(), learner.rss_mb())
        seen: list[float] = []

        def has_trained_on() -> bool:
            seen.append(inference.metric("unacked_lanes"))
            return deployment.trained_steps() > before["acted_steps_total"] + 10_000

        wait_until(has_trained_on, "the slow learner gets on")
        after = inference.page()
        assert after["held_no_credit_total"] > before["held_no_credit_total"] + 20
        most = 2 * BATCH + 2 * BATCH + LANES  # the window, the learner's two batches, one unroll of each group
        assert max(seen) <= most
        waiting_steps = after["acted_steps_total"] - deployment.trained_steps()
        assert waiting_steps <= (most + LANES) * UNROLL_LENGTH
        assert inference.rss_mb() < memory_mb[0] + MAX_GROWTH_MB
        assert learner.rss_mb() < memory_mb[1] + MAX_GROWTH_MB
