"""The counters of an inference service: plain numbers for the hot path, read by /metrics and by each PING."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, get_type_hints

from seedbed.shared.figures import inference


@dataclass(slots=True)
class InferenceCounters:
    """Totals since the process started; an annotation names the metric of each. Owned by the service's loop."""

    acted_steps: Annotated[int, inference.ACTED_STEPS] = 0
    eval_steps: Annotated[int, inference.EVAL_STEPS] = 0
    requests: Annotated[int, inference.REQUESTS] = 0
    refused_messages: int = 0
    batches: Annotated[int, inference.BATCHES] = 0
    batch_lanes: Annotated[int, inference.BATCH_FILL.total] = 0
    wait_s: Annotated[float, inference.QUEUE_WAIT.total] = 0.0
    waits: Annotated[int, inference.QUEUE_WAIT.count] = 0
    compute_s: Annotated[float, inference.FORWARD.total] = 0.0
    held_no_credit: Annotated[int, inference.HELD_NO_CREDIT] = 0
    lost_groups: Annotated[int, inference.LOST_GROUPS] = 0
    groups_ended: Annotated[dict[str, int], inference.GROUPS_ENDED] = field(default_factory=dict)
    hellos_refused: Annotated[dict[str, int], inference.HELLOS_REFUSED] = field(default_factory=dict)
    out_of_bounds: Annotated[int, inference.OUT_OF_BOUNDS] = 0
    dropped_steps: Annotated[dict[str, int], inference.DROPPED_STEPS] = field(default_factory=dict)
    env_busy: float = 0.0  # share of time, 0…1, that training actors stepped environments, summed over their PINGs
    env_busy_pings: int = 0

    def load(
        self, since: "InferenceCounters", *, sessions: int, lanes: int, awaited_groups: int, actor_restarts: int,
        loop_lag_ms: float,
    ) -> tuple[tuple[str, float], ...]:  # fmt: skip
        """Return the metrics for the learner: present numbers, and means over the time since the copy `since`."""
        figures = {
            inference.NUM_SESSIONS.name: float(sessions),
            inference.NUM_LANES.name: float(lanes),
            inference.NUM_AWAITED_GROUPS.name: float(awaited_groups),
            inference.NUM_ACTOR_RESTARTS.name: float(actor_restarts),
            inference.LOOP_LAG.name: loop_lag_ms,
        }
        for load, quotient in inference.MEANS:
            total, count = COUNTED[quotient.total], COUNTED[quotient.count]
            rise, times = (getattr(self, name) - getattr(since, name) for name in (total, count))
            figures[load.name] = quotient.scale * rise / max(1, times)
        if pings := self.env_busy_pings - since.env_busy_pings:
            figures[inference.ENV_BUSY.name] = (self.env_busy - since.env_busy) / pings
        return tuple(figures.items())

    def pinged(self, load: Sequence[tuple[str, float]]) -> None:
        """Add up the load that a training actor reports in its PING."""
        share = dict(load).get("env_busy")
        if share is not None and 0.0 <= share < math.inf:
            self.env_busy += min(1.0, share)
            self.env_busy_pings += 1

    def ended(self, reason: str, dropped_steps: int) -> None:
        """Count a session that ended, and the steps of its incomplete unroll, which are lost."""
        self.groups_ended[reason] = self.groups_ended.get(reason, 0) + 1
        if dropped_steps:
            self.dropped_steps[reason] = self.dropped_steps.get(reason, 0) + dropped_steps

    def refused(self, code: str) -> None:
        """Count a refused HELLO by its code."""
        self.hellos_refused[code] = self.hellos_refused.get(code, 0) + 1


COUNTED = {  # metric → field of InferenceCounters
    note: name
    for name, hint in get_type_hints(InferenceCounters, include_extras=True).items()
    for note in getattr(hint, "__metadata__", ())
}
