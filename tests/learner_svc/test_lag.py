"""Policy lag: per row, across epochs, and what is too old."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seedbed.learner_svc.algorithms.lag import LAG_BOUNDS, NUM_LAG_BUCKETS, lag_histogram, name_buckets, policy_lag
from seedbed.shared.protocol.messages import pack_version


def versions(*pairs):
    """Packed versions, i64 [T, 1]."""
    return np.array([pack_version(*pair) for pair in pairs], np.int64)[:, None]


def test_lag_counts_updates_within_the_epoch():
    """Rows beyond the limit are stale, at the limit they are not."""
    lag = policy_lag(versions((2, 5), (2, 8), (2, 10)), pack_version(2, 10), 2)
    assert lag.lag[:, 0].tolist() == [5, 2, 0]
    assert lag.fresh[:, 0].tolist() == [False, True, True]
    assert (~lag.fresh & ~lag.lost)[:, 0].tolist() == [True, False, False]
    assert not lag.lost.any()


def test_rows_of_weights_that_a_restart_lost_are_dropped_as_such():
    """The learner resumed at step 100; epoch 2 had gone on to 130."""
    lag = policy_lag(versions((2, 99), (2, 100), (2, 101), (3, 101)), pack_version(3, 102), 50, epoch_start_step=100)
    assert lag.lost[:, 0].tolist() == [False, False, True, False]
    assert lag.fresh[:, 0].tolist() == [True, True, False, True]
    assert lag.lag[:, 0].tolist() == [3, 2, 1, 1]


def test_a_lost_epochs_row_from_ahead_has_no_negative_lag():
    """Its step may be beyond ours."""
    lag = policy_lag(versions((2, 130)), pack_version(3, 102), 50, epoch_start_step=100)
    assert lag.lag[0, 0] == 0
    assert lag.lost[0, 0]


def test_a_version_that_is_still_to_come_is_another_runs():
    """It may be of this epoch or a later one; without lag it would look fresh."""
    lag = policy_lag(versions((2, 5), (2, 11), (4, 1)), pack_version(2, 10), 50)
    assert lag.lost[:, 0].tolist() == [False, True, True]
    assert lag.fresh[:, 0].tolist() == [True, False, False]


def test_a_row_without_a_version_is_never_trained_on():
    """Version 0 is none, also in the first epoch."""
    lag = policy_lag(np.zeros((1, 1), np.int64), pack_version(0, 3), 50)
    assert lag.lost[0, 0]
    assert not lag.fresh[0, 0]


@given(st.integers(1, 1000), st.lists(st.integers(0, 1000), min_size=1), st.integers(0, 100))
def test_each_row_is_fresh_stale_or_lost(step_now, ages, max_policy_lag):
    """Exactly one of the three."""
    version = versions(*((4, max(0, step_now - age)) for age in ages))
    lag = policy_lag(version, pack_version(4, step_now), max_policy_lag)
    assert not (lag.fresh & lag.lost).any()


@pytest.mark.parametrize(
    ("lag", "bucket"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (255, 8), (256, 9), (10**9, 9)]
)
def test_the_histogram_has_a_bucket_per_power_of_two(lag, bucket):
    """The last one is open."""
    counts = lag_histogram(np.array([[lag]]), np.array([[True]]))
    assert counts == tuple(int(i == bucket) for i in range(NUM_LAG_BUCKETS))


def test_the_histogram_counts_steps_only():
    """Transitions that are no step have no lag worth showing."""
    assert sum(lag_histogram(np.zeros((3, 2), np.int64), np.array([[1, 0], [1, 1], [0, 0]], bool))) == 3


def test_the_buckets_are_named_for_people():
    """Whatever lies in a bucket lies within its name and its bound."""
    names = list(name_buckets(range(NUM_LAG_BUCKETS)))
    assert names == ["0", "1", "2-3", "4-7", "8-15", "16-31", "32-63", "64-127", "128-255", "256-"]
    for bucket, bound in enumerate(LAG_BOUNDS):
        assert lag_histogram(np.array([[bound]]), np.array([[True]]))[bucket] == 1
        assert lag_histogram(np.array([[bound + 1]]), np.array([[True]]))[bucket + 1] == 1
