"""How long an inference that leaves waits for its learner, with numbers for time."""

from seedbed.inference_svc.drain_check import REST_S, DrainCheck
from seedbed.inference_svc.learner_sessions import LearnerSessions
from tests.support.unroll_link import credit, producer_welcome

DRAIN_S = 8.0


class LeavingProducer:
    """One that has sent unrolls of 4 lanes, and the learner's answers."""

    def __init__(self, unrolls: int) -> None:
        self.learner_sessions = LearnerSessions(name="i", incarnation=7, library_version="0", load=lambda: ())
        self.outbox = self.learner_sessions.main.outbox
        self.outbox.welcome(producer_welcome())
        for _ in range(unrolls):
            self.outbox.push(4, [b""])
        self.acknowledge(0)
        while (outgoing := self.outbox.next_outgoing()) is not None:
            self.outbox.sent(outgoing)
        self.flush = DrainCheck(self.learner_sessions, DRAIN_S, 0.0)

    def acknowledge(self, through: int) -> None:
        self.outbox.credit(credit(100, through))

    def show_received(self, through: int) -> None:
        self.outbox.pinged(1)
        self.outbox.pong(1, through)


def test_it_leaves_at_once_when_all_is_used() -> None:
    """Nothing to wait for."""
    leaving = LeavingProducer(2)
    assert not leaving.flush.is_over(0.1)
    leaving.acknowledge(2)
    assert leaving.flush.is_over(0.2)


def test_a_part_of_a_batch_is_not_waited_for() -> None:
    """The learner has it, and nobody is left to fill the batch up."""
    leaving = LeavingProducer(3)
    assert not leaving.flush.is_over(0.1)
    leaving.acknowledge(2)
    leaving.show_received(3)
    assert not leaving.flush.is_over(0.5)
    assert not leaving.flush.is_over(0.5 + 0.9 * REST_S)
    assert leaving.flush.is_over(0.5 + REST_S)


def test_it_waits_while_the_learner_uses_more() -> None:
    """Whoever trains slowly is given the time."""
    leaving = LeavingProducer(3)
    leaving.show_received(3)
    for acked, now in enumerate((0.1, 0.9, 1.7)):
        leaving.acknowledge(acked)
        assert not leaving.flush.is_over(now)


def test_what_was_not_received_is_waited_for_until_time_is_up() -> None:
    """It would be lost."""
    leaving = LeavingProducer(3)
    leaving.show_received(2)
    assert not leaving.flush.is_over(0.0)
    assert not leaving.flush.is_over(DRAIN_S - 0.1)
    assert leaving.flush.is_over(DRAIN_S)
