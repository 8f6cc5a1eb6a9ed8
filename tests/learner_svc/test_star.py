"""The connections between learner ranks: what comes through, and what happens to strangers and to the lost."""

import socket
import struct
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from seedbed.learner_svc.ranks.star import HELLO, KEY, Star, open_star

HOST, SIZE = "127.0.0.1", 3
Stars = tuple[Star, ...]


@pytest.fixture
def threads():
    """A thread for each rank."""
    with ThreadPoolExecutor(SIZE) as pool:
        yield pool


def connect(
    threads: ThreadPoolExecutor, timeout_s: float = 20.0, meet: Callable[[int, str], None] | None = None
) -> Stars:
    """The stars of all ranks; `meet` is called with the chief's port and token before the others come."""
    store = HashStore()
    chief: Future[Star] = threads.submit(open_star, store, HOST, 0, SIZE, timeout_s=timeout_s)
    if meet is not None:
        port, token = store.get(KEY).decode().split()
        meet(int(port), token)
    others = [threads.submit(open_star, store, HOST, rank, SIZE, timeout_s=timeout_s) for rank in (2, 1)]
    return chief.result(), others[1].result(), others[0].result()


def close(stars: Stars) -> None:
    for star in stars:
        star.close()


def test_what_ranks_give_and_what_the_chief_tells(threads):
    """In the order of ranks, whoever came first; empty messages and long ones too."""
    stars = connect(threads)
    for size in (0, 1, 3_000_000):
        gathered = list(threads.map(lambda star, size=size: star.gather(bytes([stars.index(star)]) * size), stars))
        assert gathered == [[bytes([rank]) * size for rank in range(SIZE)], [], []]
        assert set(threads.map(lambda star, size=size: star.tell(b"x" * size if star is stars[0] else b""), stars)) == {
            b"x" * size
        }
        shared = list(threads.map(lambda star, size=size: star.share(bytes([stars.index(star)]) * size), stars))
        assert shared == [[bytes([rank]) * size for rank in range(SIZE)]] * SIZE
    close(stars)


def test_strangers_are_cut_off_and_the_ranks_come_in(threads):
    """Garbage, a connection that is closed at once, a rank of another run, and one that does not exist."""

    def meet(port: int, token: str) -> None:
        hellos = (b"G" * HELLO.size, b"", HELLO.pack(bytes(16), 1), HELLO.pack(bytes.fromhex(token), SIZE))
        for hello in hellos:
            with socket.create_connection((HOST, port), timeout=20.0) as stranger:
                stranger.sendall(hello)
                stranger.shutdown(socket.SHUT_WR)
                assert stranger.recv(1) == b""

    stars = connect(threads, meet=meet)
    assert list(threads.map(lambda star: star.gather(b"here"), stars)) == [[b"here"] * SIZE, [], []]
    close(stars)


def test_everyone_hears_of_a_rank_that_is_gone(threads):
    """The chief at once; the others as soon as it leaves."""
    chief, second, third = connect(threads)
    third.close()
    second.gather(b"here")
    with pytest.raises(OSError, match="closed"):
        chief.gather(b"here")
    chief.close()
    with pytest.raises(OSError, match="closed"):
        second.tell()
    second.close()


def test_nobody_waits_for_ever(threads):
    """For a rank that is silent, or for the chief."""
    stars = connect(threads, timeout_s=0.3)
    with pytest.raises(TimeoutError):
        stars[0].gather(b"here")
    with pytest.raises(TimeoutError):
        stars[1].tell()
    close(stars)


def test_a_rank_that_never_comes_ends_the_start():
    """After as long as any silence may take."""
    with pytest.raises(TimeoutError):
        open_star(HashStore(), HOST, 0, 2, timeout_s=0.1)


def test_a_length_that_nobody_sends_is_refused():
    """Before any memory is taken for it."""
    ours, theirs = socket.create_server((HOST, 0)), socket.socket()
    with ours, theirs:
        theirs.connect(ours.getsockname())
        link, _ = ours.accept()
        star = Star([link], is_chief=False, timeout_s=20.0)
        theirs.sendall(struct.pack("<Q", 1 << 40))
        with pytest.raises(OSError, match="bytes"):
            star.tell()
        star.close()
