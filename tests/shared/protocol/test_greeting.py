"""When HELLO is said again, by one client and by a thousand that lost their server at the same moment."""

import itertools
import random
from collections import Counter

from seedbed.shared.protocol.greeting import FIRST_RETRY_S, MAX_RETRY_S, Greeting

CLIENTS = 1000
TICK_S = 0.01


def hellos(greeting: Greeting, until_s: float) -> list[float]:
    """The times at which a client says HELLO that begins at 0 and gets no answer."""
    greeting.begin(0.0)
    times = []
    for tick in range(round(until_s / TICK_S)):
        if greeting.is_due(now := tick * TICK_S):
            greeting.said(now)
            times.append(now)
    return times


def greetings(seed: int) -> list[Greeting]:
    """Clients whose nonces are random, and odd as an actor's are."""
    rng = random.Random(seed)
    return [Greeting(lambda: rng.getrandbits(62) | 1) for _ in range(CLIENTS)]


def test_each_wait_doubles_and_is_shortened_by_half_at_most() -> None:
    """For every client: never sooner than half of the wait, never later than the whole."""
    for greeting in greetings(1):
        times = hellos(greeting, 12.0)
        waits = [after - before for before, after in itertools.pairwise(times)]
        for number, wait in enumerate(waits):
            longest = min(FIRST_RETRY_S * 2**number, MAX_RETRY_S)
            assert longest / 2 - TICK_S < wait < longest + 2 * TICK_S


def test_clients_that_begin_together_do_not_go_on_together() -> None:
    """Once the first HELLO was said, no hundredth of a second has more than a small part of the next ones."""
    times = [hellos(greeting, 8.0) for greeting in greetings(2)]
    for number in (1, 2, 4):
        together = Counter(round(of_one[number] / TICK_S) for of_one in times).most_common(1)[0][1]
        assert together < CLIENTS / 5 / number


def test_a_client_told_to_come_back_later_does_not_come_back_with_the_others() -> None:
    """After BYE from a service that is leaving, which all its clients get at once."""
    due: Counter[int] = Counter()
    for greeting in greetings(3):
        greeting.begin(0.0, after_s=FIRST_RETRY_S)
        due[next(tick for tick in range(100) if greeting.is_due(tick * TICK_S))] += 1
    assert min(due) * TICK_S >= FIRST_RETRY_S / 2
    assert max(due) * TICK_S <= FIRST_RETRY_S + TICK_S
    assert max(due.values()) < CLIENTS / 5
