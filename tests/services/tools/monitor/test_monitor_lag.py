"""The histogram of policy lag: from the learner's page, over the last minute, from a summary, as the page shows it."""

import pytest

from seedbed.services.tools.cli.scrape import parse_families
from seedbed.services.tools.monitor.lag import LagHistogram, LagWindow, read_page, read_summary, view
from seedbed.shared.runtime.metrics import Metrics

LOWS = (0, 1, 2, 4)


def histogram(*counts):
    return LagHistogram(lows=LOWS, counts=counts)


def test_the_learners_page_becomes_counts_for_each_range():
    """Not summed up from below, as Prometheus has them."""
    with Metrics("learner", "learner", 1) as metrics:
        metrics.read_histogram("learner_policy_lag", "Lag.", (0, 1, 3), lambda: ((5, 0, 2, 1), 10.0))
        families = parse_families(metrics.text().encode())
    assert read_page(families) == histogram(5, 0, 2, 1)
    assert read_page(()) is None


def test_a_live_runs_histogram_is_that_of_its_last_minute():
    """What was counted before is not shown; a learner that began anew is counted from there."""
    window = LagWindow()
    assert window.recent() is None
    window.add(histogram(10, 0, 0, 0), 0.0)
    assert window.recent() == histogram(10, 0, 0, 0)
    window.add(histogram(10, 4, 0, 0), 30.0)
    assert window.recent() == histogram(0, 4, 0, 0)
    for now in range(40, 200, 10):
        window.add(histogram(10, 4, now, 0), float(now))
    assert window.recent() == histogram(0, 0, 60, 0)
    window.add(histogram(3, 0, 0, 0), 200.0)
    assert window.recent() == histogram(3, 0, 0, 0)
    window.clear()
    assert window.recent() is None


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"0": 5, "1": 0, "2-3": 2, "4-": 1}, histogram(5, 0, 2, 1)),
        (None, None), ({}, None), ([1], None), ({"x": 1}, None), ({"0": "many"}, None), ({"0": None}, None),
        ({"1": 1, "0": 1}, None), ({"0": -1}, None), ({"0": float("nan")}, None), ({"0": 1, "9" * 30: 1}, None),
    ],
)  # fmt: skip
def test_a_finished_runs_histogram_is_in_its_summary(table, found):
    """Whatever else stands there is unknown."""
    assert read_summary({} if table is None else {"policy_lag_histogram": table}) == found


def test_ranges_are_shown_as_far_as_they_are_filled_or_allowed():
    """So that one sees how near the bound is, and not a row of zeros."""
    assert view(histogram(5, 1, 0, 0), 2.0, is_recent=True) == {
        "lows": [0, 1, 2], "is_open": False, "counts": [5, 1, 0], "bound": 2.0, "is_recent": True,
    }  # fmt: skip
    assert view(histogram(0, 0, 0, 1), None, is_recent=False)["is_open"] is True
    assert view(histogram(0, 0, 0, 0), 2.0, is_recent=False) is None
    assert view(None, 2.0, is_recent=False) is None
