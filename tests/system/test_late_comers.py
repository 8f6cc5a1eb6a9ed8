"""Services that nobody starts together, and nobody stops: who comes when the run is over hears of it, and leaves."""

import pytest

from tests.support.deployment import Deployment, wait_until

DEADLINE_S = 300.0


@pytest.mark.slow
def test_who_comes_after_the_end_of_a_run_leaves_in_order(tmp_path):
    """An actor after the last evaluation; then all services of a run that had finished before."""
    words = ("learner.finished_s=160", "inference.finished_s=160", "run.steps=500")
    with Deployment(tmp_path, *words) as deployment:
        deployment.add_actor("actor")
        deployment.add_actor("evaluator", "actor.mode=eval")
        late = deployment.add_actor("late")
        for service in deployment.services:
            if service is not late:
                service.start()

        def is_finished():
            return any(event["state"] == "finished" for event in deployment.learner.events("run_moved"))

        wait_until(is_finished, "the run ends", DEADLINE_S)
        late.start()
        assert [service.wait_ended(DEADLINE_S) for service in deployment.services] == [0] * 5
        trained = deployment.summary()["trained_steps"]

        for service in deployment.services:
            service.start()
        assert [service.wait_ended(DEADLINE_S) for service in deployment.services] == [0] * 5
        assert deployment.learner.events("run_already_finished")
        assert deployment.summary()["trained_steps"] == trained
