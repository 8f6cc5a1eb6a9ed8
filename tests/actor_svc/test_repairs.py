"""When lanes that failed are made anew, in numbers of ticks."""

import numpy as np
import pytest
from structlog.testing import capture_logs

from seedbed.actor_svc.backends.backend import MAX_FAILURES, NO_LANES
from seedbed.actor_svc.backends.repairs import Repairs
from seedbed.shared.errors import EnvError


class Bench:
    """Units of two lanes each that cannot be rebuilt for so many attempts; keeps what was done."""

    def __init__(self, num_broken: int) -> None:
        self.num_broken = num_broken
        self.done: list[str] = []
        self.repairs = Repairs(
            "world",
            2,
            discard=self.discard,
            rebuild=self.rebuild,
            write_absent=lambda index: self.note("absent", index),
        )

    def note(self, what, index):
        self.done.append(f"{what} {index}")

    def discard(self, index):
        raise OSError("already gone")

    def rebuild(self, index):
        self.note("rebuild", index)
        if self.num_broken:
            self.num_broken -= 1
            raise RuntimeError("no licence")

    def tick(self, index=0):
        """What a back-end does: wait, or step well."""
        if index in self.repairs.waiting:
            self.repairs.wait(index)
        self.repairs.settle(lambda: NO_LANES, lambda _index: True)


def test_a_failure_is_mended_at_once():
    """One attempt, counted by lanes; that letting go failed is told and changes nothing."""
    bench = Bench(0)
    bench.repairs.fail(3, EnvError("fell over"))
    assert bench.done == ["rebuild 3"]
    assert bench.repairs.num_rebuilds == 2
    assert bench.repairs.last_failure.startswith("world 3: fell over; close: OSError: already gone (")
    assert not bench.repairs.waiting


def test_attempts_become_rarer_while_they_fail():
    """After 2, 4, 8 ticks; the rows between are absent, and the cause is the last one."""
    bench = Bench(3)
    bench.repairs.fail(0, EnvError("fell over"))
    attempts = []
    for tick in range(1, 15):
        bench.done.clear()
        bench.tick()
        assert bench.done, "every tick writes rows"
        if "rebuild 0" in bench.done:
            attempts.append(tick)
    assert attempts == [2, 6, 14]
    assert bench.repairs.last_failure.startswith("world 0: RuntimeError: no licence")
    assert not bench.repairs.waiting


def test_too_many_failures_without_a_good_step_are_an_error():
    """A good step between them forgives all, a reset too."""
    bench = Bench(0)
    for _ in range(3):
        for _ in range(MAX_FAILURES):
            bench.repairs.fail(0, EnvError("fell over"))
        bench.tick()
    for _ in range(MAX_FAILURES):
        bench.repairs.fail(0, EnvError("fell over"))
    bench.repairs.forget()
    for _ in range(MAX_FAILURES):
        bench.repairs.fail(0, EnvError("fell over"))
    with pytest.raises(EnvError, match=f"world 0 failed {MAX_FAILURES} times without one good step; last: fell over"):
        bench.repairs.fail(0, EnvError("fell over"))


def test_values_that_no_policy_may_see_are_failures():
    """Looked for again until there are none."""
    bench = Bench(0)
    found = [np.array([1, 2]), np.array([2]), NO_LANES]
    bench.repairs.settle(lambda: found.pop(0), lambda _index: False)
    assert bench.done == ["rebuild 1", "rebuild 2", "rebuild 2"]
    assert "NaN" in bench.repairs.last_failure


def test_the_first_failure_is_logged_at_once_and_those_that_follow_are_not():
    """A lane that fails a thousand times a second fills no disk."""
    bench = Bench(0)
    with capture_logs() as logs:
        for index in range(5):
            bench.repairs.fail(index, EnvError("fell over"))
    (told,) = logs
    assert (told["event"], told["log_level"], told["times"]) == ("environment_failed", "warning", 1)
    assert "fell over" in told["cause"]
