"""Decides when failed lanes are rebuilt: at once, then after ever longer waits, until they are too many.

`RepairedBackend` is what the backends that use this have in common.
"""

import time
import traceback
from collections.abc import Callable

import structlog

from seedbed.actor_svc.backends.backend import (
    BAD_VALUES,
    ENDED_BITS,
    FIRST,
    MAX_FAILURES,
    NO_LANES,
    Array,
    Backend,
    RowViews,
    Traits,
    ValueCheck,
    call_environment,
)
from seedbed.shared.errors import EnvError

MAX_WAIT_TICKS = 256  # between two attempts
TELL_EVERY_S = 60.0  # least time between two log entries about failures
MAX_TRACE = 4000  # characters of the traceback that is logged with the first failure

log = structlog.get_logger(__name__)


class Repairs:
    """Counts the failures of a backend's units, each a lane or a world of several lanes, and has them rebuilt.

    The first failure is logged with its traceback; later ones are logged at most once a minute, with their number.

    A unit that fails is rebuilt at once. If rebuilding fails too, its rows are absent for 2, 4, … ticks between two
    attempts. After MAX_FAILURES failures without a good step between them, an EnvError is raised. Owned by the
    backend's thread.

    Args:
      unit: what a unit is called in messages, "lane" or "world".
      lanes: number of lanes of one unit.
      discard: closes the environment of the unit with this index, once; an error in closing is only noted.
      make: makes a unit's environment anew.
      begin: resets a unit's new environment with a fresh seed and writes its `first` rows.
      write_absent: writes a unit's rows as those of absent agents.
    """

    def __init__(
        self,
        unit: str,
        lanes: int,
        *,
        discard: Callable[[int], None],
        make: Callable[[int], None],
        begin: Callable[[int], None],
        write_absent: Callable[[int], None],
    ) -> None:
        self.num_rebuilds, self.last_failure = 0, ""  # lanes rebuilt; cause of the newest failure
        self.waiting: dict[int, int] = {}  # unit → ticks until its next attempt
        self.closed: set[int] = set()  # units whose environment was closed and could not be made anew yet
        self.unit, self._lanes = unit, lanes
        self._discard, self._make, self._begin, self._write_absent = discard, make, begin, write_absent
        self._failures: dict[int, int] = {}  # unit → failures since its last good step
        self._causes: dict[int, str] = {}  # unit that waits → why it could not be rebuilt
        self._tell_at, self._untold = float("-inf"), 0  # when to log again; failures since the last time

    def forget(self) -> None:
        """Forget all failures: no unit waits any more, and each has all of its attempts again."""
        self.waiting.clear()
        self._failures.clear()

    def fail(self, index: int, failure: EnvError) -> None:
        """Rebuild a unit after a failure, now or after some ticks. Raises: EnvError after too many."""
        name = f"{self.unit} {index}"
        self.last_failure = f"{name}: {failure}"
        self.waiting.pop(index, None)
        count = self._failures[index] = self._failures.get(index, 0) + 1
        if count > MAX_FAILURES:
            raise EnvError(f"{name} failed {MAX_FAILURES} times without one good step; last: {failure}") from failure
        self.num_rebuilds += self._lanes
        if index not in self.closed:
            self.closed.add(index)
            try:
                call_environment(self._discard, index)
            except EnvError as error:
                self.last_failure += f"; close: {error}"
        try:
            call_environment(self._make, index)
            self.closed.remove(index)
            call_environment(self._begin, index)
        except EnvError as error:
            self.last_failure, self._causes[index] = f"{name}: {error}", str(error)
            self.waiting[index] = min(1 << count, MAX_WAIT_TICKS)
            self._write_absent(index)
        self._tell(failure)

    def _tell(self, failure: EnvError) -> None:
        self._untold += 1
        now = time.monotonic()
        if now >= self._tell_at:
            is_first = self._tell_at == float("-inf")
            source = {"traceback": _trace(failure.__cause__)} if is_first and failure.__cause__ else {}
            log.warning("environment_failed", cause=self.last_failure, times=self._untold, **source)
            self._tell_at, self._untold = now + TELL_EVERY_S, 0

    def wait(self, index: int) -> None:
        """Count one tick of a waiting unit: its rows are absent, or, if its wait is over, it is rebuilt.

        Raises: as `fail`.
        """
        self.waiting[index] -= 1
        if self.waiting[index]:
            self._write_absent(index)
        else:
            self.fail(index, EnvError(self._causes[index]))

    def settle(self, find_bad: Callable[[], Array], has_stepped: Callable[[int], bool]) -> None:
        """After a tick, rebuild the units with invalid values and clear the failures of those that made a good step.

        Args:
          find_bad: returns the indices of the units with invalid values in their rows.
          has_stepped: whether this tick was a step of the unit, not a reset.
        Raises: as `fail`.
        """
        while (bad := find_bad()).size:  # `fail` ends the loop: it raises, or makes the rows good or absent
            for index in bad.tolist():
                self.fail(index, EnvError(BAD_VALUES))
        for index in tuple(self._failures):
            if index not in self.waiting and has_stepped(index):
                del self._failures[index]


class RepairedBackend(Backend):
    """A backend whose units, each a lane or a world of several, are rebuilt alone where they fail."""

    def __init__(self, traits: Traits, repairs: Repairs) -> None:
        self.traits, self._repairs = traits, repairs
        self._leaves = traits.observation.leaves()
        self.ended, self.first = NO_LANES, NO_LANES
        self._rows: RowViews
        self._check: ValueCheck

    @property
    def num_rebuilds(self) -> int:
        """How many lanes were rebuilt since the start."""
        return self._repairs.num_rebuilds

    @property
    def last_failure(self) -> str:
        """The cause of the newest failure of an environment; empty if there was none."""
        return self._repairs.last_failure

    def bind(self, rows: RowViews) -> None:
        """Write all rows from now on into these arrays."""
        self._rows, self._check = rows, ValueCheck(self._leaves, rows)

    def _settle(self, find_bad: Callable[[], Array], has_stepped: Callable[[int], bool]) -> None:
        """After a tick, rebuild units as `Repairs.settle`, then set `ended` and `first` from the rows' flags."""
        self._repairs.settle(find_bad, has_stepped)
        flags = self._rows.flags
        self.ended, self.first = (flags & ENDED_BITS).nonzero()[0], (flags & FIRST).nonzero()[0]

    def _close(self, index: int, close: Callable[[], object]) -> None:
        """Close a unit's environment if it has one; if that fails, it is only noted in `last_failure`."""
        if index in self._repairs.closed:
            return
        try:
            call_environment(close)
        except EnvError as error:
            self._repairs.last_failure = f"{self._repairs.unit} {index}: close: {error}"


def _trace(cause: BaseException) -> str:
    """Return the traceback of an environment's own error as the interpreter prints it; a logger's might show values."""
    return "".join(traceback.format_exception(cause))[-MAX_TRACE:]
