"""Running statistics: of observations against NumPy, of value targets by what they must preserve."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.learning.normaliser import ObservationNormaliser, RunningMoments, ValueNormaliser
from seedbed.shared.policy.observations import LeafNormaliser

CPU = torch.device("cpu")


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.floats(-1e3, 1e3), st.floats(0.1, 100))
@settings(max_examples=30, deadline=None)
def test_moments_of_parts_are_the_moments_of_the_whole(sizes, centre, spread):
    """However the rows are cut into updates."""
    rows = np.random.default_rng(5).normal(centre, spread, (sum(sizes), 3)).astype(np.float32)
    moments = RunningMoments((3,), CPU)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        moments.update(torch.from_numpy(part))
    wanted = rows.astype(np.float64)
    assert moments.count.item() == len(rows)
    np.testing.assert_allclose(moments.mean.numpy(), wanted.mean(0), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(moments.variance.numpy(), wanted.var(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("centre", [0.0, -3e4, 1e6])
def test_a_small_spread_far_from_zero_is_kept(centre):
    """A simulator's clock or position has a large mean; single precision must not eat the deviation around it."""
    rows = np.random.default_rng(3).choice([-1.0, 1.0], (4000, 2)) + centre
    moments = RunningMoments((2,), CPU)
    for part in np.split(rows.astype(np.float32), 8):
        moments.update(torch.from_numpy(part))
    np.testing.assert_allclose(moments.mean.numpy(), rows.mean(0), rtol=1e-6, atol=1e-3)
    np.testing.assert_allclose(moments.variance.numpy(), rows.var(0), rtol=1e-3)


def test_no_rows_change_nothing():
    """Before the first row the variance is 1."""
    moments = RunningMoments((2,), CPU)
    moments.update(torch.zeros(0, 2))
    assert moments.variance.tolist() == [1, 1]


def test_each_row_is_counted_once():
    """Row 0 was the last row of the unroll before; rows without an agent are none."""
    published = LeafNormaliser(1, torch.zeros(2), torch.ones(2))
    normaliser = ObservationNormaliser([published])
    leaf = torch.tensor([[[100.0, 100.0]], [[1.0, 2.0]], [[3.0, 6.0]], [[50.0, 50.0]]])  # [T+1 = 4, B = 1, 2]
    normaliser.update((torch.zeros(4, 1), leaf), torch.tensor([0, 1]))
    assert normaliser.state()["1.count"].item() == 2
    assert published.mean.tolist() == [2, 4]
    assert published.rstd.tolist() == pytest.approx([1, 0.5], abs=1e-5)


def test_a_batch_whose_rows_were_all_counted_before_changes_nothing():
    """As replay draws them: no row is new."""
    published = LeafNormaliser(0, torch.zeros(4), torch.ones(1))
    normaliser = ObservationNormaliser([published])
    normaliser.update((torch.ones(3, 2, 2, 2),), torch.zeros(0, dtype=torch.int64))
    assert normaliser.state()["0.count"].item() == 0
    assert published.mean.tolist() == [0, 0, 0, 0]


def test_an_image_has_one_deviation():
    """The root of its pixels' mean variance, which the leaf's floor keeps from exploding."""
    published = LeafNormaliser(0, torch.zeros(2), torch.ones(1), variance_floor=1.0)
    normaliser = ObservationNormaliser([published])
    leaf = torch.tensor([[[9, 9]], [[10, 7]], [[20, 7]]], dtype=torch.uint8)  # [T+1 = 3, B = 1, 2]
    normaliser.update((leaf,), None)
    assert published.mean.tolist() == [15, 7]
    assert published.rstd.tolist() == pytest.approx([(12.5 + 1) ** -0.5])


def test_statistics_resume_exactly():
    """In double precision, all of them."""
    leaves = torch.randn(3, 5, 4, 2, generator=torch.Generator().manual_seed(2))
    published = [LeafNormaliser(0, torch.zeros(2), torch.ones(2)) for _ in range(2)]
    first, second = (ObservationNormaliser([item]) for item in published)
    first.update((leaves[0],), None)
    for name, tensor in second.state().items():
        tensor.copy_(first.state()[name])
    for leaf in leaves[1:]:
        first.update((leaf,), None)
        second.update((leaf,), None)
    assert torch.equal(published[0].mean, published[1].mean)
    assert torch.equal(published[0].rstd, published[1].rstd)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 1e4)), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_popart_preserves_every_value(batches):
    """scale and shift undo the change of mean and deviation."""
    normaliser = ValueNormaliser(0.1, CPU)
    for mean, variance in batches:
        output = torch.linspace(-2, 2, 9, dtype=torch.float64)
        before = output * normaliser.std + normaliser.mean
        scale, shift = normaliser.update(torch.tensor(mean), torch.tensor(variance))
        after = (output * scale + shift) * normaliser.std + normaliser.mean
        torch.testing.assert_close(after, before)


def test_target_statistics_are_not_biased_towards_their_start():
    """After one batch they are that batch's; of a steady stream they are the stream's."""
    normaliser = ValueNormaliser(1e-3, CPU)
    for _ in range(3):
        normaliser.update(torch.tensor(50.0), torch.tensor(16.0))
        assert normaliser.mean.item() == pytest.approx(50)
        assert normaliser.std.item() == pytest.approx(4)
