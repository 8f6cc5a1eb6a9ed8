"""What inference tells the learner about itself and its actors."""

import copy

import pytest

from seedbed.inference_svc.counters import InferenceCounters


def load(counters: InferenceCounters, since: InferenceCounters) -> dict[str, float]:
    """The figures of one beat."""
    return dict(counters.load(since, sessions=1, lanes=8, awaited_groups=0, actor_restarts=0, loop_lag_ms=0.5))


def test_means_are_over_the_time_since_the_last_beat():
    """Totals of before do not dilute what is happening now."""
    counters = InferenceCounters(batches=100, batch_lanes=100, waits=10, wait_s=9.0, compute_s=50.0)
    since = copy.copy(counters)
    counters.batches, counters.batch_lanes, counters.compute_s = 102, 164, 50.004
    counters.waits, counters.wait_s = 14, 9.008
    figures = load(counters, since)
    assert figures["batch_fill"] == pytest.approx(32.0)
    assert figures["forward_ms"] == pytest.approx(2.0)
    assert figures["queue_wait_ms"] == pytest.approx(2.0)


def test_the_actors_busy_share_is_passed_on():
    """The mean of what actors said since the last beat; nothing where nobody said anything."""
    counters = InferenceCounters()
    counters.pinged((("env_busy", 0.9),))
    since = copy.copy(counters)
    assert "env_busy_share" not in load(counters, since)
    counters.pinged((("steps_per_s", 10.0), ("env_busy", 0.5)))
    counters.pinged((("env_busy", 0.7),))
    assert load(counters, since)["env_busy_share"] == pytest.approx(0.6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nonsense_from_an_actor_is_ignored(value):
    """A peer's figure must not spoil the run's metrics."""
    counters = InferenceCounters()
    counters.pinged((("env_busy", value),))
    assert counters.env_busy_pings == 0
