"""The replay benchmark reports what one thread drew and stored."""

import pytest

from seedbed.services.tools.cli.bench import replay


def test_it_reports_rates_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sequences drawn as stored, at a ratio of 1; percentiles in order."""
    monkeypatch.setattr(replay, "CAPACITY", 500)
    (result,) = replay.measure(0.3)
    assert result["sequences"] == 500
    assert result["drawn_per_s"] == pytest.approx(result["stored_per_s"], rel=0.3)
    assert 0 < result["store_p50_ms"] <= result["store_p99_ms"]
    assert 0 < result["draw_p50_ms"] <= result["draw_p99_ms"]
