"""Unrolls from inference to learner without loss or repetition: the rules, and `Outbox`, the producer's end.

The learner's end is `seedbed.shared.protocol.ledger`. Rules, both ends:
  1. UNROLLs of one producer incarnation are numbered 0, 1, 2, …; EPISODES are numbered apart.
  2. The producer keeps a message until it is acknowledged, and sends again what a new WELCOME or a PONG shows missing.
  3. The learner applies a number at most once. An UNROLL whose first lanes were applied before a restart goes on with
     the others, so that a checkpoint may fall between two batches that share it.
  4. Credit is a position in the producer's stream of lane-unrolls, counted from the `next_seq` of the session's
     first WELCOME. An UNROLL may be sent while its first lane lies below `granted_through`; so the last one may
     overshoot by its own lanes, and a message larger than the window still passes. A repeated UNROLL needs no new
     credit.
  5. Credit returns when an unroll is copied, acknowledgement follows the update that used it.
  6. All figures are absolute and repeated with every PONG; those of another session or epoch are void.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seedbed.shared.protocol.messages import Credit, Episodes, ProducerWelcome, Unroll

Frame = bytes | bytearray | memoryview

MAX_EPISODES = 4096  # unacknowledged EPISODES kept by a producer


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send now. Call `Outbox.sent` when the socket took it."""

    message: Unroll | Episodes
    frames: tuple[Frame, ...]


@dataclass(slots=True)
class _Kept:
    """An UNROLL that is kept until the learner acknowledges it."""

    header: Unroll  # but for the session
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

    Memory: what was pushed and not acknowledged. The owner bounds it by holding groups before they start an unroll
    unless `can_send`: then it is at most the granted window and one unroll per group.
    """

    def __init__(self) -> None:
        self.session = 0  # 0 while there is none
        self.epoch = 0
        self.resent_unrolls = 0  # totals, for metrics
        self.acked_unrolls = 0
        self.dropped_episodes = 0
        self._granted_through = 0
        self._unrolls: deque[_Kept] = deque()
        self._num_sent = 0  # of `_unrolls`, from the left, in this session
        self._next_seq = 0
        self._next_start = 0
        self._stream = (0, 0)  # (session, epoch) from whose WELCOME `_base` and `_granted_through` count
        self._base = 0  # stream position of the session's first unroll
        self._unacked_lanes = 0
        self._received_through = 0  # the first unroll that the learner is not known to have received
        self._episodes: deque[tuple[Episodes, tuple[Frame, ...]]] = deque()
        self._num_episodes_sent = 0
        self._next_episodes_seq = 0
        self._pings: deque[tuple[int, int, int]] = deque(maxlen=16)  # (sent_ms, unrolls, episodes sent before it)

    @property
    def oldest_seq(self) -> int:
        """The first UNROLL that it can still send; goes into every ProducerHello."""
        return self._unrolls[0].seq if self._unrolls else self._next_seq

    @property
    def oldest_episodes_seq(self) -> int:
        """The first EPISODES that it can still send; goes into every ProducerHello."""
        return self._episodes[0][0].seq if self._episodes else self._next_episodes_seq

    @property
    def is_empty(self) -> bool:
        """Whether everything was acknowledged: a drain is done."""
        return not self._unrolls and not self._episodes

    @property
    def unacked_lanes(self) -> int:
        """Lane-unrolls that are kept because nobody has acknowledged them."""
        return self._unacked_lanes

    @property
    def unreceived_lanes(self) -> int:
        """Lane-unrolls that the learner is not known to have: lost if the producer leaves now."""
        return sum(kept.lanes for kept in self._unrolls if kept.seq >= self._received_through)

    @property
    def is_received(self) -> bool:
        """Whether the learner has everything, used or not."""
        return not self._episodes and (not self._unrolls or self._unrolls[-1].seq < self._received_through)

    def can_send(self, lanes: int) -> bool:
        """Whether an unroll of `lanes` that is pushed now, behind what is there, needs no further credit to leave."""
        return self.session != 0 and lanes > 0 and self._next_start - self._base < self._granted_through

    def push(
        self, lanes: int, frames: Sequence[Frame], *, actor: str = "", group: int = 0, first_lane: int = 0,
        start: int = 0,
    ) -> int:  # fmt: skip
        """Keep a complete unroll until it is acknowledged; the buffers belong to the outbox from here. Its number.

        Args: as the fields of an UNROLL.
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
        """Keep an EPISODES message until it is acknowledged. Its number."""
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
        """A session began or was resumed: forget what the learner has, send the rest again from there.

        The caller has compared the nonce: this answers its newest HELLO.
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
        """CHALLENGE, lease or connection lost: send nothing until the next WELCOME."""
        self.session = self._received_through = 0
        self._pings.clear()

    def discard(self) -> int:
        """Forget everything, for the learner is now one of another run; lane-unrolls lost. Say HELLO again after it."""
        lanes = self._unacked_lanes
        self.lost_session()
        self._stream = (0, 0)
        self._unrolls.clear()
        self._episodes.clear()
        self._num_sent = self._num_episodes_sent = self._unacked_lanes = 0
        return lanes

    def credit(self, credit: Credit) -> None:
        """Take the learner's figures; old ones change nothing, those of another session or epoch are void."""
        if not self.session or (credit.session, credit.epoch) != (self.session, self.epoch):
            return
        self._granted_through = max(self._granted_through, credit.granted_through)
        self._forget(credit.acked_through, credit.episodes_acked_through)

    def next_outgoing(self) -> Outgoing | None:
        """What to send next, or None: nothing there, no session, or no credit. Episodes need no credit."""
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
        return Outgoing(replace(unroll.header, session=self.session), unroll.frames)

    def sent(self, outgoing: Outgoing) -> None:
        """The socket took what `next_outgoing` gave."""
        if isinstance(outgoing.message, Unroll):
            self._num_sent += 1
        else:
            self._num_episodes_sent += 1

    def pinged(self, sent_ms: int) -> None:
        """A PING leaves now: what was sent before it must have arrived when its PONG comes."""
        episodes = self.oldest_episodes_seq + self._num_episodes_sent
        self._pings.append((sent_ms, self.oldest_seq + self._num_sent, episodes))

    def pong(self, sent_ms: int, received_through: int) -> None:
        """The PONG to the PING of `sent_ms` shows the first UNROLL that the learner misses: send again from there.

        EPISODES are acknowledged as they arrive, and CREDIT comes before PONG: what is not acknowledged was lost.
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

    def _sent_end(self) -> int:
        if self._num_sent < len(self._unrolls):
            return self._unrolls[self._num_sent].position
        return self._next_start

    def _forget(self, acked_through: int, episodes_acked_through: int) -> None:
        while self._unrolls and self._unrolls[0].seq < acked_through:
            self._unacked_lanes -= self._unrolls.popleft().lanes
            self._num_sent = max(0, self._num_sent - 1)
            self.acked_unrolls += 1
        while self._episodes and self._episodes[0][0].seq < episodes_acked_through:
            self._episodes.popleft()
            self._num_episodes_sent = max(0, self._num_episodes_sent - 1)
