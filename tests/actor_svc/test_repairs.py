"""When lanes that failed are made anew, in numbers of ticks."""

import numpy as np
import pytest
from structlog.testing import capture_logs

from seedbed.actor_svc.backends.backend import MAX_FAILURES, NO_LANES
from seedbed.actor_svc.backends.repairs import Repairs
from seedbed.shared.errors import EnvError


class BrokenUnits:
    """Units of two lanes each that cannot be rebuilt for so many attempts; keeps what was done."""

    def __init__(self, num_broken: int) -> None:
        self.num_broken = num_broken
        self.done: list[str] = []
        self.repairs = Repairs(
            "world",
            2,
            discard=self.discard,
            make=self.make,
            begin=lambda index: self.note("begin", index),
            write_absent=lambda index: self.note("absent", index),
        )

    def note(self, what, index):
        self.done.append(f"{what} {index}")

    def discard(self, index):
        self.note("discard", index)
        raise OSError("already gone")

    def make(self, index):
        self.note("make", index)
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
    units = BrokenUnits(0)
    units.repairs.fail(3, EnvError("fell over"))
    assert units.done == ["discard 3", "make 3", "begin 3"]
    assert units.repairs.num_rebuilds == 2
    assert units.repairs.last_failure.startswith("world 3: fell over; close: OSError: already gone (")
    assert not units.repairs.waiting


def test_attempts_become_rarer_while_they_fail():
    """After 2, 4, 8 ticks; the rows between are absent, and the cause is the last one."""
    units = BrokenUnits(3)
    units.repairs.fail(0, EnvError("fell over"))
    assert units.done == ["discard 0", "make 0", "absent 0"]
    attempts = []
    for tick in range(1, 15):
        units.done.clear()
        units.tick()
        assert units.done, "every tick writes rows"
        assert "discard 0" not in units.done, "what is closed is not closed again"
        if "make 0" in units.done:
            attempts.append(tick)
    assert attempts == [2, 6, 14]
    assert units.repairs.last_failure.startswith("world 0: RuntimeError: no licence")
    assert not units.repairs.waiting


def test_too_many_failures_without_a_good_step_are_an_error():
    """A good step between them forgives all, a reset too."""
    units = BrokenUnits(0)
    for _ in range(3):
        for _ in range(MAX_FAILURES):
            units.repairs.fail(0, EnvError("fell over"))
        units.tick()
    for _ in range(MAX_FAILURES):
        units.repairs.fail(0, EnvError("fell over"))
    units.repairs.forget()
    for _ in range(MAX_FAILURES):
        units.repairs.fail(0, EnvError("fell over"))
    with pytest.raises(EnvError, match=f"world 0 failed {MAX_FAILURES} times without one good step; last: fell over"):
        units.repairs.fail(0, EnvError("fell over"))


def test_values_that_no_policy_may_see_are_failures():
    """Looked for again until there are none."""
    units = BrokenUnits(0)
    found = [np.array([1, 2]), np.array([2]), NO_LANES]
    units.repairs.settle(lambda: found.pop(0), lambda _index: False)
    assert [done for done in units.done if "begin" in done] == ["begin 1", "begin 2", "begin 2"]
    assert "NaN" in units.repairs.last_failure


def test_the_first_failure_is_logged_at_once_and_those_that_follow_are_not():
    """A lane that fails a thousand times a second fills no disk."""
    units = BrokenUnits(0)
    with capture_logs() as logs:
        for index in range(5):
            units.repairs.fail(index, EnvError("fell over"))
    (told,) = logs
    assert (told["event"], told["log_level"], told["times"]) == ("environment_failed", "warning", 1)
    assert "fell over" in told["cause"]
