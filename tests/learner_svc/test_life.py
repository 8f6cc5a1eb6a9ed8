"""Ranks that meet at a store, which may hold what ranks of an earlier life have left."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from seedbed.learner_svc.ranks.life import agree_on_life

SIZE = 3


@pytest.fixture
def threads():
    """A thread for each rank of two lives."""
    with ThreadPoolExecutor(2 * SIZE) as pool:
        yield pool


def begin(threads: ThreadPoolExecutor, store: HashStore, rank: int, wait_s: float = 20.0) -> Future[str]:
    """A rank that comes to the store."""
    return threads.submit(agree_on_life, store, rank, SIZE, time.monotonic() + wait_s)


def test_ranks_that_come_back_begin_another_life_whoever_is_first(threads):
    """Those that are back before the chief do not take its last life for the new one."""
    store, lives = HashStore(), []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        found = [begin(threads, store, rank) for rank in order]
        (life,) = {item.result() for item in found}
        lives.append(life)
    assert len(set(lives)) == 3


def test_a_rank_that_comes_back_alone_waits_until_the_others_begin_again(threads):
    """It may have been gone for so short a time that they have not noticed."""
    store = HashStore()
    first = [begin(threads, store, rank) for rank in range(SIZE)]
    (life,) = {item.result() for item in first}
    with pytest.raises(TimeoutError):
        begin(threads, store, 1, wait_s=0.0).result()
    second = [begin(threads, store, rank) for rank in (1, 2, 0)]
    assert life not in {item.result() for item in second}


def test_the_chief_says_which_ranks_have_not_come(threads):
    """They may be on a machine that is down."""
    store = HashStore()
    with pytest.raises(TimeoutError):
        begin(threads, store, 1, wait_s=0.0).result()
    with pytest.raises(TimeoutError, match="ranks 1, 2 have"):
        begin(threads, store, 0, wait_s=0.0).result()
