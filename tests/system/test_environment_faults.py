"""Environments that raise, send NaN or hang in an actor of a real deployment."""

from tests.support.deployment import wait_until


def order(deployment, name: str) -> None:
    """Have one lane do something, once."""
    (deployment.folder / name).touch()


def test_a_lane_that_raises_or_sends_nan_is_rebuilt(deployment):
    """The lane goes on with a fresh episode, the cut one is counted everywhere, and the actor lives."""
    resident, learner = deployment.actors[0], deployment.learner
    before, aborted = resident.page(), learner.metric("learner_aborted_episodes_total")
    refused = deployment.inference.metric("refused_messages_total")
    for number, name in enumerate(("raise", "nan"), 1):
        order(deployment, name)
        wait_until(
            lambda number=number: resident.metric("actor_rebuilds_total") == before["actor_rebuilds_total"] + number,
            f"a lane that met {name!r} is rebuilt",
        )
    deployment.wait_trained(200)
    assert resident.metric("actor_aborted_total") == before["actor_aborted_total"] + 2
    wait_until(
        lambda: learner.metric("learner_aborted_episodes_total") == aborted + 2, "the learner counts cut episodes"
    )
    assert deployment.inference.metric("refused_messages_total") == refused
    assert resident.metric("actor_sessions_total") == before["actor_sessions_total"]


def test_an_environment_that_hangs_ends_its_actor(deployment):
    """The watchdog says what hung and ends the process; its next life gets its lanes back."""
    resident = deployment.actors[0]
    order(deployment, "hang")
    assert resident.wait_ended() == 1
    assert resident.events("environment_hung")
    assert "unruly_env.py" in resident.errors()
    resident.start().wait_ready()
    deployment.wait_lanes(12)
    deployment.wait_trained(200)
