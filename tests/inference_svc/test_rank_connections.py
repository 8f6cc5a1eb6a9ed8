"""Inference's connections to learner ranks, of which a learner has another number in each of its lives."""

import structlog

from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.rank_connections import RankConnections, send_unrolls
from seedbed.learner_svc.run.writer import of_rank
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import Bye, Message, ProducerHello, RunState, Unroll
from tests.support.unroll_link import producer_welcome


class Rank:
    """A rank of one life of the learner, with its real ledger, which uses every unroll as soon as it comes.

    Also the connection to it. It answers when the test says so.
    """

    def __init__(self, epoch: int, records=(), on_message=None, on_event=None) -> None:
        self.ledger = Ledger(epoch=epoch, window_lanes=8, lease_s=10.0)
        self.ledger.restore(records)
        self.on_message, self.on_event = on_message, on_event
        self.trained: list[tuple[int, int]] = []  # stream and number
        self._arrived: list[Message] = []

    def send(self, frames) -> bool:
        self._arrived.append(decode(bytes(frames[0])))
        return True

    def complaints(self, now: float) -> list[str]:
        return []

    def close(self, linger_ms: int = 0) -> None:
        self._arrived.clear()

    def answer(self) -> None:
        """Answer what has arrived, and return credit."""
        arrived, self._arrived = self._arrived, []
        for message in arrived:
            if isinstance(message, ProducerHello):
                producer = self.ledger.hello(message, b"", 0.0)
                self._say(
                    producer_welcome(
                        nonce=message.nonce, session=producer.id, epoch=self.ledger.epoch, next_seq=producer.next_seq
                    )
                )
            elif isinstance(message, Bye) and (producer := self.ledger.sessions.get(message.session)):
                self.ledger.leave(producer)
            elif (
                isinstance(message, Unroll)
                and (producer := self.ledger.find(message.session, b"", 0.0))
                and self.ledger.receive(producer, message) is not None
            ):
                self.trained.append((producer.stream, message.seq))
                self.ledger.applied(producer, message.seq, message.lanes)
        for producer in self.ledger.due():
            self._say(self.ledger.credit(producer, state=RunState.TRAINING, trained_steps=0))

    def _say(self, message: Message) -> None:
        self.on_message([encode(message)])


class Run:
    """One life of inference, and several of the learner."""

    def __init__(self) -> None:
        self.sessions = LearnerSessions(name="i", incarnation=7, library_version="0", load=lambda: ())
        self.chief = Rank(0)
        self.ranks = [self.chief]
        self.connections = RankConnections(
            self.sessions, self, dial=self._dial, on_credit=lambda _task: None, on_refused_message=lambda: None,
            log=structlog.get_logger(), now=lambda: 0.0,
        )  # fmt: skip
        self._records: list = []
        self._size = 1

    def send(self, frames) -> bool:
        """The connection to the chief of the present life."""
        return self.chief.send(frames)

    def _dial(self, address: str, on_message, on_event) -> Rank:
        rank = Rank(self.chief.ledger.epoch, of_rank(self._records, len(self.ranks), self._size), on_message, on_event)
        self.ranks.append(rank)
        return rank

    def begin_life(self, epoch: int, size: int) -> None:
        """A learner with so many ranks goes on with what the ledgers of the former life hold."""
        self._records = [record for rank in self.ranks for record in rank.ledger.records()]
        self._size = size
        self.chief = Rank(epoch, of_rank(self._records, 0, size), self._from_chief)
        self.ranks = [self.chief]
        self.sessions.disconnected(0.0)
        self.connections.chief_event("disconnected")
        self.connections.follow([f"tcp://rank-{rank}:1" for rank in range(1, size)], "tcp://rank-0:1")
        self.sessions.connected(0.0)
        self.connections.chief_event("connected")
        for rank in self.ranks[1:]:
            rank.on_event("connected")
        self.exchange()

    def _from_chief(self, frames) -> None:
        message = decode(frames[0])
        self.sessions.receive(message, [], 0.0)
        self.connections.receive_over_chief(message, [])

    def exchange(self) -> None:
        """Let both ends say all that they have to say."""
        for _ in range(4):
            for frames in self.sessions.poll(0.0):
                self.send(frames)
            send_unrolls(self.sessions, self)
            self.connections.poll(0.0)
            for rank in self.ranks:
                rank.answer()

    def train(self, unrolls: int) -> list[tuple[int, int]]:
        """Push unrolls where credit is left; (stream, number) of those that the ranks have trained on, in order."""
        for rank in self.ranks:
            rank.trained.clear()
        for _ in range(unrolls):
            outbox = self.sessions.of("").choose(4)
            assert outbox is not None
            outbox.push(4, [b"u"])
        self.exchange()
        return sorted(item for rank in self.ranks for item in rank.trained)


def test_every_unroll_is_trained_on_once_with_two_ranks_then_one_then_two_again():
    """By an inference service that lives through all of it: the learner remembers the numbers of each stream."""
    run = Run()
    run.begin_life(1, 2)
    assert run.train(4) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    run.begin_life(2, 1)
    assert run.train(2) == [(0, 2), (0, 3)]
    assert [producer.stream for producer in run.chief.ledger.sessions.values()] == [0], "stream 1 has said BYE"
    run.begin_life(3, 2)
    assert run.train(4) == [(0, 4), (0, 5), (1, 2), (1, 3)]
    assert run.sessions.is_empty
    assert sum(rank.ledger.duplicate_unrolls + rank.ledger.lost_unrolls for rank in run.ranks) == 0


def test_unrolls_of_a_rank_that_is_gone_are_trained_on_by_another():
    """Those that it had not used, once; and its stream goes on when it is back."""
    run = Run()
    run.begin_life(1, 2)
    run.sessions.streams[1].main.outbox.push(4, [b"u"])
    run.begin_life(2, 1)
    assert run.chief.trained == [(1, 0)]
    run.begin_life(3, 2)
    assert run.train(2) == [(0, 0), (1, 1)]
