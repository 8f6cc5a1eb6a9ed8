"""Indices are drawn in proportion to weights, each once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.sources.sum_tree import SumTree

CHI_SQUARE_1E_6 = 60.0  # of 15 degrees of freedom: exceeded once in some million tries


@settings(deadline=None)
@given(
    size=st.integers(1, 40),
    changes=st.lists(st.tuples(st.integers(0, 39), st.floats(0, 1e6, allow_subnormal=False)), max_size=60),
)
def test_the_total_is_the_sum_of_the_weights_as_they_are(size: int, changes: list[tuple[int, float]]) -> None:
    """However often weights change: nothing adds up but what is there."""
    tree, weights = SumTree(size), np.zeros(size)
    for place, weight in changes:
        weights[place % size] = weight
        tree.set(np.array([place % size]), np.array([weight]))
    assert tree.total == pytest.approx(weights.sum(), rel=1e-12)
    assert (tree.weights(np.arange(size)) == weights).all()


@settings(deadline=None)
@given(weights=st.lists(st.sampled_from([0.0, 1e-12, 0.5, 3.0, 1e9]), min_size=1, max_size=33), share=st.floats(0, 1))
def test_a_point_lies_in_its_weight_and_never_in_none(weights: list[float], share: float) -> None:
    """Also at the very end of the line, where rounding may lead beyond it."""
    tree = SumTree(len(weights))
    tree.set(np.arange(len(weights)), np.array(weights))
    if tree.total == 0.0:
        return
    point = min(share * tree.total, np.nextafter(tree.total, 0))
    (place,) = tree.find(np.array([point]))
    ends = np.cumsum(weights)
    assert weights[place] > 0
    assert ends[place] - weights[place] <= point + 1e-6 * tree.total
    assert point <= ends[place] + 1e-6 * tree.total


def test_places_are_drawn_in_proportion_to_their_weights() -> None:
    """Chi-square of 64,000 draws over 16 places."""
    tree, generator = SumTree(16), np.random.default_rng(1)
    weights = np.arange(1.0, 17.0) ** 2
    tree.set(np.arange(16), weights)
    counts = np.bincount(tree.find(generator.random(64_000) * tree.total), minlength=16)
    expected = 64_000 * weights / weights.sum()
    assert ((counts - expected) ** 2 / expected).sum() < CHI_SQUARE_1E_6


def test_draws_without_replacement_follow_each_other() -> None:
    """The second of two is drawn in proportion to what the first one left."""
    tree, generator = SumTree(4), np.random.default_rng(2)
    weights = np.array([1.0, 2.0, 3.0, 10.0])
    tree.set(np.arange(4), weights)
    pairs = np.array([tree.draw(2, generator) for _ in range(20_000)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    for first in range(4):
        seconds = pairs[pairs[:, 0] == first, 1]
        left = np.where(np.arange(4) == first, 0.0, weights)
        expected = len(seconds) * left / left.sum()
        counts = np.bincount(seconds, minlength=4)
        chosen = expected > 0
        assert ((counts - expected)[chosen] ** 2 / expected[chosen]).sum() < 40.0
    assert (tree.weights(np.arange(4)) == weights).all()


def test_more_than_there_are_cannot_be_drawn() -> None:
    """And the weights are afterwards what they were."""
    tree = SumTree(8)
    tree.set(np.array([1, 5]), np.array([1.0, 1e-9]))
    assert sorted(tree.draw(2, np.random.default_rng(0)).tolist()) == [1, 5]
    with pytest.raises(ValueError, match="3 places"):
        tree.draw(3, np.random.default_rng(0))
    assert tree.weights(np.array([1, 5])).tolist() == [1.0, 1e-9]
