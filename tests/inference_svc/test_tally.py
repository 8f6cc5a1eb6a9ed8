"""What inference tells the learner about itself and its actors."""

import copy

import pytest

from seedbed.inference_svc.tally import InferenceTally


def load(tally: InferenceTally, since: InferenceTally) -> dict[str, float]:
    """The figures of one beat."""
    return dict(tally.load(since, sessions=1, lanes=8, actor_restarts=0, loop_lag_ms=0.5))


def test_means_are_over_the_time_since_the_last_beat():
    """Totals of before do not dilute what is happening now."""
    tally = InferenceTally(batches=100, batch_lanes=100, waits=10, wait_s=9.0, compute_s=50.0)
    since = copy.copy(tally)
    tally.batches, tally.batch_lanes, tally.compute_s = 102, 164, 50.004
    tally.waits, tally.wait_s = 14, 9.008
    figures = load(tally, since)
    assert figures["batch_fill"] == pytest.approx(32.0)
    assert figures["forward_ms"] == pytest.approx(2.0)
    assert figures["queue_wait_ms"] == pytest.approx(2.0)


def test_the_actors_busy_share_is_passed_on():
    """The mean of what actors said since the last beat; nothing where nobody said anything."""
    tally = InferenceTally()
    tally.pinged((("env_busy", 0.9),))
    since = copy.copy(tally)
    assert "env_busy_share" not in load(tally, since)
    tally.pinged((("steps_per_s", 10.0), ("env_busy", 0.5)))
    tally.pinged((("env_busy", 0.7),))
    assert load(tally, since)["env_busy_share"] == pytest.approx(0.6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nonsense_from_an_actor_is_ignored(value):
    """A peer's figure must not spoil the run's metrics."""
    tally = InferenceTally()
    tally.pinged((("env_busy", value),))
    assert tally.env_busy_pings == 0
