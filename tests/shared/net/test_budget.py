"""What one peer may waste of a server's time, and what becomes of one that wastes more."""

import pytest

from seedbed.shared.net.budget import (
    BURST_S,
    DROPPED_BYTES,
    DROPPED_MESSAGES,
    GREETING_S,
    MAX_PAYERS,
    OWN_S,
    SHARE,
    Budget,
    RateLimiter,
)
from tests.support.clock import Clock

ROUTE, OTHER = b"route-1", b"route-2"


def test_a_payer_has_a_burst_and_then_its_share() -> None:
    """Over a long time nobody wastes more than the share, and what is left over for a burst."""
    clock = Clock()
    budget, wasted = Budget(clock), 0.0
    while clock.now < 100.0:
        if budget.admits("key"):
            budget.charge("key", 0.01)
            wasted += 0.01
        clock.now += 0.01
    assert wasted == pytest.approx(BURST_S + 100.0 * SHARE, rel=0.05)


def test_others_are_not_touched() -> None:
    """One account each."""
    budget = Budget(Clock())
    budget.charge("bad", 2 * BURST_S)
    assert not budget.admits("bad")
    assert budget.admits("good")


def test_who_waits_is_heard_again() -> None:
    """A mistake is not for ever."""
    clock = Clock()
    budget = Budget(clock)
    budget.charge("key", 1.5 * BURST_S)
    clock.now += 0.5 * BURST_S / SHARE + 1.0
    assert budget.admits("key")
    assert not budget.barred


def test_accounts_are_bounded() -> None:
    """Those that paid longest ago are forgiven."""
    budget = Budget(Clock())
    for number in range(MAX_PAYERS + 2):
        budget.charge(str(number), 0.0)
    assert len(budget._accounts) <= MAX_PAYERS


def test_a_connection_begins_with_little() -> None:
    """Or another connection would be worth another burst."""
    budget = Budget(Clock())
    budget.charge(ROUTE, 1.1 * OWN_S)
    assert not budget.admits(ROUTE)


def test_a_fleet_that_comes_back_is_not_held_up() -> None:
    """What greetings cost is given back to who paid for all of them, as soon as a connection has been useful."""
    clock, useful = Clock(), set()
    limiter = RateLimiter(lambda route: route if route in useful else "key", lambda: True, print, clock)
    for number in range(1000):
        route = str(number).encode()
        assert limiter.admits(route)
        limiter.charge(route, BURST_S / 100)
        useful.add(route)
        limiter.welcome(route)


def test_little_is_given_back() -> None:
    """A flood that is useful once has paid for itself."""
    watched = WatchedLimiter()
    watched.payers[ROUTE] = "key"
    for _ in range(10):
        watched.limiter.charge(ROUTE, BURST_S / 10)
    watched.payers[ROUTE] = ROUTE
    watched.limiter.welcome(ROUTE)
    watched.limiter.welcome(ROUTE)
    watched.payers[OTHER] = "key"
    watched.limiter.charge(OTHER, 2 * GREETING_S)
    assert not watched.limiter.admits(OTHER)


def test_who_never_comes_back_is_forgotten() -> None:
    """A payer that was barred and left keeps nobody looking it up."""
    clock = Clock()
    budget = Budget(clock)
    budget.charge("gone", 2 * BURST_S)
    clock.now += 2 * BURST_S / SHARE
    budget.charge("other", 0.0)
    assert not budget.barred


class WatchedLimiter:
    """A limiter, and what it did."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hung_up = 0
        self.ended: list[bytes] = []
        self.payers: dict[bytes, str | bytes] = {}
        self.limiter = RateLimiter(
            lambda route: self.payers.get(route, route), self._hang_up, self.ended.append, self.clock
        )

    def _hang_up(self) -> bool:
        self.hung_up += 1
        return True


def test_a_connection_that_goes_on_is_ended_once() -> None:
    """What it had sent before is still dropped, without another end: its descriptor may be somebody else's by then."""
    watched = WatchedLimiter()
    watched.limiter.charge(ROUTE, 2 * BURST_S)
    assert not watched.limiter.admits(ROUTE)
    assert watched.limiter.admits(OTHER)
    for _ in range(2 * DROPPED_MESSAGES):
        watched.limiter.drop(ROUTE, 10)
    assert (watched.hung_up, watched.ended) == (1, [ROUTE])


def test_bytes_are_charged_as_well() -> None:
    """A message that is refused at a glance has been decrypted all the same."""
    watched = WatchedLimiter()
    for _ in range(100):
        watched.limiter.charge(ROUTE, 0.0, 10 << 20)
    assert not watched.limiter.admits(ROUTE)


def test_few_messages_of_many_bytes_end_it_as_well() -> None:
    """Reading them costs as much."""
    watched = WatchedLimiter()
    watched.limiter.charge(ROUTE, 2 * BURST_S)
    watched.limiter.drop(ROUTE, DROPPED_BYTES)
    assert watched.ended == [ROUTE]
