"""Every lane is used as often as asked, in different batches."""

from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.sources.echo import EchoSource
from seedbed.learner_svc.sources.source import SourcePlan
from tests.learner_svc.sources.test_queue import RECORD, an_unroll, lanes_of


def an_echo(echo: int, batch: int = 4, *, buffers: int = 2, shuffled: int = 4) -> EchoSource[int]:
    plan = SourcePlan(
        batch=batch, num_buffers=buffers, weights={"": 1.0}, folder=Path(), seed=3, echo=echo, echo_batches=shuffled
    )
    return EchoSource(RECORD, plan)


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.integers(1, 9), min_size=1, max_size=20), echo=st.integers(1, 4), batch=st.integers(1, 5),
    held=st.integers(0, 1),
)  # fmt: skip
def test_no_lane_is_used_more_often_than_asked_and_those_done_with_exactly_so(
    groups: list[int], echo: int, batch: int, held: int
) -> None:
    """However groups and batches divide, and if one batch is trained on while the next is drawn."""
    source, uses, done, taken, first = an_echo(echo, batch), Counter[int](), Counter[int](), [], 0
    lanes_of_key = {}
    for key, lanes in enumerate(groups):
        source.offer(key, lanes, an_unroll(first, lanes))
        lanes_of_key[key] = range(first, first + lanes)
        first += lanes
        source.fill()
        while (full := source.take()) is not None:
            lanes_here = lanes_of(full.arrays)
            assert len(set(lanes_here)) == batch
            uses.update(lanes_here)
            assert full.fresh_B is not None
            assert [bool(fresh) for fresh in full.fresh_B] == [uses[lane] == 1 for lane in lanes_here]
            taken.append(full)
            if len(taken) > held:
                source.release(taken.pop(0))
            source.fill()
        for used_key, count in source.used():
            done[used_key] += count
    assert all(count <= echo for count in uses.values())
    for key, count in done.items():  # they are the first ones: a learner that starts again leaves these out
        assert all(uses[lane] == echo for lane in lanes_of_key[key][:count])


def test_in_the_long_run_every_lane_is_used_as_often_as_asked() -> None:
    """All but those that the buffer still holds."""
    source, uses, done = an_echo(3), Counter[int](), 0
    for key in range(100):
        source.offer(key, 2, an_unroll(2 * key % 200, 2))
        source.fill()
        while (full := source.take()) is not None:
            uses.update(lanes_of(full.arrays))
            source.release(full)
            source.fill()
        done += sum(count for _, count in source.used())
    assert Counter(uses.values())[3] >= done >= 200 - 2 * 16 - 4
    assert sum(uses.values()) >= 3 * (200 - 16 - 4)


def test_uses_of_a_lane_are_apart() -> None:
    """In a buffer of sixteen batches the second use comes later than the next batch, as a rule."""
    source, seen, gaps, number = an_echo(2, shuffled=16), {}, [], 0
    for key in range(100):
        source.offer(key, 2, an_unroll(2 * key % 200, 2))
        source.fill()
        while (full := source.take()) is not None:
            number += 1
            for lane in lanes_of(full.arrays):
                if lane in seen:
                    gaps.append(number - seen[lane])
                seen[lane] = number
            source.release(full)
            source.fill()
    assert min(gaps) >= 1
    assert sum(gaps) / len(gaps) > 4


def test_a_source_that_nobody_takes_from_keeps_unrolls_waiting() -> None:
    """So that credit runs out: what the buffers hold is bounded."""
    source = an_echo(2)
    copied = []
    for key in range(40):
        source.offer(key, 4, an_unroll(4 * key % 200, 4))
        copied += source.fill()
    assert len(copied) == 5, "four batches are shuffled, one is in the queue"
    assert source.used() == []
