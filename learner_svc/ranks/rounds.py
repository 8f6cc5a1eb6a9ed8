"""Rounds: the ranks' update threads meet, learn what the chief has decided, and train if every rank has a batch.

A rank without a batch comes to a round after IDLE_S, so that no decision waits longer. At most one round is under way,
so everything that a rank's loop did for earlier rounds is done when the next one begins.

| in a round | who | says |
|---|---|---|
| first, if the last round asked for it | every rank | its ledger, for the checkpoint |
| then | every rank | whether it has a batch, what it counted of it, whether it wants to end |
| with that | the chief | what is to be done |
| then, if all have a batch and the chief trains | every rank | its part of the update |
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

from seedbed.learner_svc.learning.selection import CountedBatch
from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.ranks.ranks import CHIEF, Ranks
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import RunState
from seedbed.shared.runtime.worker import Worker

IDLE_S = 0.02
B = TypeVar("B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the chief has decided for a round."""

    trains: bool = False  # if every rank has a batch
    wants_ledgers: bool = False  # of every rank, as they are after this round
    builds: bool = False  # the policy, now
    ends: bool = False  # no round follows but the one that gathers ledgers
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

    batch_wait_s: float = 0.0  # without a batch
    ranks_wait_s: float = 0.0  # with a batch, for other ranks
    trained_lanes: float = 0.0

    def numbers(self) -> list[float]:
        """Return the figures as they are sent."""
        return [self.batch_wait_s, self.ranks_wait_s, self.trained_lanes]

    def since(self, before: "RankFigures") -> "RankFigures":
        """Return how much each total has risen; zero for one that began anew."""
        now, then = self.numbers(), before.numbers()
        batch_wait_s, ranks_wait_s, lanes = (max(0.0, total - former) for total, former in zip(now, then, strict=True))
        return RankFigures(batch_wait_s=batch_wait_s, ranks_wait_s=ranks_wait_s, trained_lanes=lanes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The result of a round."""

    order: Order
    trained: Trained | None  # None: not all had a batch, or the chief does not train now
    ledgers: tuple[bytes, ...]  # by rank, if the round before asked for them
    figures: tuple[RankFigures, ...]  # by rank
    wants_end: bool  # whether any rank was asked to stop
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Generic[B]):
    """A batch that this rank can train on in the next round in which all can."""

    batch: B
    count: Callable[[], CountedBatch]  # runs in the update thread, in every round until the batch is trained on
    train: Callable[[CountedBatch, Sequence[Array]], Trained]  # likewise, with the numbers of every rank's batch
    done: Callable[[Trained], None]  # then, in the loop
    wants_ledgers: bool = False  # the chief's: a snapshot is taken


class Rounds(Generic[B]):
    """The rounds of one rank. Owned by its loop; the meetings run in the update thread.

    Large because it knows how far the present round has come, and what is owed to the next.

    Args:
      offer: returns this rank's next batch, or None; called again only after the last one was trained on.
      order: the chief's decision; for other ranks it is not called.
      ledger: returns this rank's ledger, for the checkpoint.
      met: called after every round.
      build: builds the policy in the update thread when the chief says so.
    """

    def __init__(
        self, ranks: Ranks, worker: Worker, *, offer: Callable[[], Offer[B] | None], order: Callable[[], Order],
        ledger: Callable[[], bytes], met: Callable[[Meeting], None], build: Callable[[], None],
    ) -> None:  # fmt: skip
        self.wants_end = False  # this rank was asked to stop
        self.has_begun = self.is_over = False
        self._ranks, self._worker = ranks, worker
        self._offer, self._order, self._ledger, self._met, self._build = offer, order, ledger, met, build
        self._loop = asyncio.get_running_loop()
        self._pending: Offer[B] | None = None
        self._owes_ledger = self._ends = self._is_meeting = False
        self._trains = True  # what the newest order says
        self._timer: asyncio.TimerHandle | None = None
        self._asked_at = self._loop.time()
        self._batch_wait_s = self._ranks_wait_s = self._trained_lanes = 0.0

    @property
    def may_be_training(self) -> bool:
        """Whether a round is under way in which the chief's batch may be trained on. Only the chief can tell."""
        return self._is_meeting and self._trains and self._pending is not None

    def begin(self) -> None:
        """Go into the first round. Until then `poll` does nothing, because the ranks still agree on what to train."""
        self.has_begun = True
        self.poll()

    def poll(self) -> None:
        """Begin the next round, if this rank has a batch and no round is under way.

        While the chief does not train, rounds are IDLE_S apart although there are batches.
        """
        if self._is_meeting or self.is_over or not self.has_begun:
            return
        if self._pending is None and not self._ends:
            self._pending = self._offer()
            if self._pending is not None:
                self._batch_wait_s += self._loop.time() - self._asked_at
        if (self._pending is not None and self._trains) or self._ends or self._owes_ledger:
            self._meet()
        elif self._timer is None:
            self._timer = self._loop.call_later(IDLE_S, self._meet)

    def _meet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_meeting or self.is_over:
            return
        self._is_meeting = True
        offer, ranks = self._pending, self._ranks
        ledger = self._ledger() if self._owes_ledger else None
        order = self._order() if ranks.is_chief else Order()
        if offer is not None and offer.wants_ledgers:
            order = replace(order, wants_ledgers=True)
        if ranks.is_chief:
            self._trains = order.trains
        told = RankFigures(
            batch_wait_s=self._batch_wait_s, ranks_wait_s=self._ranks_wait_s, trained_lanes=self._trained_lanes
        )
        numbers = [float(offer is not None), float(self.wants_end), *order.numbers(), *told.numbers()]
        self._worker.submit(lambda: self._work(ledger, numbers, offer, is_last=self._ends), self._finished)

    def _work(self, ledger: bytes | None, numbers: list[float], offer: Offer[B] | None, *, is_last: bool) -> Meeting:
        """One round, in the update thread."""
        ledgers = self._ranks.gather_bytes(ledger) if ledger is not None else []
        counted = offer.count() if offer is not None else None
        started = time.perf_counter()
        gathered = self._ranks.gather([*numbers, *(counted.numbers if counted is not None else ())])
        waited_s = time.perf_counter() - started
        told = 2 + len(fields(Order))
        order = Order.read(gathered[CHIEF][2:told])
        trained = None
        if order.builds:
            self._build()
        if order.trains and offer is not None and counted is not None and all(row[0] for row in gathered):
            trained = offer.train(counted, [row[len(numbers) :] for row in gathered])
        figures = tuple(
            RankFigures(batch_wait_s=row[0], ranks_wait_s=row[1], trained_lanes=row[2])
            for row in (row[told : len(numbers)].tolist() for row in gathered)
        )
        return Meeting(
            order=order, trained=trained, ledgers=tuple(ledgers), figures=figures,
            wants_end=any(row[1] for row in gathered),
            waited_s=waited_s if order.trains and offer is not None else 0.0,
        )  # fmt: skip

    def _finished(self, meeting: Meeting) -> None:
        self._is_meeting = False
        self._ranks_wait_s += meeting.waited_s
        self._trains = meeting.order.trains
        was_last = self._ends
        self._owes_ledger = (meeting.order.wants_ledgers or meeting.order.ends) and not was_last
        self._ends = self._ends or meeting.order.ends
        self.is_over = was_last
        offer = self._pending
        if meeting.trained is not None and offer is not None:
            self._pending, self._asked_at = None, self._loop.time()
            self._trained_lanes += len(meeting.trained.result.dropped_steps_B)
        self._met(meeting)
        if meeting.trained is not None and offer is not None:
            offer.done(meeting.trained)
        self.poll()
