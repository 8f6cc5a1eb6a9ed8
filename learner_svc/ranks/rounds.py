"""Rounds: the ranks meet, learn what the chief has decided, and train if every rank has a batch.

A rank with a second batch goes into the next round while it trains in the present one, so what the ranks say to each
other takes no time of the update thread. A rank without a batch comes to the next round IDLE_S after its last update:
a decision waits for the updates that are agreed on, and no longer.

| in a round | thread | who | says |
|---|---|---|---|
| first, if the last round but one asked for it | rounds | every rank | its ledger as it was after that round |
| then | rounds | every rank | whether it has a batch, what it counted of it, whether it wants to end |
| with that | rounds | the chief | what is to be done |
| then, if all have a batch and the chief trains | update | every rank | its part of the update |
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Generic, TypeVar

from seedbed.learner_svc.learning.selection import CountedBatch, Counts
from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.ranks.ranks import CHIEF, Ranks
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import RunState
from seedbed.shared.runtime.worker import Worker

IDLE_S = 0.02
MAX_OPEN = 2  # rounds at a time, and batches that are taken for them: one is trained on, one is agreed on
CLOSE_S = 0.5
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the chief has decided for a round."""

    trains: bool = False  # if every rank has a batch
    saves: bool = False  # if it trains: the ledgers of every rank as they are then, for the snapshot after it
    wants_ledgers: bool = False  # of every rank, as they are after this round
    builds: bool = False  # the policy, now
    ends: bool = False  # MAX_OPEN more rounds follow, the last of which gathers ledgers
    state: RunState = RunState.STARTING  # of the run

    def numbers(self) -> list[float]:
        """Return the order as it is sent."""
        return [float(getattr(self, item.name)) for item in fields(self)]

    @classmethod
    def read(cls, numbers: Array) -> "Order":
        """Return the order that was sent as these numbers."""
        *flags, state = numbers.tolist()
        names = [item.name for item in fields(cls)]
        return cls(**dict(zip(names, map(bool, flags), strict=False)), state=RunState(int(state)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """What a rank tells of itself with every round: totals since its start."""

    batch_wait_s: float = 0.0  # in which it trained on nothing, for want of a batch
    ranks_wait_s: float = 0.0  # likewise, with a batch, for other ranks; neither while the chief does not train
    trained_lanes: float = 0.0

    def numbers(self) -> list[float]:
        """Return the figures as they are sent."""
        return [self.batch_wait_s, self.ranks_wait_s, self.trained_lanes]

    @classmethod
    def read(cls, numbers: Array) -> "RankFigures":
        """Return the figures that were sent as these numbers."""
        batch_wait_s, ranks_wait_s, trained_lanes = numbers.tolist()
        return cls(batch_wait_s=batch_wait_s, ranks_wait_s=ranks_wait_s, trained_lanes=trained_lanes)

    def since(self, before: "RankFigures") -> "RankFigures":
        """Return how much each total has risen; zero for one that began anew."""
        now, then = self.numbers(), before.numbers()
        batch_wait_s, ranks_wait_s, lanes = (max(0.0, total - former) for total, former in zip(now, then, strict=True))
        return RankFigures(batch_wait_s=batch_wait_s, ranks_wait_s=ranks_wait_s, trained_lanes=lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a round has told of all ranks."""

    order: Order
    ledgers: tuple[bytes, ...]  # by rank, if the round MAX_OPEN before this one asked for them
    figures: tuple[RankFigures, ...]  # by rank
    wants_end: bool  # whether any rank was asked to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Generic[B]):
    """A batch that this rank can train on in the next round in which all can."""

    batch: B
    count: Callable[[], CountedBatch]  # runs in the rounds' thread, in every round until it is agreed
    agree: Callable[[CountedBatch, Sequence[Array]], Counts]  # then, there, with the numbers of every rank's batch
    train: Callable[[CountedBatch, Counts], Trained]  # then, in the update thread
    done: Callable[[Trained], None]  # then, in the loop
    saves: bool = False  # the chief's: a snapshot is taken


@dataclass(frozen=True, slots=True)
class _Agreed(Generic[B]):
    """The result of the first part of a round; without a batch where none is trained on."""

    meeting: Meeting
    offer: Offer[B] | None
    train: Callable[[], Trained] | None


class Rounds(Generic[B]):
    """The rounds of one rank. Owned by its loop; the ranks talk in a thread of the rounds' own, and train in another.

    Large because it knows how far the present rounds have come, and what is owed to the next.

    Args:
      ranks: of which its exchange for rounds is used, and whether this is the chief.
      update: the update thread.
      offer: returns this rank's next batch, or None.
      order: the chief's decision, called once for each round; for other ranks it is not called.
      ledger: returns this rank's ledger, for the checkpoint.
      met: called after every round.
      build: builds the policy in the update thread when the chief says so.
    """

    def __init__(
        self, ranks: Ranks, update: Worker, *, offer: Callable[[], Offer[B] | None], order: Callable[[], Order],
        ledger: Callable[[], bytes], met: Callable[[Meeting], None], build: Callable[[], None],
    ) -> None:  # fmt: skip
        self.wants_end = False  # this rank was asked to stop
        self.has_begun = self.is_over = False
        self.worker = Worker("rounds")
        self.worker.failed.add_done_callback(self._fail)
        self._exchange, self._is_chief, self._update = ranks.rounds, ranks.is_chief, update
        self._offer, self._order, self._ledger, self._met, self._build = offer, order, ledger, met, build
        self._loop = asyncio.get_running_loop()
        self._offers: deque[Offer[B]] = deque()  # the rounds' thread takes from it what it has agreed on
        self._num_offered = 0  # batches whose `done` has not begun
        self._open: deque[bool] = deque()  # rounds that are not over: whether the chief trains in them
        self._num_begun = self._num_over = 0
        self._last: int | None = None  # number of the last round, once it is known
        self._owed: dict[int, bytes | None] = {}  # ledgers, by the round that gathers them; None: to be taken
        self._trains = True  # what the newest order says
        self._timer: asyncio.TimerHandle | None = None
        self._num_training = 0  # batches that are agreed on and not over
        self._counted_at = self._loop.time()  # until when waits are counted
        self._batch_wait_s = self._ranks_wait_s = self._trained_lanes = 0.0

    @property
    def may_be_training(self) -> bool:
        """Whether a round is under way in which the chief's batch may be trained on. Only the chief can tell."""
        return any(self._open) and self._num_offered > 0

    def begin(self) -> None:
        """Go into the first round. Until then `poll` does nothing, because the ranks still agree on what to train."""
        self.has_begun = True
        self.poll()

    def poll(self) -> None:
        """Begin the next round, if this rank has more batches than rounds that are open.

        While the chief does not train, rounds are IDLE_S apart although there are batches.
        """
        if self.is_over or not self.has_begun:
            return
        self._take_offers()
        most = MAX_OPEN if self._trained_lanes else 1  # a first update may be long, and a rank that waits gives up
        while len(self._open) < most and self._trains and self._num_offered > len(self._open):
            if not self._meet():
                return
        if self._open:
            return
        if self._last is not None or self._owed:
            self._meet()
        elif self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._meet_idle)

    def close(self) -> None:
        """End the thread; of a failed run it may still wait for other ranks."""
        self.worker.close(timeout_s=CLOSE_S)

    def _fail(self, failed: asyncio.Future[None]) -> None:
        """Fail the update thread as well, unless it has an error of its own: others are lost because of that."""
        error = failed.exception()
        if error is not None:
            self._update.submit(partial(_raise, error))

    def _take_offers(self) -> None:
        while self._num_offered < MAX_OPEN and self._last is None and (offer := self._offer()) is not None:
            self._count_wait(counts=self._trains)
            self._num_offered += 1
            self._offers.append(offer)

    def _meet_idle(self) -> None:
        self._timer = None
        if not self._open and not self.is_over:
            self._meet()

    def _meet(self) -> bool:
        """Begin the next round; return whether there is one."""
        if self._num_begun == self._last:
            return False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._num_begun += 1
        number, wants_end = self._num_begun, self.wants_end
        ledger = None
        if number in self._owed:
            owed = self._owed.pop(number)
            ledger = self._ledger() if owed is None else owed
        order = self._order() if self._is_chief else Order()
        if self._is_chief:
            self._trains = order.trains
        self._open.append(order.trains)
        told = RankFigures(
            batch_wait_s=self._batch_wait_s, ranks_wait_s=self._ranks_wait_s, trained_lanes=self._trained_lanes
        )
        self.worker.submit(lambda: self._talk(ledger, order, told, wants_end=wants_end), self._talked)
        return True

    def _talk(self, ledger: bytes | None, order: Order, figures: RankFigures, *, wants_end: bool) -> _Agreed[B]:
        """The first part of a round, in the rounds' thread."""
        ledgers = self._exchange.gather_bytes(ledger) if ledger is not None else []
        offer = self._offers[0] if self._offers else None
        counted = offer.count() if offer is not None else None
        order = replace(order, saves=offer is not None and offer.saves)
        numbers = [float(offer is not None), float(wants_end), *order.numbers(), *figures.numbers()]
        gathered = self._exchange.gather([*numbers, *(counted.numbers if counted is not None else ())])
        told = 2 + len(fields(Order))
        order = Order.read(gathered[CHIEF][2:told])
        meeting = Meeting(
            order=order,
            ledgers=tuple(ledgers),
            figures=tuple(RankFigures.read(row[told : len(numbers)]) for row in gathered),
            wants_end=any(row[1] for row in gathered),
        )
        if offer is None or counted is None or not order.trains or not all(row[0] for row in gathered):
            return _Agreed(meeting, None, None)
        counts = offer.agree(counted, [row[len(numbers) :] for row in gathered])
        self._offers.popleft()
        return _Agreed(meeting, offer, partial(offer.train, counted, counts))

    def _talked(self, agreed: _Agreed[B]) -> None:
        """Train, build or do nothing, in the update thread, so that rounds end in their order."""
        self._count_wait(counts=agreed.meeting.order.trains)
        self._num_training += agreed.train is not None
        job: Callable[[], Trained | None] = agreed.train or (self._build if agreed.meeting.order.builds else _nothing)
        self._update.submit(job, partial(self._over, agreed), hands_back=agreed.train is not None)

    def _count_wait(self, *, counts: bool) -> None:
        """Add the time since the last call to what this rank waits for, unless it trains."""
        waited_s, self._counted_at = self._loop.time() - self._counted_at, self._loop.time()
        if counts and not self._num_training:
            if self._num_offered:
                self._ranks_wait_s += waited_s
            else:
                self._batch_wait_s += waited_s

    def _over(self, agreed: _Agreed[B], trained: Trained | None) -> None:
        """Take the result of a round."""
        meeting, offer, order = agreed.meeting, agreed.offer, agreed.meeting.order
        self._open.popleft()
        self._num_over += 1
        if not self._is_chief:
            self._trains = order.trains
        self.is_over = self._num_over == self._last
        gathers = self._num_over + MAX_OPEN  # it cannot have begun
        if self._last is None:
            if order.ends:
                self._last = gathers
            if order.ends or order.wants_ledgers or (order.saves and offer is not None):
                self._owed[gathers] = None
        if trained is not None:
            self._count_wait(counts=False)
            self._num_training -= 1
            self._num_offered -= 1
            self._trained_lanes += len(trained.result.dropped_steps_B)
        self._met(meeting)
        if trained is not None and offer is not None:
            offer.done(trained)
        if gathers in self._owed:  # later rounds must not change it
            self._owed[gathers] = self._ledger()
        self.poll()


def _nothing() -> None:
    """Do nothing, in the update thread."""


def _raise(error: BaseException) -> None:
    raise error
