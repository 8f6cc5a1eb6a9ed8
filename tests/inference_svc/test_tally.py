"""What inference tells the learner about itself and its actors."""

import copy

import pytest

from inference_svc.tally import MAX_ACTORS, MAX_LIVES, Tally


def load(tally: Tally, since: Tally) -> dict[str, float]:
    """The figures of one beat."""
    return dict(tally.load(since, sessions=1, lanes=8, loop_lag_ms=0.5))


def test_means_are_over_the_time_since_the_last_beat():
    """Totals of before do not dilute what is happening now."""
    tally = Tally(batches=100, batch_lanes=100, waits=10, wait_s=9.0, compute_s=50.0)
    since = copy.copy(tally)
    tally.batches, tally.batch_lanes, tally.compute_s = 102, 164, 50.004
    tally.waits, tally.wait_s = 14, 9.008
    figures = load(tally, since)
    assert figures["batch_fill"] == pytest.approx(32.0)
    assert figures["forward_ms"] == pytest.approx(2.0)
    assert figures["queue_wait_ms"] == pytest.approx(2.0)


def test_the_actors_busy_share_is_passed_on():
    """The mean of what actors said since the last beat; nothing where nobody said anything."""
    tally = Tally()
    tally.pinged((("env_busy", 0.9),))
    since = copy.copy(tally)
    assert "env_busy_share" not in load(tally, since)
    tally.pinged((("steps_per_s", 10.0), ("env_busy", 0.5)))
    tally.pinged((("env_busy", 0.7),))
    assert load(tally, since)["env_busy_share"] == pytest.approx(0.6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_nonsense_from_an_actor_is_ignored(value):
    """A peer's figure must not spoil the run's metrics."""
    tally = Tally()
    tally.pinged((("env_busy", value),))
    assert tally.env_busy_pings == 0


def test_restarts_are_lives_beyond_the_first_of_a_name():
    """The same life may introduce itself as often as it likes."""
    tally = Tally()
    for name, incarnation in (("a", 1), ("a", 1), ("a", 2), ("b", 3)):
        tally.met(name, incarnation, is_start=True)
    assert tally.actor_restarts == 1


def test_a_life_whose_groups_are_at_two_replicas_counts_once():
    """Where its first group begins; its other groups, and groups that move in later, count nowhere."""
    here, there = Tally(), Tally()
    here.met("a", 1, is_start=True)
    there.met("a", 1, is_start=False)
    here.met("a", 2, is_start=False)
    there.met("a", 2, is_start=True)
    assert (here.actor_restarts, there.actor_restarts) == (0, 1)
    here.met("a", 2, is_start=False)  # group 0 has moved, and names its run
    assert (here.actor_restarts, there.actor_restarts) == (0, 1)


def test_made_up_names_and_lives_do_not_fill_the_memory():
    """A peer that says HELLO for ever costs no more than the limits."""
    tally = Tally()
    for number in range(MAX_ACTORS + 50):
        tally.met(f"actor-{number}", number, is_start=True)
        tally.met("actor-0", number, is_start=True)
    assert len(tally.actors) == MAX_ACTORS
    assert max(map(len, tally.actors.values())) <= MAX_LIVES
