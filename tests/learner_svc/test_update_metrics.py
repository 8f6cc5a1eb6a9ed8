"""A row of metrics."""

import numpy as np
import pytest

from seedbed.learner_svc.config import LearnerConfig, check_lag
from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.learning.update import UpdateResult
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.run.measure import Returns, measure
from seedbed.learner_svc.run.run import Counters
from seedbed.shared.errors import ConfigError


def trained(seconds: float = 0.1, **metrics: float) -> Trained:
    result = UpdateResult(
        applied=True, metrics=metrics, valid_steps=1, dropped_steps=0, stale_steps=0, lost_epoch_steps=0,
        dropped_unrolls=0, dropped_steps_B=np.zeros(1), task_counts=(), priorities_B=None,
        lag_histogram=(), lag_sum=0,
    )  # fmt: skip
    return Trained(result=result, version=1, seconds=seconds, weights=None, snapshot=None)


def test_a_row_averages_its_updates_and_keeps_the_largest_lag() -> None:
    """Each row tells only of the updates since the one before."""
    figures, counters = UpdateMetrics(), Counters()
    figures.start(counters, 0.0)
    figures.trained(trained(loss=1.0, lag_max=5.0))
    figures.trained(trained(loss=3.0, lag_max=2.0))
    counters.trained_steps, counters.env_steps = 200, 100
    row = figures.row(counters, Returns(), [], epoch=1, now=2.0, others={"x": 1.0})
    assert (row["loss"], row["lag_max"], row["x"]) == (2.0, 5.0, 1.0)
    assert (row["trained_steps_per_s"], row["env_steps_per_s"], row["updates_per_s"]) == (100.0, 50.0, 1.0)
    assert row["update_busy_share"] == pytest.approx(0.1)
    assert row["batch_wait_ms"] == pytest.approx(900.0)
    row = figures.row(counters, Returns(), [], epoch=1, now=3.0, others={})
    assert "loss" not in row
    assert (row["trained_steps_per_s"], row["batch_wait_ms"]) == (0.0, None)


def test_updates_longer_than_a_row_are_counted_while_they_run() -> None:
    """The learner is busy all the time, although an update ends in one row of three alone."""
    figures, shares, num_ended = UpdateMetrics(), [], 0
    figures.start(Counters(), 0.0)
    for now in range(1, 10):
        ended, running_s = divmod(float(now), 2.5)
        for _ in range(int(ended) - num_ended):
            figures.trained(trained(2.5, loss=1.0))
        num_ended = int(ended)
        row = figures.row(Counters(), Returns(), [], epoch=1, now=float(now), others={}, running_s=running_s)
        shares.append(row["update_busy_share"])
    assert shares == pytest.approx([1.0] * 9)


def test_a_wait_longer_than_a_row_is_counted_from_its_beginning() -> None:
    """The mean is over the batches that came."""
    figures = UpdateMetrics()
    figures.start(Counters(), 0.0)
    for now in (1.0, 2.0, 3.0):
        assert figures.row(Counters(), Returns(), [], epoch=1, now=now, others={})["batch_wait_ms"] is None
    figures.trained(trained(0.5, loss=1.0))
    assert figures.row(Counters(), Returns(), [], epoch=1, now=4.0, others={})["batch_wait_ms"] == pytest.approx(3500.0)


def test_loads_of_several_inference_services_become_one() -> None:
    """Lanes add up, times are averaged."""
    loads = [{"lanes": 64.0, "forward_ms": 1.0, "odd": 1.0}, {"lanes": 32.0, "forward_ms": 3.0}]
    row = UpdateMetrics().row(Counters(), Returns(), loads, epoch=1, now=1.0, others={})
    assert (row["inference_services"], row["inference_lanes"], row["inference_forward_ms"]) == (2.0, 96.0, 2.0)
    assert "inference_odd" not in row


def test_an_evaluation_is_in_one_row() -> None:
    """The one after it came."""
    figures = UpdateMetrics()
    figures.evaluation = measure(np.full(4, 9), np.array([[1, 5], [2, 5], [3, 5], [10, 5]], np.float32))
    row = figures.row(Counters(), Returns(), [], epoch=1, now=1.0, others={})
    assert (row["eval_return_mean"], row["eval_return_median"], row["eval_return_max"]) == (4.0, 2.5, 10.0)
    assert (row["eval_episodes"], row["eval_version"], row["eval_length_mean"]) == (4, 9, 5.0)
    assert "eval_episodes" not in figures.row(Counters(), Returns(), [], epoch=1, now=2.0, others={"x": None})
    assert (figures.newest["eval_return_mean"], figures.newest["seconds"]) == (4.0, 0.0)  # for /metrics
    assert "x" not in figures.newest


def test_lanes_that_would_be_too_old_are_refused_with_a_remedy() -> None:
    """lanes / B + 2 updates must lie within the allowed lag."""
    config = LearnerConfig(batch=32, max_policy_lag=10)
    check_lag(config, 256)
    with pytest.raises(ConfigError, match=r"learner.batch = 33 or more"):
        check_lag(config, 260)
    with pytest.raises(ConfigError, match=r"learner.max_policy_lag = 11 or more"):
        check_lag(LearnerConfig(batch=32, max_policy_lag=10, reuse=2), 260)  # passes over a batch do not age it
