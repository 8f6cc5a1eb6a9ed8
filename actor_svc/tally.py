"""What an actor counts: ticks, the time they took, and the time its groups waited for their actions."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import Histogram

from seedbed.actor_svc.fleet import Fleet
from seedbed.actor_svc.group import Group
from seedbed.shared.runtime.metrics import Metrics


@dataclass(slots=True)
class Tally:
    """Totals since the start. The loop thread writes; anyone may read."""

    ticks: int = 0
    busy_s: float = 0.0  # of the environment thread
    waits: int = 0
    wait_s: float = 0.0  # from a STEP to its ACT, summed over groups
    refused_messages: int = 0


class LoadMeter:
    """The load figures of a PING: means since the last one."""

    def __init__(self, tally: Tally, groups: Sequence[Group], now: float) -> None:
        self._tally, self._groups = tally, groups
        self._at, self._steps, self._busy_s, self._waits, self._wait_s = now, 0, 0.0, 0, 0.0

    def read(self, now: float) -> tuple[tuple[str, float], ...]:
        """Steps per second, share of time that environments ran, mean wait for actions in ms."""
        tally, steps = self._tally, num_steps(self._groups)
        seconds = max(now - self._at, 1e-9)
        waits = max(1, tally.waits - self._waits)
        figures = (
            ("steps_per_s", (steps - self._steps) / seconds),
            ("env_busy", (tally.busy_s - self._busy_s) / seconds),
            ("act_wait_ms", (tally.wait_s - self._wait_s) / waits * 1000),
        )
        self._at, self._steps = now, steps
        self._busy_s, self._waits, self._wait_s = tally.busy_s, tally.waits, tally.wait_s
        return figures


def num_steps(groups: Sequence[Group]) -> int:
    """Steps (valid transitions) of all groups so far."""
    return sum(group.counters().steps for group in groups)


def register(metrics: Metrics, tally: Tally, groups: Sequence[Group], fleet: Fleet) -> Histogram:
    """Register everything; the histogram of tick times, which the shell fills."""
    for name, description in (
        ("steps", "Environment steps: valid transitions of all lanes (agent steps)."),
        ("episodes", "Finished episodes."),
        ("aborted", "Episodes that a rebuilt lane cut short."),
        ("rebuilds", "Lanes rebuilt after they raised or gave values outside their space."),
    ):
        metrics.read_counter(
            f"actor_{name}",
            description,
            lambda name=name: sum(getattr(group.counters(), name) for group in groups),  # type: ignore[misc]
        )
    for name, description in (
        ("ticks", "Ticks of all groups."),
        ("busy_s", "Time that environments ran, seconds."),
        ("wait_s", "Time that groups waited for their actions, seconds, summed over groups."),
        ("refused_messages", "Messages that broke the protocol."),
    ):
        metrics.read_counter(
            f"actor_{name.replace('_s', '_seconds') if name.endswith('_s') else name}",
            description,
            lambda name=name: float(getattr(tally, name)),  # type: ignore[misc]
        )
    clients = list(fleet.groups.values())
    metrics.read_counter("actor_resent", "STEPs sent again.", lambda: sum(item.num_resent for item in clients))
    metrics.read_counter("actor_sessions", "Sessions begun.", lambda: sum(item.num_sessions for item in clients))
    metrics.read_counter("actor_moves", "Groups moved to another inference service.", lambda: fleet.num_moves)
    metrics.read_gauge("actor_lanes", "Environment copies.", lambda: sum(group.lanes for group in groups))
    metrics.read_gauge(
        "actor_waiting_groups",
        "Groups that wait for their actions now.",
        lambda: sum(item.is_waiting for item in clients),
    )
    return metrics.histogram("actor_tick_seconds", "One tick of a group in the environment thread.")
