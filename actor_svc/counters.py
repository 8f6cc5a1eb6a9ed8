"""An actor's counters: ticks, the time they took, and the time its groups waited for their actions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import Histogram

from seedbed.actor_svc.fleet import Fleet
from seedbed.actor_svc.group import EnvGroup, GroupCounters
from seedbed.shared.figures import actor
from seedbed.shared.figures.declare import Metric
from seedbed.shared.runtime.metrics import Metrics


@dataclass(slots=True)
class ActorCounters:
    """Totals since the start. The loop thread writes; anyone may read."""

    ticks: int = 0
    busy_s: float = 0.0  # time spent in ticks and resets
    waits: int = 0
    wait_s: float = 0.0  # from a STEP to its ACT, summed over groups
    refused_messages: int = 0


class LoadMeter:
    """Computes the load metrics that a PING carries, each a mean since the reading before."""

    def __init__(self, counters: ActorCounters, groups: Sequence[EnvGroup], now: float) -> None:
        self._counters, self._groups = counters, groups
        self._at, self._steps, self._busy_s, self._waits, self._wait_s = now, 0, 0.0, 0, 0.0

    def read(self, now: float) -> tuple[tuple[str, float], ...]:
        """Return (name, value) pairs: steps per second, share of time that environments ran, mean wait for ACT, ms."""
        counters, steps = self._counters, num_steps(self._groups)
        seconds = max(now - self._at, 1e-9)
        waits = max(1, counters.waits - self._waits)
        figures = (
            ("steps_per_s", (steps - self._steps) / seconds),
            ("env_busy", (counters.busy_s - self._busy_s) / seconds),
            ("act_wait_ms", (counters.wait_s - self._wait_s) / waits * 1000),
        )
        self._at, self._steps = now, steps
        self._busy_s, self._waits, self._wait_s = counters.busy_s, counters.waits, counters.wait_s
        return figures


def num_steps(groups: Sequence[EnvGroup]) -> int:
    """Return the number of steps (valid transitions) of all groups so far."""
    return sum(group.counters().steps for group in groups)


def register(metrics: Metrics, counters: ActorCounters, groups: Sequence[EnvGroup], fleet: Fleet) -> Histogram:
    """Register the actor's metrics and return the histogram of tick durations, which the shell fills."""

    def total(read: Callable[[GroupCounters], int]) -> Callable[[], float]:
        return lambda: sum(read(group.counters()) for group in groups)

    clients = list(fleet.groups.values())
    readers: Mapping[Metric, Callable[[], float]] = {
        actor.STEPS: total(lambda group: group.steps),
        actor.EPISODES: total(lambda group: group.episodes),
        actor.ABORTED: total(lambda group: group.aborted),
        actor.REBUILDS: total(lambda group: group.rebuilds),
        actor.TICKS: lambda: counters.ticks,
        actor.BUSY_SECONDS: lambda: counters.busy_s,
        actor.WAIT_SECONDS: lambda: counters.wait_s,
        actor.REFUSED_MESSAGES: lambda: counters.refused_messages,
        actor.RESENT: lambda: sum(item.num_resent for item in clients),
        actor.SESSIONS: lambda: sum(item.num_sessions for item in clients),
        actor.MOVES: lambda: fleet.num_moves,
        actor.LANES: lambda: sum(group.lanes for group in groups),
        actor.WAITING_GROUPS: lambda: sum(item.is_waiting for item in clients),
    }
    for metric, read in readers.items():
        metrics.read(metric, read)
    return metrics.histogram(actor.TICK_SECONDS.name, actor.TICK_SECONDS.meaning)
