"""Whose lanes come next: shares by weight, nobody waits for who has nothing, the same every time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.sources.fair_share import FairShare

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
PLENTY = dict.fromkeys(WEIGHTS, 10_000)


def test_shares_follow_the_weights_from_the_first_batch_on() -> None:
    """Never a whole lane off, whatever the batch's size."""
    stride, given_so_far = FairShare(WEIGHTS, catch_up_lanes=10), dict.fromkeys(WEIGHTS, 0)
    total = 0
    for lanes in (10, 7, 1, 1, 64, 3, 200):
        for task, count in stride.share_out(PLENTY, lanes).items():
            given_so_far[task] += count
        total += lanes
        for task, weight in WEIGHTS.items():
            assert abs(given_so_far[task] - weight * total) <= 1.0 + 1e-9


def test_a_task_without_data_stops_nobody_and_its_share_is_divided_by_weight() -> None:
    """The others fill the batch, in proportion to their own weights."""
    shared = FairShare(WEIGHTS, catch_up_lanes=10).share_out({"a": 10_000, "c": 10_000}, 700)
    assert shared == {"a": 500, "c": 200}


def test_who_was_away_gets_back_no_more_than_the_last_batch() -> None:
    """One that missed a thousand lanes does not take the next thousand."""
    stride = FairShare({"a": 0.5, "b": 0.5}, catch_up_lanes=20)
    stride.share_out({"a": 1000}, 1000)
    back = stride.share_out({"a": 1000, "b": 1000}, 100)
    assert back["b"] == 50 + 20 // 4
    assert stride.share_out({"a": 1000, "b": 1000}, 100) == {"a": 50, "b": 50}


def test_who_was_away_for_a_moment_gets_all_of_it_back() -> None:
    """Unrolls come in heaps: what is missed between two of them is no loss."""
    stride = FairShare({"a": 0.5, "b": 0.5}, catch_up_lanes=64)
    total = {"a": 0, "b": 0}
    for _ in range(50):  # one heap of each in turn
        for task in ("a", "b"):
            for name, count in stride.share_out({task: 16}, 16).items():
                total[name] += count
    both = stride.share_out({"a": 100, "b": 100}, 32)
    assert total == {"a": 800, "b": 800}
    assert abs(both["a"] - both["b"]) <= 16


@pytest.mark.parametrize("weight", [0.001, 0.999])
def test_the_smallest_weight_is_served_all_the_same(weight: float) -> None:
    """One lane in a thousand is one lane in a thousand."""
    shared = FairShare({"a": weight, "b": 1 - weight}, catch_up_lanes=32).share_out({"a": 5000, "b": 5000}, 3000)
    assert abs(shared["a"] - 3000 * weight) <= 1.0


def test_the_same_arrivals_are_shared_out_in_the_same_way() -> None:
    """Nothing is drawn by chance."""

    def run() -> list[dict[str, int]]:
        arrivals, stride = random.Random(3), FairShare(WEIGHTS, catch_up_lanes=32)
        return [
            stride.share_out({task: arrivals.randrange(20) for task in WEIGHTS}, arrivals.randrange(1, 40))
            for _ in range(200)
        ]

    assert run() == run()


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abc"), st.integers(0, 30), min_size=1), st.integers(1, 40)),
        max_size=20,
    )
)
def test_every_lane_is_given_out_once(batches: list[tuple[dict[str, int], int]]) -> None:
    """As many as are asked for or there, and to no task more than it has."""
    stride = FairShare(WEIGHTS, catch_up_lanes=16)
    for waiting, lanes in batches:
        shared = stride.share_out(waiting, lanes)
        assert sum(shared.values()) == min(lanes, sum(waiting.values()))
        assert all(0 < count <= waiting[task] for task, count in shared.items())
