"""Decides when an inference service that shuts down may stop waiting for its unrolls. Pure: takes `now`, in seconds.

An unroll is acknowledged after the update that used it, which may wait for lanes of other inference services. The
learner uses every unroll that it has received, even after its producer has left; only the others would be lost.
"""

from seedbed.inference_svc.learner_sessions import LearnerSessions

REST_S = 1.0  # all received, none acknowledged for this long: the rest waits for lanes of other services


class DrainCheck:
    """Made when the groups were dismissed. Owned by the loop."""

    def __init__(self, learner_sessions: LearnerSessions, drain_s: float, now: float) -> None:
        self._learner_sessions = learner_sessions
        self._deadline = now + drain_s
        self._acked, self._acked_at = -1.0, now

    def is_over(self, now: float) -> bool:
        """Whether all unrolls are acknowledged, or all received and none acknowledged for `REST_S`, or time is up."""
        acked = self._learner_sessions.total(lambda link: link.outbox.acked_unrolls)
        if acked != self._acked:
            self._acked, self._acked_at = acked, now
        rests = now - self._acked_at >= REST_S and self._learner_sessions.is_received
        return rests or self._learner_sessions.is_empty or now >= self._deadline
