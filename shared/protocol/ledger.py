"""The learner's end of the unroll link: credit, and the numbers received, applied and acknowledged.

The rules are in the docstring of `seedbed.shared.protocol.outbox`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import Credit, Episodes, Evaluation, ProducerHello, RunState, Unroll
from seedbed.shared.protocol.session_book import LeasedSession, SessionBook

MAX_AHEAD = 1 << 16  # an UNROLL numbered further than this beyond the first missing one is invalid
MAX_REMEMBERED = 4096  # producers (incarnation, task and stream) whose numbers are remembered
Key = tuple[int, str, int]  # incarnation, task and stream
SINGLE_TASK: Mapping[str, float] = {"": 1.0}  # weights of a run with one environment


@dataclass(slots=True)
class _Held:
    """An UNROLL that was received and whose number is not below the first one not applied."""

    lanes: int
    applied: int = 0  # number of lanes applied, from the first on
    is_copied: bool = False

    @property
    def is_applied(self) -> bool:
        """Whether all its lanes were applied."""
        return self.applied == self.lanes


@dataclass(slots=True, eq=False, kw_only=True)
class Producer(LeasedSession):
    """The learner's state of one producer: an incarnation of inference, a task and a stream.

    Its id is 0 without a session.
    """

    incarnation: int
    task: str = ""
    stream: int = 0
    name: str = ""
    next_seq: int = 0  # all numbers below are applied, dropped or lost
    next_episodes_seq: int = 0
    held: dict[int, _Held] = field(default_factory=dict)
    partial: dict[int, int] = field(default_factory=dict)  # from a checkpoint: seq → lanes applied
    stream_lanes: int = 0  # lanes copied since the session's WELCOME, see rule 4
    granted_through: int = 0
    is_due: bool = False  # a CREDIT with new positions should be sent

    @property
    def received_through(self) -> int:
        """The first number that was not received."""
        seq = self.next_seq
        while seq in self.held:
            seq += 1
        return seq


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRecord:
    """A producer in a checkpoint. `applied`: (seq, lanes); `partial`: (seq, lanes applied so far)."""

    incarnation: int
    task: str = ""
    stream: int = 0
    next_seq: int
    next_episodes_seq: int
    applied: tuple[tuple[int, int], ...] = ()
    partial: tuple[tuple[int, int], ...] = ()


class Ledger:
    """The learner's account of every producer's unrolls. Owned by the learner's loop.

    Memory: one small record for each unroll that was received and not acknowledged, bounded by credit.

    Args:
      window_lanes: credit granted beyond the lanes copied, over all producers together: to each task in proportion to
        its weight, to the producers of a task in equal parts. So no task takes the credit of another.
      weights: share of each task, summing to 1.
    """

    def __init__(
        self, *, epoch: int, window_lanes: int, lease_s: float, weights: Mapping[str, float] = SINGLE_TASK
    ) -> None:
        self.epoch = epoch
        self.window_lanes = window_lanes
        self.lease_s = lease_s
        self.duplicate_unrolls = 0  # total, of all epochs
        self.lost_unrolls = 0  # likewise; acknowledged by an earlier epoch whose updates are lost
        self.book: SessionBook[Producer] = SessionBook()
        self.sessions = self.book.sessions  # by id, for reading
        self._weights = weights
        self._producers: dict[Key, Producer] = {}
        self._next_session = (epoch << 20) + 1  # ids of different epochs do not overlap
        self._is_held = False

    def restore(self, records: Iterable[ProducerRecord]) -> None:
        """Restore the records of a checkpoint, before the first HELLO."""
        for record in records:
            self._producers[record.incarnation, record.task, record.stream] = Producer(
                incarnation=record.incarnation, task=record.task, stream=record.stream, lease_s=self.lease_s,
                next_seq=record.next_seq, next_episodes_seq=record.next_episodes_seq,
                held={seq: _Held(lanes, lanes, True) for seq, lanes in record.applied},
                partial=dict(record.partial),
            )  # fmt: skip

    def records(self) -> list[ProducerRecord]:
        """Return what a checkpoint of the updates so far must keep."""
        return [
            ProducerRecord(
                incarnation=producer.incarnation,
                task=producer.task,
                stream=producer.stream,
                next_seq=producer.next_seq,
                next_episodes_seq=producer.next_episodes_seq,
                applied=tuple((seq, held.lanes) for seq, held in producer.held.items() if held.is_applied),
                partial=tuple(producer.partial.items())
                + tuple((s, h.applied) for s, h in producer.held.items() if h.applied > 0 and not h.is_applied),
            )
            for producer in self._producers.values()
        ]

    def has_session(self, hello: ProducerHello) -> bool:
        """Whether this incarnation has a session for its task and stream."""
        producer = self._producers.get((hello.incarnation, hello.task, hello.stream))
        return producer is not None and producer.id != 0

    def hello(self, hello: ProducerHello, route: bytes, now: float) -> Producer:
        """Resume this incarnation's session for a task and stream, or give it a new one."""
        key = hello.incarnation, hello.task, hello.stream
        producer = self._producers.pop(key, None) or Producer(
            incarnation=hello.incarnation, task=hello.task, stream=hello.stream, lease_s=self.lease_s
        )
        self._producers[key] = producer  # youngest last
        is_behind = hello.oldest_seq > producer.next_seq
        if is_behind:
            self._skip_to(producer, hello.oldest_seq)
        producer.next_episodes_seq = max(producer.next_episodes_seq, hello.oldest_episodes_seq)
        producer.name = hello.name
        if not producer.id or is_behind:
            self._open(producer, route)
        self.book.move_to(producer, route, now)
        self._forget_oldest()
        return producer

    def find(self, session: int, route: bytes, now: float) -> Producer | None:
        """Return the session's producer and renew its lease; None for an unknown session, which is to be challenged."""
        producer = self.sessions.get(session)
        if producer is not None:
            self.book.move_to(producer, route, now)
        return producer

    def receive(self, producer: Producer, unroll: Unroll) -> int | None:
        """Take an UNROLL; return how many of its lanes were applied before, or None for a duplicate, to be dropped.

        Raises: RemoteWireError for a number that no producer can have reached within its credit.
        """
        if unroll.seq >= producer.next_seq + MAX_AHEAD:
            raise RemoteWireError("seq_ahead", f"UNROLL {unroll.seq} came while {producer.next_seq} is expected")
        if unroll.seq < producer.next_seq or unroll.seq in producer.held:
            self.duplicate_unrolls += 1
            producer.is_due = True  # its last CREDIT seems to be lost
            return None
        skip = min(producer.partial.pop(unroll.seq, 0), unroll.lanes)
        producer.held[unroll.seq] = _Held(unroll.lanes, skip)
        producer.is_due |= unroll.segment != 0  # its place is free
        return skip

    def copied(self, producer: Producer, seq: int) -> None:
        """Return the credit of an unroll whose frame is no longer needed."""
        held = producer.held.get(seq)
        if held is None or held.is_copied:
            return
        held.is_copied = True
        producer.stream_lanes += held.lanes
        producer.is_due = True

    def applied(self, producer: Producer, seq: int, lanes: int) -> None:
        """Note that an update used, or dropped, the next `lanes` of an unroll; after the last ones acknowledge it."""
        held = producer.held.get(seq)
        if held is None:
            return
        held.applied = min(held.lanes, held.applied + lanes)
        if held.is_applied:  # until then some lanes wait for the next batch, and its frame is held
            self.copied(producer, seq)
        self._advance(producer)

    def hold(self, is_held: bool) -> None:
        """Grant no more credit as long as it is held; the first CREDIT after that is due at once."""
        if self._is_held and not is_held:
            for producer in self.sessions.values():
                producer.is_due = True
        self._is_held = is_held

    def receive_episodes(self, producer: Producer, episodes: Episodes) -> bool:
        """Whether these EPISODES are the next ones, to be counted. Others are duplicates, or will be sent again."""
        producer.is_due = True
        if episodes.seq != producer.next_episodes_seq:
            return False
        producer.next_episodes_seq += 1
        return True

    def credit(
        self, producer: Producer, *, state: RunState, trained_steps: int, evaluation: Evaluation | None = None
    ) -> Credit:
        """Return the producer's present CREDIT. All producers of a task have equal shares of its window."""
        producer.is_due = False
        share = self._share(producer.task)
        if (
            share and state == RunState.TRAINING and not self._is_held
        ):  # before that there is no policy, and an unroll could not be read
            producer.granted_through = max(producer.granted_through, producer.stream_lanes + share)
        return Credit(
            session=producer.id, epoch=self.epoch, granted_through=producer.granted_through,
            acked_through=producer.next_seq, episodes_acked_through=producer.next_episodes_seq, state=int(state),
            trained_steps=trained_steps, evaluation=evaluation, received_through=producer.received_through,
        )  # fmt: skip

    def _share(self, task: str) -> int:
        """Return each producer's share of a task's window, lane-unrolls; 0 for a session without a task."""
        weight = self._weights.get(task, 0.0)
        if not weight:
            return 0
        tasks = [producer.task for producer in self.sessions.values()]
        total = sum(self._weights.get(name, 0.0) for name in set(tasks) | {task})
        return max(1, int(self.window_lanes * weight / total / max(1, tasks.count(task)) + 1e-9))

    def due(self) -> list[Producer]:
        """Return the producers with a session whose positions changed since their last CREDIT."""
        return [producer for producer in self.sessions.values() if producer.is_due]

    def expire(self, now: float) -> list[Producer]:
        """End the sessions whose lease is over. Their credit returns; unrolls that they sent are still used."""
        gone = self.book.expired(now)
        for producer in gone:
            self.leave(producer)
        return gone

    def leave(self, producer: Producer) -> None:
        """End the session of a producer; its numbers are kept."""
        if producer.id:
            self.book.remove(producer)
        producer.id = 0

    def _open(self, producer: Producer, route: bytes) -> None:
        """Open a session, whose stream begins at `next_seq` and includes the unrolls already held."""
        self.leave(producer)
        producer.id, producer.route = self._next_session, route
        self._next_session += 1
        self.book.add(producer)
        producer.stream_lanes = sum(held.lanes for held in producer.held.values() if held.is_copied)
        producer.granted_through = 0
        producer.is_due = True

    def _skip_to(self, producer: Producer, oldest_seq: int) -> None:
        """Skip unrolls that an earlier epoch acknowledged and the producer dropped; their updates are lost."""
        for seq in range(producer.next_seq, min(oldest_seq, producer.next_seq + MAX_AHEAD)):
            if producer.held.pop(seq, None) is None:
                self.lost_unrolls += 1
            producer.partial.pop(seq, None)
        producer.next_seq = oldest_seq
        self._advance(producer)

    def _advance(self, producer: Producer) -> None:
        while (held := producer.held.get(producer.next_seq)) is not None and held.is_applied:
            del producer.held[producer.next_seq]
            producer.next_seq += 1
            producer.is_due = True

    def _forget_oldest(self) -> None:
        if len(self._producers) > MAX_REMEMBERED:
            silent = [key for key, producer in self._producers.items() if not producer.id and not producer.held]
            for key in silent[: len(self._producers) - MAX_REMEMBERED]:
                del self._producers[key]
