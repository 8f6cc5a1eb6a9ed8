"""What inference counts: plain numbers on the hot path, read once a beat by metrics and by the learner."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """Totals since the process started. Owned by the service's loop."""

    acted_steps: int = 0  # valid training transitions
    eval_steps: int = 0
    requests: int = 0  # STEPs accepted
    refused_messages: int = 0
    batches: int = 0
    batch_lanes: int = 0
    wait_s: float = 0.0  # summed over groups and batches
    waits: int = 0
    compute_s: float = 0.0
    held_no_credit: int = 0
    lost_groups: int = 0
    groups_ended: dict[str, int] = field(default_factory=dict)  # by reason
    hellos_refused: dict[str, int] = field(default_factory=dict)  # by code
    out_of_bounds: int = 0  # rows whose observation left its bounds
    dropped_steps: dict[str, int] = field(default_factory=dict)  # of unrolls cut off half-way, by why the group ended
    env_busy: float = 0.0  # shares of time that training actors stepped environments, summed over their PINGs
    env_busy_pings: int = 0

    def load(
        self, since: "Tally", *, sessions: int, lanes: int, actor_restarts: int, loop_lag_ms: float
    ) -> tuple[tuple[str, float], ...]:
        """Figures for the learner: totals, and means over the time since the copy `since`."""
        batches = max(1, self.batches - since.batches)
        pings = self.env_busy_pings - since.env_busy_pings
        env_busy = (("env_busy_share", (self.env_busy - since.env_busy) / pings),) if pings else ()
        return (
            ("acted_steps", float(self.acted_steps)),
            ("batch_fill", (self.batch_lanes - since.batch_lanes) / batches),
            ("queue_wait_ms", 1e3 * (self.wait_s - since.wait_s) / max(1, self.waits - since.waits)),
            ("forward_ms", 1e3 * (self.compute_s - since.compute_s) / batches),
            ("loop_lag_ms", loop_lag_ms),
            ("sessions", float(sessions)),
            ("lanes", float(lanes)),
            ("actor_restarts", float(actor_restarts)),
            *env_busy,
        )

    def pinged(self, load: Sequence[tuple[str, float]]) -> None:
        """Take in what a training actor says of itself."""
        share = dict(load).get("env_busy")
        if share is not None and 0.0 <= share < math.inf:
            self.env_busy += min(1.0, share)
            self.env_busy_pings += 1

    def ended(self, reason: str, dropped_steps: int) -> None:
        """A group's session is over, and with it an unroll of so many steps that is not complete."""
        self.groups_ended[reason] = self.groups_ended.get(reason, 0) + 1
        if dropped_steps:
            self.dropped_steps[reason] = self.dropped_steps.get(reason, 0) + dropped_steps

    def refused(self, code: str) -> None:
        """Count a HELLO that was refused, by its code."""
        self.hellos_refused[code] = self.hellos_refused.get(code, 0) + 1
