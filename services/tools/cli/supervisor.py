"""When to start, restart and give up on the services of a run: decided from events and `now`, without a process.

| a service ends | then |
|---|---|
| with 0, and it is the learner | the run is over |
| with 0, another one | nothing for a while (runs end so); if the run goes on without it, it is started again |
| with 78 (its configuration is wrong, or a peer refused it for good) | the run fails at once: restarts would not help |
| with 74 (its files cannot be written) | likewise |
| with 0 or 78, and its own code did not say so (an environment called `os._exit`) | as in any other way |
| in any other way | started again after a back-off |
| in any other way, for the fifth time without a step acted or trained in between | the run fails |
| with an error, and it is the learner of a run that is being stopped | the run fails: it may not be saved |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from signal import Signals

from seedbed.shared.errors import ConfigError, StorageError

FOR_GOOD = {  # exits that no restart helps
    ConfigError.exit_code: "cannot go on, and a restart would not help",
    StorageError.exit_code: "could not write its files",
}


UNMEANT = "by a signal or by code that is not seedbed's: an environment's, or a library's"


class Phase(StrEnum):
    """How far the life of one service has come."""

    WAITING = "waiting"  # to be started, perhaps after a back-off
    RUNNING = "running"
    LEFT = "left"  # ended with 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How often and how soon services are started again."""

    first_delay_s: float = 0.2  # before the first restart; doubles with each further death
    max_delay_s: float = 5.0
    healthy_s: float = 10.0  # a life this long starts the back-off anew
    max_deaths: int = 5  # of one service, with no step acted or trained between them
    leave_grace_s: float = 10.0  # a service that left early is started again after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the run ended. `service` and `reason` say who failed it, empty when it finished."""

    exit_code: int
    service: str = ""
    reason: str = ""


@dataclass(slots=True)
class Watched:
    """What is known of one service."""

    name: str
    phase: Phase = Phase.WAITING
    start_at: float = 0.0  # while waiting
    started_at: float = 0.0  # of this life
    starts: int = 0
    deaths: int = 0  # since the last progress
    backoff: int = 0  # deaths since the last healthy life
    last_exit: str = ""

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.starts - 1)


class Supervisor:
    """Owned by the launcher's loop. `final` is the service whose clean end ends the run."""

    def __init__(self, names: Sequence[str], *, final: str, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.services = {name: Watched(name) for name in names}
        self.outcome: Outcome | None = None
        self._final = final
        self._is_finishing = False

    def due(self, now: float) -> list[str]:
        """Services to start now, in the order given at first."""
        if self.outcome is not None:
            return []
        return [item.name for item in self.services.values() if item.phase is Phase.WAITING and item.start_at <= now]

    def started(self, name: str, now: float) -> None:
        """A process of this service runs."""
        service = self.services[name]
        service.phase, service.started_at = Phase.RUNNING, now
        service.starts += 1

    def progressed(self) -> None:
        """A step was acted or trained: what died before it no longer counts towards giving up."""
        for service in self.services.values():
            service.deaths = 0

    def finishing(self, is_finishing: bool, now: float) -> None:
        """Note whether the learner says that the run is trained to its end: who leaves then is not called back.

        If an evaluation shows that a goal was not reached, training goes on, and who has left is called back.
        """
        self._is_finishing = is_finishing
        for service in self.services.values():
            if is_finishing and service.phase is Phase.WAITING and service.last_exit == "left":
                service.phase = Phase.LEFT
            elif not is_finishing and service.phase is Phase.LEFT and service.name != self._final:
                service.phase, service.start_at = Phase.WAITING, now + self.rules.leave_grace_s

    def exited(self, name: str, code: int, now: float, *, is_meant: bool = True) -> None:
        """A process of this service ended: `code` as from wait, negative for a signal.

        `is_meant`: whether the service itself chose that code; else it is a death like any other.
        """
        service, was_stopped = self.services[name], self.outcome is not None and not self.outcome.service
        if was_stopped and name == self._final and code > 0:
            reason = FOR_GOOD.get(code, f"failed while it was stopped ({describe_exit(code)})")
            self.outcome = Outcome(exit_code=code, service=name, reason=reason)
        is_meant = is_meant or self._is_finishing or self.outcome is not None
        if code == 0 and is_meant:
            self._left(service, now)
            return
        service.last_exit = describe_exit(code) + ("" if is_meant else ", " + UNMEANT)
        if self.outcome is not None:
            return
        if code in FOR_GOOD and is_meant:
            self.outcome = Outcome(exit_code=code, service=name, reason=FOR_GOOD[code])
            return
        service.deaths += 1
        service.backoff = 1 if now - service.started_at >= self.rules.healthy_s else service.backoff + 1
        if service.deaths >= self.rules.max_deaths:
            reason = f"died {service.deaths} times with no step acted or trained in between ({service.last_exit})"
            self.outcome = Outcome(exit_code=1, service=name, reason=reason)
            return
        delay_s = min(self.rules.max_delay_s, self.rules.first_delay_s * 2.0 ** (service.backoff - 1))
        service.phase, service.start_at = Phase.WAITING, now + delay_s

    def _left(self, service: Watched, now: float) -> None:
        """Note that a service ended with status 0: because the run is over or ends, or too early."""
        service.last_exit = "left"
        if service.name == self._final:
            service.phase = Phase.LEFT
            self.outcome = self.outcome or Outcome(exit_code=0)
        elif self._is_finishing or self.outcome is not None:
            service.phase = Phase.LEFT
        else:
            service.phase, service.start_at = Phase.WAITING, now + self.rules.leave_grace_s


def describe_exit(code: int) -> str:
    """Say an exit status in words."""
    if code >= 0:
        return f"exit {code}"
    try:
        return f"killed by {Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
