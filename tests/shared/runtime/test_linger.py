"""How long a service stays after its run to tell those who come late."""

from seedbed.shared.runtime.linger import QUIET_SHARE, LingerTimer


def test_it_waits_for_the_first_and_then_for_quiet():
    """Whoever comes starts the quiet time again."""
    quiet_s = 80 * QUIET_SHARE
    farewell = LingerTimer(80, now=100)
    assert not farewell.is_over(179)
    farewell.heard(120)
    farewell.heard(125)
    assert not farewell.is_over(124 + quiet_s)
    assert farewell.is_over(125 + quiet_s)


def test_it_never_takes_longer_than_it_may():
    """Not even if somebody comes again and again."""
    farewell = LingerTimer(80, now=100)
    farewell.heard(179)
    assert farewell.is_over(180)


def test_without_time_it_is_over_at_once():
    """As for a launcher, which ends its services itself."""
    assert LingerTimer(0, now=100).is_over(100)
