"""SIGTERM: each service leaves in order, loses nothing that was complete, exits with 0. (The learner: test_faults)."""

import signal

from tests.support.deployment import wait_until


def test_a_drained_actor_says_bye(deployment):
    """Its slots are free at once, before any lease is over."""
    visitor = deployment.add_actor("leaving", "actor.groups=1").start()
    deployment.wait_lanes(18)
    lost = deployment.inference.metric("lost_groups_total")
    visitor.signal(signal.SIGTERM)
    assert visitor.wait_ended() == 0
    deployment.wait_lanes(12)
    assert deployment.inference.metric("lost_groups_total") == lost


def test_a_drained_inference_flushes_its_unrolls(deployment):
    """The learner has all that was complete before it leaves; the actor waits for its successor and goes on."""
    resident, inference = deployment.actors[0], deployment.inference
    aborted = resident.metric("actor_aborted_total")
    inference.signal(signal.SIGTERM)
    assert inference.wait_ended() == 0
    left = inference.events("inference_left")[-1]
    assert left["lost_lanes"] == 0
    wait_until(lambda: any(line["reason"] == "draining" for line in resident.events("inference_said_bye")), "BYE came")
    assert resident.is_running
    inference.start().wait_ready()
    deployment.wait_lanes(12)
    deployment.wait_trained(200)
    assert resident.metric("actor_aborted_total") == aborted
