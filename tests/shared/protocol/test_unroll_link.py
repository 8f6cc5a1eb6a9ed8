"""Outbox and Ledger rule by rule, with numbers for time."""

import pytest

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.ledger import MAX_AHEAD, MAX_REMEMBERED, Ledger, Producer
from seedbed.shared.protocol.messages import Credit, Episodes, ProducerHello, RunState, Unroll
from seedbed.shared.protocol.outbox import MAX_EPISODES, Outbox
from tests.support.unroll_link import credit, producer_welcome


def a_hello(incarnation: int = 7, *, oldest_seq: int = 0) -> ProducerHello:
    return ProducerHello(library_version="0", name="p", incarnation=incarnation, nonce=0, oldest_seq=oldest_seq)


def an_unroll(seq: int, lanes: int = 4) -> Unroll:
    return Unroll(session=1, seq=seq, lanes=lanes, actor="a")


def credit_of(ledger: Ledger, producer: Producer, state: RunState = RunState.TRAINING) -> Credit:
    return ledger.credit(producer, state=state, trained_steps=0)


def send_all(outbox: Outbox) -> list[int]:
    """Everything that may leave now, by number."""
    numbers = []
    while (outgoing := outbox.next_outgoing()) is not None:
        numbers.append(outgoing.message.seq)
        outbox.sent(outgoing)
    return numbers


def an_outbox(*lanes: int) -> Outbox:
    outbox = Outbox()
    for count in lanes:
        outbox.push(count, [bytes(count)])
    return outbox


def a_ledger(window: int = 8) -> Ledger:
    return Ledger(epoch=1, window_lanes=window, lease_s=10.0)


def test_nothing_leaves_without_session_or_credit() -> None:
    """Credit is asked for at every epoch anew."""
    outbox = an_outbox(4, 4)
    assert send_all(outbox) == []
    outbox.welcome(producer_welcome())
    assert send_all(outbox) == []
    outbox.credit(credit(4))
    assert send_all(outbox) == [0]
    assert not outbox.can_send(4)


def test_credit_is_there_for_all_that_it_covers() -> None:
    """Several groups' unrolls may be pushed before the first is sent, as far as the grant goes, and no further."""
    outbox = an_outbox()
    assert not outbox.can_send(4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(8))
    for _ in range(2):
        assert outbox.can_send(4)
        outbox.push(4, [b""])
    assert not outbox.can_send(4)
    assert send_all(outbox) == [0, 1]


def test_a_message_larger_than_the_window_still_passes() -> None:
    """The last unroll may overshoot by its own lanes, and the next then waits for all of them."""
    outbox = an_outbox(256, 256)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(32))
    assert send_all(outbox) == [0]
    assert not outbox.can_send(1)
    outbox.credit(credit(256))
    assert send_all(outbox) == []
    outbox.credit(credit(257))
    assert send_all(outbox) == [1]


def test_an_unroll_is_kept_until_it_is_acknowledged() -> None:
    """What was sent is still in memory; what was acknowledged is not."""
    outbox = an_outbox(4, 4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(100))
    send_all(outbox)
    assert outbox.unacked_lanes == 12
    outbox.credit(credit(100, 2))
    assert (outbox.unacked_lanes, outbox.oldest_seq, outbox.acked_unrolls) == (4, 2, 2)
    outbox.credit(credit(100, 3))
    assert outbox.is_empty
    assert outbox.oldest_seq == 3


def test_what_the_learner_received_is_not_lost_with_the_producer() -> None:
    """Only a PONG shows it; a connection that is lost takes that knowledge with it."""
    outbox = an_outbox(4, 3, 2)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(100))
    send_all(outbox)
    outbox.pinged(5)
    assert (outbox.unreceived_lanes, outbox.is_received) == (9, False)
    outbox.pong(5, 2)
    assert (outbox.unreceived_lanes, outbox.is_received) == (2, False)
    send_all(outbox)
    outbox.pinged(6)
    outbox.pong(6, 3)
    assert (outbox.unreceived_lanes, outbox.unacked_lanes, outbox.is_received) == (0, 9, True)
    outbox.lost_session()
    assert (outbox.unreceived_lanes, outbox.is_received) == (9, False)
    outbox.welcome(producer_welcome(epoch=2, next_seq=1))
    assert (outbox.unreceived_lanes, outbox.is_received) == (5, False)


def test_episodes_are_received_when_they_are_acknowledged() -> None:
    """They have no other receipt."""
    outbox = Outbox()
    assert outbox.is_received
    outbox.push_episodes([b""], count=1, acted_steps=3)
    outbox.welcome(producer_welcome())
    assert not outbox.is_received
    outbox.credit(credit(0, episodes_acked_through=1))
    assert outbox.is_received


@pytest.mark.parametrize("void", [credit(100, 2, session=2), credit(100, 2, epoch=2)])
def test_credit_of_another_session_or_epoch_is_void(void: Credit) -> None:
    """A late message of an earlier life neither grants nor acknowledges."""
    outbox = an_outbox(4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(void)
    assert send_all(outbox) == []
    assert outbox.unacked_lanes == 8


def test_old_credit_takes_nothing_back() -> None:
    """Figures are absolute: reordered ones do no harm."""
    outbox = an_outbox(4, 4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(8, 1))
    outbox.credit(credit(4, 0))
    assert send_all(outbox) == [1]
    assert outbox.oldest_seq == 1
    assert not outbox.can_send(1)


def test_a_new_learner_gets_again_what_it_misses() -> None:
    """After another epoch's WELCOME everything from its next number on leaves again, under its own credit."""
    outbox = an_outbox(4, 4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(100))
    send_all(outbox)
    outbox.lost_session()
    assert outbox.next_outgoing() is None
    outbox.welcome(producer_welcome(session=9, epoch=2, next_seq=1))
    assert send_all(outbox) == []
    outbox.credit(credit(8, 1, session=9, epoch=2))
    assert send_all(outbox) == [1, 2]
    assert outbox.resent_unrolls == 2


def test_another_runs_learner_gets_nothing_of_this_one() -> None:
    """What was kept is discarded, and numbers go on, so that HELLO says where the new learner begins."""
    outbox = an_outbox(4, 4)
    outbox.welcome(producer_welcome())
    assert outbox.discard() == 8
    assert outbox.is_empty
    assert outbox.oldest_seq == 2
    outbox.push(4, [b""])
    outbox.welcome(producer_welcome(session=5, next_seq=2))
    outbox.credit(credit(1, 2, session=5))
    assert send_all(outbox) == [2]


def test_a_resumed_session_sends_again_without_new_credit() -> None:
    """Credit is a position in the stream: what is sent twice counts once."""
    outbox = an_outbox(4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(8))
    assert send_all(outbox) == [0, 1]
    outbox.welcome(producer_welcome(next_seq=1))
    assert send_all(outbox) == [1]


def test_a_resumed_session_keeps_to_its_window() -> None:
    """After a lost connection both ends still count the stream from where the session began."""
    ledger, outbox = a_ledger(window=8), Outbox()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    outbox.welcome(producer_welcome(session=producer.id))
    for seq in range(10):
        outbox.credit(credit_of(ledger, producer))
        outbox.push(4, [b""])
        assert send_all(outbox) == [seq]
        ledger.receive(producer, an_unroll(seq))
        ledger.applied(producer, seq, 4)
    outbox.credit(credit_of(ledger, producer))
    assert outbox.can_send(8)
    outbox.lost_session()
    assert not outbox.can_send(4)
    again = ledger.hello(a_hello(oldest_seq=outbox.oldest_seq), b"s", 1.0)
    outbox.welcome(producer_welcome(session=again.id, next_seq=again.next_seq))
    outbox.credit(credit_of(ledger, again))
    assert outbox.can_send(8)


def test_another_run_may_use_the_same_session_number() -> None:
    """After `discard` a WELCOME begins a stream of its own, whatever its numbers are."""
    outbox = an_outbox(4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(8))
    send_all(outbox)
    outbox.discard()
    outbox.welcome(producer_welcome(next_seq=2))
    outbox.credit(credit(4, 2))
    assert outbox.can_send(4)


def test_pong_shows_a_lost_unroll() -> None:
    """What was sent before a PING and is missing in its PONG is sent again; what was sent after it is not blamed."""
    outbox = an_outbox(4, 4)
    outbox.welcome(producer_welcome())
    outbox.credit(credit(100))
    send_all(outbox)
    outbox.pinged(1000)
    outbox.push(4, [b""])
    assert send_all(outbox) == [2]
    outbox.pong(1000, 2)
    assert send_all(outbox) == []
    outbox.pong(1000, 1)
    assert send_all(outbox) == [1, 2]
    outbox.pong(77, 0)  # nobody sent this PING
    assert send_all(outbox) == []


def test_episodes_need_no_credit_and_come_again_until_acknowledged() -> None:
    """EPISODES have numbers of their own."""
    outbox = Outbox()
    outbox.push_episodes([b"x"], count=1, acted_steps=5, mode="eval", evaluation=3, aborted=2)
    outbox.welcome(producer_welcome())
    outgoing = outbox.next_outgoing()
    assert outgoing is not None
    assert outgoing.message == Episodes(session=1, seq=0, mode="eval", evaluation=3, count=1, aborted=2, acted_steps=5)
    outbox.sent(outgoing)
    assert send_all(outbox) == []
    outbox.pinged(1)
    outbox.pong(1, 0)
    assert send_all(outbox) == [0]
    outbox.credit(credit(0, 0, episodes_acked_through=1))
    assert outbox.is_empty


def test_episodes_are_bounded() -> None:
    """A learner that is away for long costs the oldest figures, counted, not memory."""
    outbox = Outbox()
    for _ in range(MAX_EPISODES + 3):
        outbox.push_episodes([b""], count=0, acted_steps=1)
    assert outbox.dropped_episodes == 3
    assert outbox.oldest_episodes_seq == 3


def test_a_number_is_applied_once() -> None:
    """Doubled and late UNROLLs are dropped and counted."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    assert ledger.receive(producer, an_unroll(0)) == 0
    assert ledger.receive(producer, an_unroll(0)) is None
    ledger.applied(producer, 0, 4)
    assert ledger.receive(producer, an_unroll(0)) is None
    assert ledger.duplicate_unrolls == 2


def test_acknowledgement_follows_the_update() -> None:
    """Copying returns credit, only use acknowledges, and only without a gap."""
    ledger = a_ledger(window=8)
    producer = ledger.hello(a_hello(), b"r", 0.0)
    for seq in (1, 0):
        ledger.receive(producer, an_unroll(seq))
    assert credit_of(ledger, producer).granted_through == 8
    ledger.copied(producer, 0)
    ledger.copied(producer, 0)
    assert credit_of(ledger, producer).granted_through == 12
    ledger.applied(producer, 1, 4)
    assert credit_of(ledger, producer).acked_through == 0
    ledger.applied(producer, 0, 2)
    assert credit_of(ledger, producer).acked_through == 0
    ledger.applied(producer, 0, 2)
    assert credit_of(ledger, producer).acked_through == 2


def test_an_unroll_whose_lanes_wait_for_the_next_batch_keeps_its_credit() -> None:
    """Its frame is still held: an update that used some of its lanes gives nothing back."""
    ledger = a_ledger(window=8)
    producer = ledger.hello(a_hello(), b"r", 0.0)
    ledger.receive(producer, an_unroll(0))
    ledger.applied(producer, 0, 3)
    assert credit_of(ledger, producer).granted_through == 8
    ledger.applied(producer, 0, 1)
    assert credit_of(ledger, producer).granted_through == 8 + 4


def test_no_credit_once_the_run_is_finishing() -> None:
    """Training groups are held during the final evaluation."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    assert credit_of(ledger, producer, RunState.FINISHING).granted_through == 0
    assert credit_of(ledger, producer, RunState.TRAINING).granted_through == 8


def test_the_window_is_shared() -> None:
    """Every live producer has the same share, and a grant is never taken back."""
    ledger = a_ledger(window=8)
    first = ledger.hello(a_hello(1), b"1", 0.0)
    assert credit_of(ledger, first).granted_through == 8
    second = ledger.hello(a_hello(2), b"2", 0.0)
    assert credit_of(ledger, second).granted_through == 4
    assert credit_of(ledger, first).granted_through == 8


def test_a_silent_producer_loses_its_session_and_comes_back() -> None:
    """Its grants return to the others; its numbers go on where they were."""
    ledger = a_ledger(window=8)
    first = ledger.hello(a_hello(1), b"1", 0.0)
    second = ledger.hello(a_hello(2), b"2", 9.0)
    session = first.id
    ledger.receive(first, an_unroll(0))
    assert ledger.expire(10.5) == [first]
    assert ledger.find(session, b"1", 11.0) is None
    assert credit_of(ledger, second).granted_through == 8
    ledger.copied(first, 0)
    ledger.applied(first, 0, 4)
    again = ledger.hello(a_hello(1), b"3", 12.0)
    assert again is first
    assert again.id != session
    assert again.next_seq == 1


def test_hello_is_idempotent() -> None:
    """Within its lease an incarnation keeps its session, on whatever route it speaks."""
    ledger = a_ledger()
    first = ledger.hello(a_hello(), b"1", 0.0)
    session = first.id
    assert ledger.hello(a_hello(), b"2", 1.0).id == session
    assert first.route == b"2"
    assert len(ledger.sessions) == 1


def test_credit_of_a_new_session_counts_what_is_held() -> None:
    """Both ends count the stream from WELCOME's next number, whatever of it is here already."""
    ledger = a_ledger(window=8)
    producer = ledger.hello(a_hello(), b"r", 0.0)
    for seq in (0, 1):
        ledger.receive(producer, an_unroll(seq))
    ledger.copied(producer, 0)
    ledger.leave(producer)
    producer = ledger.hello(a_hello(), b"r", 1.0)
    assert credit_of(ledger, producer).granted_through == 4 + 8
    ledger.copied(producer, 1)
    assert credit_of(ledger, producer).granted_through == 8 + 8


def test_a_checkpoint_between_two_batches_of_one_unroll() -> None:
    """The lanes that were applied are skipped when the unroll comes again."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    for seq in (0, 1, 2):
        ledger.receive(producer, an_unroll(seq))
    ledger.applied(producer, 0, 4)
    ledger.applied(producer, 1, 3)
    ledger.applied(producer, 2, 4)
    resumed = Ledger(epoch=2, window_lanes=8, lease_s=10.0)
    resumed.restore(ledger.records())
    again = resumed.hello(a_hello(), b"r", 0.0)
    assert again.next_seq == 1
    assert resumed.receive(again, an_unroll(2)) is None
    assert resumed.records() == ledger.records()
    assert resumed.receive(again, an_unroll(1)) == 3
    resumed.applied(again, 1, 1)
    assert again.next_seq == 3


def test_unrolls_whose_updates_were_lost_are_not_waited_for() -> None:
    """A resumed learner skips numbers that the producer has forgotten on an acknowledgement, and counts them."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(oldest_seq=5), b"r", 0.0)
    assert producer.next_seq == 5
    assert ledger.lost_unrolls == 5
    assert ledger.receive(producer, an_unroll(5)) == 0


def test_a_number_far_ahead_breaks_the_protocol() -> None:
    """Memory is bounded against a wild peer."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    with pytest.raises(RemoteWireError, match="0 is expected"):
        ledger.receive(producer, an_unroll(MAX_AHEAD))


def test_episodes_are_counted_once_and_in_order() -> None:
    """One behind a gap comes again after it."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)

    def receive(seq: int) -> bool:
        return ledger.receive_episodes(
            producer, Episodes(session=1, seq=seq, mode="train", evaluation=0, count=0, aborted=0, acted_steps=0)
        )

    assert [receive(seq) for seq in (1, 0, 0, 1)] == [False, True, False, True]


def test_forgotten_incarnations_are_the_oldest_silent_ones() -> None:
    """A run with endless restarts does not grow for ever."""
    ledger = a_ledger()
    for incarnation in range(MAX_REMEMBERED + 10):
        ledger.leave(ledger.hello(a_hello(incarnation), b"r", 0.0))
    kept = [record.incarnation for record in ledger.records()]
    assert len(kept) <= MAX_REMEMBERED + 1
    assert kept[-1] == MAX_REMEMBERED + 9


def test_due_names_those_whose_figures_changed() -> None:
    """CREDIT goes out when there is news."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    credit_of(ledger, producer)
    assert ledger.due() == []
    ledger.receive(producer, an_unroll(0))
    ledger.copied(producer, 0)
    assert ledger.due() == [producer]


def test_a_closed_connection_is_not_sent_to() -> None:
    """Until the producer is heard again."""
    ledger = a_ledger()
    producer = ledger.hello(a_hello(), b"r", 0.0)
    ledger.book.closed(b"r", 0.5)
    assert producer.detached_at == 0.5
    assert ledger.find(producer.id, b"s", 1.0) is producer
    assert (producer.route, producer.detached_at) == (b"s", None)


def a_task_hello(task: str, incarnation: int = 7) -> ProducerHello:
    return ProducerHello(library_version="0", name="p", incarnation=incarnation, nonce=1, task=task)


def test_credit_is_each_tasks_own() -> None:
    """By weight among the tasks that are there, in equal parts among a task's producers; none without a task."""
    ledger = Ledger(epoch=1, window_lanes=16, lease_s=10.0, weights={"a": 0.75, "b": 0.25})
    reader = ledger.hello(a_task_hello(""), b"r", 0.0)
    assert credit_of(ledger, reader).granted_through == 0
    alone = ledger.hello(a_task_hello("b"), b"r", 0.0)
    assert credit_of(ledger, alone).granted_through == 16
    first = ledger.hello(a_task_hello("a"), b"r", 0.0)
    assert credit_of(ledger, first).granted_through == 12
    second = ledger.hello(a_task_hello("a", incarnation=8), b"s", 0.0)
    assert credit_of(ledger, second).granted_through == 6


def test_one_tasks_backlog_takes_nothing_from_another() -> None:
    """Numbers, credit and acknowledgements of a producer's tasks are apart, and so they are kept."""
    weights = {"a": 0.5, "b": 0.5}
    ledger = Ledger(epoch=1, window_lanes=8, lease_s=10.0, weights=weights)
    producers = {task: ledger.hello(a_task_hello(task), b"r", 0.0) for task in weights}
    stuck, going = producers["a"], producers["b"]
    ledger.receive(stuck, an_unroll(0, 4))
    for seq in range(5):
        assert credit_of(ledger, going).granted_through == 4 * (seq + 1)
        assert ledger.receive(going, an_unroll(seq, 4)) == 0
        ledger.copied(going, seq)
        ledger.applied(going, seq, 4)
    assert credit_of(ledger, stuck).granted_through == 4
    assert (stuck.next_seq, going.next_seq) == (0, 5)
    resumed = Ledger(epoch=2, window_lanes=8, lease_s=10.0, weights=weights)
    resumed.restore(ledger.records())
    assert {task: resumed.hello(a_task_hello(task), b"r", 0.0).next_seq for task in weights} == {"a": 0, "b": 5}


def test_held_credit_is_due_once_it_is_free() -> None:
    """Nothing is granted meanwhile, whatever was copied; what was granted before stays."""
    ledger = a_ledger(window=1)
    producer = ledger.hello(a_hello(), b"r", 0.0)
    assert credit_of(ledger, producer).granted_through == 1
    ledger.hold(True)
    ledger.receive(producer, an_unroll(0, lanes=4))
    ledger.copied(producer, 0)
    assert credit_of(ledger, producer).granted_through == 1
    assert ledger.due() == []
    ledger.hold(False)
    assert ledger.due() == [producer]
    assert credit_of(ledger, producer).granted_through == 5
