"""When an inference that leaves has handed its unrolls over. Pure: takes `now`, in seconds.

Acknowledgement follows the update that used an unroll, and a part of a batch waits in the learner for lanes that
somebody else will send. What the learner has received it uses although its producer has left, so only what it has not
received would be lost.
"""

from seedbed.inference_svc.learner_sessions import LearnerSessions

REST_S = 1.0  # everything received and nothing acknowledged for so long: what is left waits for others' lanes


class DrainCheck:
    """One departure, from the moment at which the groups were dismissed. Owned by the loop."""

    def __init__(self, learner_sessions: LearnerSessions, drain_s: float, now: float) -> None:
        self._learner_sessions = learner_sessions
        self._deadline = now + drain_s
        self._acked, self._acked_at = -1.0, now

    def is_over(self, now: float) -> bool:
        """Whether every unroll was used, or was received by a learner that uses no more now, or time is up."""
        acked = self._learner_sessions.total(lambda link: link.outbox.acked_unrolls)
        if acked != self._acked:
            self._acked, self._acked_at = acked, now
        rests = now - self._acked_at >= REST_S and self._learner_sessions.is_received
        return rests or self._learner_sessions.is_empty or now >= self._deadline
