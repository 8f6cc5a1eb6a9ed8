"""What one peer may waste of a server's time, and what becomes of one that wastes more."""

import pytest

from shared.net.budget import BURST_S, DROPPED_BYTES, DROPPED_MESSAGES, MAX_PAYERS, SHARE, Budget, Turnstile
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
    assert budget.is_quiet


def test_accounts_are_bounded() -> None:
    """Those that paid longest ago are forgiven."""
    budget = Budget(Clock())
    for number in range(MAX_PAYERS + 2):
        budget.charge(str(number), 0.0)
    assert len(budget._accounts) <= MAX_PAYERS


class Door:
    """A turnstile, and what it did."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.hung_up = 0
        self.ended: list[bytes] = []
        self.turnstile = Turnstile(lambda route: route, self._hang_up, self.ended.append, self.clock)

    def _hang_up(self) -> bool:
        self.hung_up += 1
        return True


def test_a_connection_that_goes_on_is_ended_once() -> None:
    """What it had sent before is still dropped, without another end: its descriptor may be somebody else's by then."""
    door = Door()
    door.turnstile.charge(ROUTE, 2 * BURST_S)
    assert not door.turnstile.admits(ROUTE)
    assert door.turnstile.admits(OTHER)
    for _ in range(2 * DROPPED_MESSAGES):
        door.turnstile.drop(ROUTE, 10)
    assert (door.hung_up, door.ended) == (1, [ROUTE])
    assert door.turnstile.num_dropped == 2 * DROPPED_MESSAGES


def test_few_messages_of_many_bytes_end_it_as_well() -> None:
    """Reading them costs as much."""
    door = Door()
    door.turnstile.charge(ROUTE, 2 * BURST_S)
    door.turnstile.drop(ROUTE, DROPPED_BYTES)
    assert door.ended == [ROUTE]
