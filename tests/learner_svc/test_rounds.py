"""Rounds of a chief without other ranks, whose decisions are the test's."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from seedbed.learner_svc.learning.selection import CountedBatch
from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.ranks.ranks import Ranks
from seedbed.learner_svc.ranks.rounds import Meeting, Offer, Order, Rounds
from seedbed.shared.runtime.worker import Worker


def test_a_batch_waits_while_the_chief_does_not_train() -> None:
    """It is not taken for an update under way, for which the end of a run would wait; later it is trained on."""
    trained = cast("Trained", SimpleNamespace(result=SimpleNamespace(dropped_steps_B=np.zeros(3))))

    counted = cast("CountedBatch", SimpleNamespace(numbers=[1.0]))

    async def test() -> None:
        done, meetings, busy = asyncio.Event(), list[Meeting](), list[bool]()

        def order() -> Order:
            return Order(trains=len(meetings) > 3)

        def gather(numbers: list[float]) -> list[np.ndarray[Any, np.dtype[Any]]]:
            busy.append(rounds.may_be_training)
            return [np.array(numbers)]

        ranks = cast("Ranks", SimpleNamespace(is_chief=True, gather=gather))
        worker = Worker("update")
        rounds = Rounds[int](
            ranks, worker,
            offer=lambda: Offer(
                batch=0, count=lambda: counted, train=lambda *_: trained, done=lambda _: done.set()
            ),
            order=order, ledger=lambda: b"", met=meetings.append, build=lambda: None,
        )  # fmt: skip
        rounds.begin()
        async with asyncio.timeout(30.0):
            await done.wait()
        rounds.is_over = True
        assert busy[:4] == [False] * 4
        assert busy[4]
        worker.close()

    asyncio.run(test())
