"""Rounds of ranks in one process: an exchange between threads, and decisions and updates that are the test's."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from seedbed.learner_svc.learning.selection import CountedBatch, Counts
from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.ranks.ranks import Exchange, Ranks
from seedbed.learner_svc.ranks.rounds import Meeting, Offer, Order, Rounds
from seedbed.shared.runtime.worker import Worker

LIMIT_S = 30.0
TRAINED = cast("Trained", SimpleNamespace(result=SimpleNamespace(dropped_steps_B=np.zeros(3))))


class Table:
    """Where the threads of all ranks tell each other bytes."""

    def __init__(self, size: int) -> None:
        self.slots = [b""] * size
        self.barrier = threading.Barrier(size, timeout=LIMIT_S)


class Seat(Exchange):
    """One rank's end of it."""

    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank = table, rank

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Return what every rank gave."""
        self.table.slots[self.rank] = data
        self.table.barrier.wait()
        told = list(self.table.slots)
        self.table.barrier.wait()
        return told


class Rank:
    """A rank with `batches` of which `train` trains; its ledger is the number of those that are done."""

    def __init__(
        self, table: Table, rank: int, batches: int, *, train: Callable[[int], None] = lambda _: None,
        order: Callable[[], Order] | None = None, saves: int | None = None,
    ) -> None:  # fmt: skip
        self.batches, self.ends = batches, False
        self.counted: list[int] = []
        self.meetings: list[Meeting] = []
        self.num_offered = self.num_done = 0
        self.news = asyncio.Event()
        self.worker = Worker("update")
        self._train, self._saves = train, saves
        self.rounds = Rounds[int](
            cast("Ranks", SimpleNamespace(is_chief=rank == 0, rounds=Seat(table, rank))), self.worker,
            offer=self.offer, order=order or self.order, ledger=lambda: str(self.num_done).encode(), met=self.met,
            build=lambda: None,
        )  # fmt: skip

    def order(self) -> Order:
        """Train until the end."""
        return Order(trains=not self.ends, ends=self.ends)

    def offer(self) -> Offer[int] | None:
        """Return the next batch."""
        if self.num_offered == self.batches:
            return None
        number = self.num_offered
        self.num_offered += 1

        def count() -> CountedBatch:
            self.counted.append(number)
            return cast("CountedBatch", SimpleNamespace(numbers=[1.0]))

        def train(*_: object) -> Trained:
            self._train(number)
            return TRAINED

        return Offer(
            batch=number,
            count=count,
            agree=lambda *_: cast("Counts", None),
            train=train,
            done=self.done,
            saves=number == self._saves,
        )

    def done(self, _: Trained) -> None:
        """Count it, and look for more, as a learner does."""
        self.num_done += 1
        self.rounds.poll()

    def met(self, meeting: Meeting) -> None:
        """Keep what a round has told."""
        self.meetings.append(meeting)
        self.news.set()

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait, round by round."""
        async with asyncio.timeout(LIMIT_S):
            while not is_reached():
                self.news.clear()
                await self.news.wait()


async def end(chief: Rank, *others: Rank) -> None:
    """End the rounds, and the threads."""
    chief.ends = True
    for rank in (chief, *others):
        await rank.until(lambda rank=rank: rank.rounds.is_over)  # type: ignore[misc]
        rank.rounds.close()
        rank.worker.close()


def test_a_batch_waits_while_the_chief_does_not_train() -> None:
    """It is not taken for an update under way, for which the end of a run would wait; later it is trained on."""

    async def test() -> None:
        busy = list[bool]()

        def order() -> Order:
            busy.append(chief.rounds.may_be_training)
            return Order(trains=len(chief.meetings) > 3 and not chief.ends, ends=chief.ends)

        chief = Rank(Table(1), 0, 1, order=order, train=lambda _: busy.append(chief.rounds.may_be_training))
        chief.rounds.begin()
        await chief.until(lambda: chief.num_done == 1)
        assert busy[:4] == [False] * 4
        assert True in busy[4:]
        await end(chief)

    asyncio.run(test())


def two_ranks(may_end: threading.Event) -> tuple[Rank, Rank, Future[float]]:
    """Two ranks in their first round, and when the chief's second update began, which waits until it may end."""
    began: Future[float] = Future()

    def train(number: int) -> None:
        if number == 1:
            began.set_result(time.monotonic())
            may_end.wait(LIMIT_S)

    table = Table(2)
    ranks = Rank(table, 0, 5, train=train), Rank(table, 1, 5)
    for rank in ranks:
        rank.rounds.begin()
    return *ranks, began


def test_the_ranks_agree_on_the_next_batch_while_they_train() -> None:
    """On one, as what is decided must not lie far behind; on none during the first update, which may be long."""

    async def test() -> None:
        may_end = threading.Event()
        chief, other, _ = two_ranks(may_end)
        await other.until(lambda: len(other.meetings) == 3)
        assert (chief.num_done, chief.counted) == (1, [0, 1, 2])
        may_end.set()
        await chief.until(lambda: chief.num_done == 5)
        assert chief.counted == other.counted == [0, 1, 2, 3, 4]
        await end(chief, other)

    asyncio.run(test())


def test_a_rank_that_trains_waits_for_nobody() -> None:
    """Also if it agrees on its next batch meanwhile."""

    async def test() -> None:
        may_end, since = threading.Event(), time.monotonic()
        chief, other, began = two_ranks(may_end)
        await other.until(lambda: len(other.meetings) == 3)
        trained_s = time.monotonic() - began.result(LIMIT_S)
        may_end.set()
        await chief.until(lambda: chief.num_done == 5)
        await end(chief, other)
        told = chief.meetings[-1].figures[0]
        assert told.batch_wait_s + told.ranks_wait_s <= time.monotonic() - since - trained_s

    asyncio.run(test())


def test_a_snapshot_has_the_ledgers_as_they_were_after_its_update() -> None:
    """Although the ranks train on before they are gathered. At the end those of the end are gathered."""

    async def test() -> None:
        table = Table(2)
        chief, other = Rank(table, 0, 9, saves=2), Rank(table, 1, 9)
        for rank in (chief, other):
            rank.rounds.begin()
        await chief.until(lambda: chief.num_done >= 6)
        await end(chief, other)
        ledgers = [meeting.ledgers for meeting in chief.meetings if meeting.ledgers]
        assert ledgers == [(b"3", b"3"), (str(chief.num_done).encode(),) * 2]
        assert [meeting.ledgers for meeting in other.meetings if meeting.ledgers] == ledgers
        assert chief.num_done == other.num_done

    asyncio.run(test())


def test_a_rank_without_a_batch_holds_the_others_and_their_batch_is_kept() -> None:
    """Decisions come nevertheless; once it has one, all train on the batch that they had."""

    async def test() -> None:
        table = Table(2)
        chief, other = Rank(table, 0, 1), Rank(table, 1, 0)
        for rank in (chief, other):
            rank.rounds.begin()
        await chief.until(lambda: len(chief.meetings) > 3)
        assert chief.num_done == 0
        assert chief.meetings[-1].figures[0].ranks_wait_s > 0
        assert chief.meetings[-1].figures[1].batch_wait_s > 0
        other.batches = 1
        await chief.until(lambda: chief.num_done == 1)
        assert set(chief.counted) == {0}
        await end(chief, other)

    asyncio.run(test())


def test_a_rank_that_cannot_reach_the_others_fails() -> None:
    """By the update thread, whose own error would be the cause."""

    async def test() -> None:
        table = Table(2)
        rank = Rank(table, 1, 1)
        rank.rounds.begin()
        table.barrier.abort()
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(threading.BrokenBarrierError):
                await rank.worker.failed
        rank.rounds.close()

    asyncio.run(test())
