"""The producer's end of the unroll link, which carries unrolls from inference to learner exactly once.

The learner's end is `seedbed.shared.protocol.ledger`. The rules of both ends:
  1. UNROLLs of one producer incarnation are numbered 0, 1, 2, …; EPISODES are numbered apart.
  2. The producer keeps a message until it is acknowledged, and sends it again if a new WELCOME or a PONG shows that
     it is missing.
  3. The learner applies a number at most once. If some lanes of an UNROLL were applied before a restart, only the
     others are applied, so that a checkpoint may fall between two batches that share it.
  4. Credit is a position in the producer's stream of lane-unrolls, counted from the `next_seq` of the session's
     first WELCOME. An UNROLL may be sent while its first lane lies below `granted_through`; so the last one may
     overshoot by its own lanes, and a message larger than the window can still be sent. A repeated UNROLL needs no
     new credit.
  5. Credit returns when an unroll is copied into a batch; its acknowledgement follows the update that used it.
  6. With a learner on the same machine an UNROLL may be in shared memory (`seedbed.shared.protocol.segment`). The
     producer keeps it here all the same, so everything above holds whichever way it went.
  7. All positions are absolute and repeated with every PONG; those of another session or epoch are ignored.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seedbed.shared.protocol.messages import Credit, Episodes, ProducerWelcome, Unroll
from seedbed.shared.protocol.segment import Segment

Frame = bytes | bytearray | memoryview

MAX_EPISODES = 4096  # unacknowledged EPISODES kept by a producer


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send now. Call `Outbox.sent` once the socket has accepted it."""

    message: Unroll | Episodes
    frames: tuple[Frame, ...]


@dataclass(slots=True)
class _Kept:
    """An UNROLL that has not been acknowledged."""

    header: Unroll  # complete except for the session
    position: int  # of its first lane in this incarnation's stream
    frames: tuple[Frame, ...]

    @property
    def seq(self) -> int:
        """The UNROLL's number in this incarnation."""
        return self.header.seq

    @property
    def lanes(self) -> int:
        """How many lanes the UNROLL carries."""
        return self.header.lanes


class Outbox:
    """A producer's unacknowledged unrolls and episodes. Owned by inference's loop.

    Large because unrolls and episodes each keep positions for sent, received and acknowledged.

    Memory: the unacknowledged messages. The owner bounds it by holding a group whose unroll is complete unless
    `can_send`: then it is at most the granted window and one unroll per group.
    """

    def __init__(self) -> None:
        self.session = 0  # 0 while there is none
        self.epoch = 0
        self.segment: Segment | None = None  # of this session, which unrolls go through while they find a place
        self.resent_unrolls = 0  # totals
        self.shared_unrolls = 0  # that were sent through a segment
        self.acked_unrolls = 0
        self.dropped_episodes = 0
        self._granted_through = 0
        self._unrolls: deque[_Kept] = deque()
        self._num_sent = 0  # how many of `_unrolls`, from the left, were sent in this session
        self._next_seq = 0
        self._next_start = 0
        self._stream = (0, 0)  # (session, epoch) from whose WELCOME `_base` and `_granted_through` count
        self._base = 0  # stream position of the session's first unroll
        self._unacked_lanes = 0
        self._received_through = 0  # number of the first unroll that the learner may not have received
        self._episodes: deque[tuple[Episodes, tuple[Frame, ...]]] = deque()
        self._num_episodes_sent = 0
        self._next_episodes_seq = 0
        self._pings: deque[tuple[int, int, int]] = deque(maxlen=16)  # (sent_ms, unrolls, episodes sent before it)

    @property
    def oldest_seq(self) -> int:
        """The number of the first UNROLL that can still be sent, for ProducerHello."""
        return self._unrolls[0].seq if self._unrolls else self._next_seq

    @property
    def oldest_episodes_seq(self) -> int:
        """The number of the first EPISODES that can still be sent, for ProducerHello."""
        return self._episodes[0][0].seq if self._episodes else self._next_episodes_seq

    @property
    def is_empty(self) -> bool:
        """Whether all messages were acknowledged, so that a drain is done."""
        return not self._unrolls and not self._episodes

    @property
    def unacked_lanes(self) -> int:
        """The number of lane-unrolls that are not acknowledged."""
        return self._unacked_lanes

    @property
    def unreceived_lanes(self) -> int:
        """The number of lane-unrolls that the learner may not have received, which are lost if the producer leaves."""
        return sum(kept.lanes for kept in self._unrolls if kept.seq >= self._received_through)

    @property
    def is_received(self) -> bool:
        """Whether the learner has received all messages, used or not."""
        return not self._episodes and (not self._unrolls or self._unrolls[-1].seq < self._received_through)

    def can_send(self, lanes: int) -> bool:
        """Whether an unroll of `lanes` pushed now could be sent with the present credit."""
        return lanes > 0 and self.open_lanes > 0

    @property
    def open_lanes(self) -> int:
        """How many more lane-unrolls the present credit allows, none without a session; a last unroll may overshoot."""
        return max(0, self._granted_through - (self._next_start - self._base)) if self.session else 0

    def push(
        self, lanes: int, frames: Sequence[Frame], *, actor: str = "", group: int = 0, first_lane: int = 0,
        start: int = 0,
    ) -> int:  # fmt: skip
        """Add a complete unroll and return its number. The buffers belong to the outbox from now on.

        Arguments are the fields of an UNROLL.
        """
        header = Unroll(
            session=0, seq=self._next_seq, lanes=lanes, actor=actor, group=group, first_lane=first_lane, start=start
        )
        kept = _Kept(header, self._next_start, tuple(frames))
        self._unrolls.append(kept)
        self._next_seq += 1
        self._next_start += lanes
        self._unacked_lanes += lanes
        return kept.seq

    def push_episodes(
        self, frames: Sequence[Frame], *, count: int, acted_steps: int, mode: str = "train", evaluation: int = 0,
        aborted: int = 0,
    ) -> int:  # fmt: skip
        """Add an EPISODES message and return its number."""
        message = Episodes(
            session=0, seq=self._next_episodes_seq, mode=mode, evaluation=evaluation, count=count, aborted=aborted,
            acted_steps=acted_steps,
        )  # fmt: skip
        if len(self._episodes) == MAX_EPISODES:
            self._episodes.popleft()
            self._num_episodes_sent = max(0, self._num_episodes_sent - 1)
            self.dropped_episodes += 1
        self._episodes.append((message, tuple(frames)))
        self._next_episodes_seq += 1
        return message.seq

    def welcome(self, welcome: ProducerWelcome) -> None:
        """Begin or resume a session: drop the messages that the learner has applied, and send the others again.

        The caller has checked that the nonce is that of its newest HELLO.
        """
        self.session, self.epoch = welcome.session, welcome.epoch
        self._forget(welcome.next_seq, welcome.next_episodes_seq)
        self._received_through = welcome.next_seq
        if self._stream != (self.session, self.epoch):
            self._stream = (self.session, self.epoch)
            self._granted_through = 0
            self._base = self._unrolls[0].position if self._unrolls else self._next_start
        self._pings.clear()
        self.resent_unrolls += self._num_sent
        self._num_sent = 0
        self._num_episodes_sent = 0

    def lost_session(self) -> None:
        """Send nothing until the next WELCOME, because the session or the connection was lost."""
        self.session = self._received_through = 0
        self._pings.clear()

    def discard(self) -> int:
        """Drop all messages and return how many lane-unrolls are lost. The caller then says HELLO again."""
        lanes = self._unacked_lanes
        self.lost_session()
        self._stream = (0, 0)
        self._unrolls.clear()
        self._episodes.clear()
        self._num_sent = self._num_episodes_sent = self._unacked_lanes = 0
        return lanes

    def credit(self, credit: Credit) -> None:
        """Take CREDIT. Old positions change nothing; those of another session or epoch are ignored."""
        if not self.session or (credit.session, credit.epoch) != (self.session, self.epoch):
            return
        self._granted_through = max(self._granted_through, credit.granted_through)
        self._forget(credit.acked_through, credit.episodes_acked_through)
        if self.segment is not None:
            self.segment.free(credit.received_through)

    def next_outgoing(self) -> Outgoing | None:
        """Return the next message to send; None without one, a session, or credit, which EPISODES do not need."""
        if not self.session:
            return None
        if self._num_episodes_sent < len(self._episodes):
            kept, frames = self._episodes[self._num_episodes_sent]
            message = Episodes(
                session=self.session, seq=kept.seq, mode=kept.mode, evaluation=kept.evaluation, count=kept.count,
                aborted=kept.aborted, acted_steps=kept.acted_steps,
            )  # fmt: skip
            return Outgoing(message, frames)
        if self._num_sent == len(self._unrolls):
            return None
        unroll = self._unrolls[self._num_sent]
        if unroll.position - self._base >= self._granted_through:
            return None
        header = replace(unroll.header, session=self.session)
        place = self.segment.put(unroll.seq, unroll.frames) if self.segment is not None else None
        if place is None:
            return Outgoing(header, unroll.frames)
        return Outgoing(replace(header, segment=place.segment, offset=place.offset, length=place.length), ())

    def sent(self, outgoing: Outgoing) -> None:
        """Note that the socket has accepted the message from `next_outgoing`."""
        if isinstance(outgoing.message, Unroll):
            self._num_sent += 1
            self.shared_unrolls += outgoing.message.segment != 0
        else:
            self._num_episodes_sent += 1

    def pinged(self, sent_ms: int) -> None:
        """Note that a PING is being sent; messages sent before it have arrived when its PONG returns."""
        episodes = self.oldest_episodes_seq + self._num_episodes_sent
        self._pings.append((sent_ms, self.oldest_seq + self._num_sent, episodes))

    def pong(self, sent_ms: int, received_through: int) -> None:
        """Take the PONG to the PING of `sent_ms`, and send UNROLLs again from the first one that the learner misses.

        EPISODES are acknowledged on arrival, and CREDIT precedes PONG: those not acknowledged by then were lost.
        """
        for ping_ms, unrolls_before, episodes_before in self._pings:
            if ping_ms == sent_ms:
                self._received_through = max(self._received_through, received_through)
                if received_through < unrolls_before:
                    place = max(0, received_through - self.oldest_seq)
                    self.resent_unrolls += max(0, self._num_sent - place)
                    self._num_sent = min(self._num_sent, place)
                if self.oldest_episodes_seq < episodes_before:
                    self._num_episodes_sent = 0
                return

    def _forget(self, acked_through: int, episodes_acked_through: int) -> None:
        while self._unrolls and self._unrolls[0].seq < acked_through:
            self._unacked_lanes -= self._unrolls.popleft().lanes
            self._num_sent = max(0, self._num_sent - 1)
            self.acked_unrolls += 1
        while self._episodes and self._episodes[0][0].seq < episodes_acked_through:
            self._episodes.popleft()
            self._num_episodes_sent = max(0, self._num_episodes_sent - 1)
