"""Outbox and Ledger over a network that loses, doubles and reorders, with learners that die and resume.

Half of the producers send unrolls through shared memory, in segments that are full now and then.
"""

import copy
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from seedbed.shared.protocol.ledger import Ledger, Producer, ProducerRecord
from seedbed.shared.protocol.messages import Episodes, Get, ProducerHello, ProducerWelcome, RunState, Unroll
from seedbed.shared.protocol.outbox import Frame, Outbox
from seedbed.shared.protocol.segment import OpenedSegment, Segment
from tests.support.simulated_network import NetworkFaults, SimulatedNetwork
from tests.support.unroll_link import producer_welcome

BATCH = 5
WINDOW = 12
MAX_LANES = 7
STORM_TICKS = 250
MAX_DELAYS_S = (0.5, 1.0, 4.0)  # a tick is a second
Lane = tuple[int, int, int]  # incarnation, seq, lane
SEGMENT_BYTES = 64  # of which an unroll takes 16
Send = Callable[[int, Any], None]  # (incarnation of the producer, message, or UNROLL with its frames)


def a_payload(incarnation: int, seq: int) -> bytes:
    """What the unroll of this number consists of."""
    return b"%8d%8d" % (incarnation, seq)


class SimulatedProducer:
    """Inference's end: an outbox and the least of a conversation."""

    def __init__(self, incarnation: int, send: Send, folder: Path | None) -> None:
        """`folder` is that of its segments; None: it has no shared memory."""
        self.incarnation, self.send, self.folder = incarnation, send, folder
        self.outbox = Outbox()
        self.segment: Segment | None = None
        self.pushed: dict[int, int] = {}
        self.is_welcome = False
        self.nonce = -1

    def tick(self, now: int, rng: random.Random, *, may_push: bool) -> None:
        if may_push and self.outbox.can_send(1):
            lanes = rng.randint(1, MAX_LANES)
            payload = a_payload(self.incarnation, len(self.pushed))
            self.pushed[self.outbox.push(lanes, [payload])] = lanes
            if rng.random() < 0.3:
                self.outbox.push_episodes([b"e"], count=1, acted_steps=1)
        if not self.is_welcome and now % 3 == 0:
            self.nonce = now
            if self.segment is None and self.folder is not None:
                self.segment = Segment(SEGMENT_BYTES, self.folder)
            hello = ProducerHello(
                library_version="0", name="p", incarnation=self.incarnation, nonce=now,
                oldest_seq=self.outbox.oldest_seq, oldest_episodes_seq=self.outbox.oldest_episodes_seq,
                segment=self.segment.id if self.segment is not None else 0, segment_bytes=SEGMENT_BYTES,
            )  # fmt: skip
            self.send(self.incarnation, hello)
        elif self.is_welcome and now % 5 == 0:
            self.outbox.pinged(now)
            self.send(self.incarnation, now)
            get = Get(session=self.outbox.session, have_version=0, have_manifest="")
            self.send(self.incarnation, get)
        while (outgoing := self.outbox.next_outgoing()) is not None:
            is_unroll = isinstance(outgoing.message, Unroll)
            self.send(self.incarnation, (outgoing.message, outgoing.frames) if is_unroll else outgoing.message)
            self.outbox.sent(outgoing)

    def receive(self, message: Any) -> None:
        if isinstance(message, ProducerWelcome):
            if message.nonce != self.nonce or self.is_welcome:
                return
            self.is_welcome = True
            self.outbox.welcome(message)
            if self.segment is not None and message.segment_secret == self.segment.secret:
                self.outbox.segment = self.segment
            else:
                self.close()
        elif isinstance(message, tuple):
            self.outbox.pong(*message)
        elif isinstance(message, int):  # CHALLENGE of a session
            if message == self.outbox.session:
                self.disconnect()
        else:
            self.outbox.credit(message)

    def disconnect(self) -> None:
        """Begin anew; what is on its way over the old connection may still arrive."""
        self.outbox.lost_session()
        self.is_welcome = False
        self.close()

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()
        self.segment = self.outbox.segment = None


class SimulatedLearner:
    """The learner's end: a ledger, a queue of lanes, updates of BATCH lanes, checkpoints."""

    def __init__(
        self, epoch: int, send: Send, folder: Path, saved: tuple[list[ProducerRecord], list[Lane], int]
    ) -> None:
        records, lineage, episodes = saved
        self.folder = folder
        self.readers: dict[Producer, OpenedSegment] = {}
        self.num_shared = 0  # unrolls that came through shared memory
        self.epoch, self.send = epoch, send
        self.ledger = Ledger(epoch=epoch, window_lanes=WINDOW, lease_s=50.0)
        self.ledger.restore(records)
        self.lineage = list(lineage)
        self.episodes = episodes
        self.waiting: deque[tuple[Producer, int, int, int]] = deque()  # producer, seq, next lane, lanes
        self.lanes: deque[tuple[Producer, int, int]] = deque()  # copied, at most two batches

    def save(self) -> tuple[list[ProducerRecord], list[Lane], int]:
        return copy.deepcopy((self.ledger.records(), self.lineage, self.episodes))

    def open_segment(self, hello: ProducerHello, producer: Producer) -> int:
        """As ProducerSessions does."""
        reader = self.readers.get(producer)
        if reader is None or reader.id != hello.segment:
            if reader is not None:
                self.readers.pop(producer).close()
            reader = OpenedSegment.open(hello.segment, hello.segment_bytes, self.folder)
            if reader is not None:
                self.readers[producer] = reader
        return reader.secret if reader is not None else 0

    def read(self, producer: Producer, unroll: Unroll, frames: tuple[Frame, ...]) -> Frame | None:
        reader = self.readers.get(producer)
        if not unroll.segment:
            return frames[0]
        if reader is None or reader.id != unroll.segment:
            return None
        self.num_shared += 1
        return reader.read(unroll.offset, unroll.length)

    def close(self) -> None:
        for reader in self.readers.values():
            reader.close()

    def receive(self, incarnation: int, message: Any, now: float, frames: tuple[Frame, ...] = ()) -> None:
        if isinstance(message, tuple):
            message, frames = message
        if isinstance(message, ProducerHello):
            producer = self.ledger.hello(message, b"%d" % incarnation, now)
            welcome = producer_welcome(
                nonce=message.nonce, session=producer.id, epoch=self.epoch, next_seq=producer.next_seq,
                next_episodes_seq=producer.next_episodes_seq, segment_secret=self.open_segment(message, producer),
            )  # fmt: skip
            self.send(incarnation, welcome)
        elif isinstance(message, int):
            self.ledger.book.renew(b"%d" % incarnation, now)
            for producer in self.ledger.book.on_route(b"%d" % incarnation):
                self.send_credit(producer)
                self.send(incarnation, (message, producer.received_through))
        elif (found := self.ledger.find(message.session, b"%d" % incarnation, now)) is None:
            self.send(incarnation, message.session)
        elif isinstance(message, Unroll):
            payload = self.read(found, message, frames)
            if payload is None:
                self.send(incarnation, message.session)
                return
            skip = self.ledger.receive(found, message)
            if skip is not None:
                assert payload == a_payload(incarnation, message.seq), "another unroll's rows"
                self.waiting.append((found, message.seq, skip, message.lanes))
        elif isinstance(message, Episodes) and self.ledger.receive_episodes(found, message):
            self.episodes += 1

    def fill(self) -> None:
        while self.waiting and len(self.lanes) < 2 * BATCH:
            producer, seq, lane, lanes = self.waiting.popleft()
            self.lanes.append((producer, seq, lane))
            if lane + 1 == lanes:
                self.ledger.copied(producer, seq)
            else:
                self.waiting.appendleft((producer, seq, lane + 1, lanes))

    def update(self, size: int = BATCH) -> None:
        self.fill()
        if len(self.lanes) >= size:
            for _ in range(size):
                producer, seq, lane = self.lanes.popleft()
                self.lineage.append((producer.incarnation, seq, lane))
                self.ledger.applied(producer, seq, 1)
        for producer in self.ledger.due():
            self.send_credit(producer)

    def send_credit(self, producer: Producer) -> None:
        credit = self.ledger.credit(producer, state=RunState.TRAINING, trained_steps=0)
        self.send(producer.incarnation, credit)


def simulate(seed: int, folder: Path, *, restarts: bool) -> Counter[str]:
    """A stormy time, then a calm one until everything is acknowledged; then the books are checked.

    Returns: how often it came to what makes a storm.
    """
    rng = random.Random(seed)
    severity, max_delay_s = rng.choice([0.0, 0.05, 0.3]), rng.choice(MAX_DELAYS_S)
    storm = NetworkFaults(loss=severity, double=severity, reorder=2 * severity, max_delay_s=max_delay_s)
    network = SimulatedNetwork(seed, storm)

    def send_up(incarnation: int, message: Any) -> None:
        network.send((incarnation, "up"), arrive_up, incarnation, message)

    def arrive_up(incarnation: int, message: Any) -> None:
        learner.receive(incarnation, message, network.now)  # the one that lives then

    def send_down(incarnation: int, message: Any) -> None:
        network.send((incarnation, "down"), producers[incarnation].receive, message)

    producers = {
        number: SimulatedProducer(number, send_up, folder if number % 2 else None)
        for number in range(1, rng.randint(2, 4))
    }
    saved: tuple[list[ProducerRecord], list[Lane], int] = ([], [], 0)
    learner = SimulatedLearner(1, send_down, folder, saved)
    duplicates = num_shared = 0  # unrolls that came again, and those through shared memory
    acked: set[tuple[int, int]] = set()
    acked_by_the_dead: set[tuple[int, int]] = set()
    for now in range(1200):
        is_storm = now < STORM_TICKS
        if now == STORM_TICKS:
            network.faults = NetworkFaults(max_delay_s=max_delay_s)
        if restarts and is_storm and rng.random() < 0.02:
            acked_by_the_dead |= {
                (record.incarnation, seq) for record in learner.ledger.records() for seq in range(record.next_seq)
            }
            duplicates += learner.ledger.duplicate_unrolls
            num_shared += learner.num_shared
            learner.close()
            learner = SimulatedLearner(learner.epoch + 1, send_down, folder, saved)
        elif rng.random() < 0.05:
            saved = learner.save()
        for producer in producers.values():
            if is_storm and rng.random() < 0.03:
                producer.disconnect()
            producer.tick(now, rng, may_push=is_storm and rng.random() < 0.5)
        network.run(1.0)
        learner.ledger.expire(now)
        if rng.random() < 0.5 or not is_storm:
            learner.update(BATCH if now < 600 else 1)
        held = sum(lanes - lane for _, _, lane, lanes in learner.waiting)
        assert held < (WINDOW + MAX_LANES) * len(producers), "credit does not bound the learner's memory"
        for number, producer in producers.items():
            acked |= {(number, seq) for seq in producer.pushed if seq < producer.outbox.oldest_seq}
        if not is_storm and all(producer.outbox.is_empty for producer in producers.values()):
            break
    assert all(producer.outbox.is_empty for producer in producers.values()), "something was never acknowledged"
    assert len(set(learner.lineage)) == len(learner.lineage), "a lane was applied twice"
    complete = {(n, seq) for n, p in producers.items() for seq in p.pushed}
    assert acked == complete
    lanes = {(n, seq, lane) for n, p in producers.items() for seq, count in p.pushed.items() for lane in range(count)}
    missing = {(n, seq) for n, seq, _ in lanes - set(learner.lineage)}
    assert set(learner.lineage) <= lanes
    assert missing <= acked_by_the_dead, "a complete unroll was lost"
    if learner.epoch == 1:
        assert learner.episodes == sum(producer.outbox.oldest_episodes_seq for producer in producers.values())
    duplicates += learner.ledger.duplicate_unrolls
    for end in (learner, *producers.values()):
        end.close()
    return Counter(
        lost=network.lost, doubled=network.doubled, overtaken=network.overtaken, duplicates=duplicates,
        restarts=learner.epoch - 1, shared=num_shared + learner.num_shared,
    )  # fmt: skip


def simulate_all(seeds: Iterable[int], folder: Path, *, restarts: bool) -> None:
    """Storm after storm; together they must have been storms."""
    seen = sum((simulate(seed, folder, restarts=restarts) for seed in seeds), Counter())
    assert min(seen["lost"], seen["doubled"], seen["overtaken"], seen["duplicates"], seen["shared"]) > 20
    assert not list(folder.iterdir())
    assert (seen["restarts"] > 10) is restarts


@pytest.mark.parametrize("block", range(4))
def test_nothing_is_lost_or_applied_twice(block: int, shm_folder: Path) -> None:
    """Without deaths every complete unroll is applied exactly once, whatever the network does."""
    simulate_all(range(block * 8, block * 8 + 8), shm_folder, restarts=False)


@pytest.mark.parametrize("block", range(4))
def test_learners_that_resume_from_checkpoints_apply_nothing_twice(block: int, shm_folder: Path) -> None:
    """What a resumed learner misses had been acknowledged by the life that was lost; everything else is applied."""
    simulate_all(range(1000 + block * 8, 1000 + block * 8 + 8), shm_folder, restarts=True)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_many_storms(restarts: bool, shm_folder: Path) -> None:
    """The same over two thousand seeds."""
    simulate_all(range(10_000, 12_000), shm_folder, restarts=restarts)
