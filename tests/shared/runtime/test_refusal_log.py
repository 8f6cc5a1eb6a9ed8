"""Refused peers are counted one by one, and told about seldom."""

import structlog
from structlog.testing import capture_logs

from seedbed.shared.runtime.metrics import Metrics
from seedbed.shared.runtime.refusal_log import RefusalLog


def test_a_flood_is_counted_and_told_once_a_minute_for_each_reason():
    """The line says how many there were since the last one."""
    clock = [0.0]
    with Metrics("inference", "inference", 1) as metrics, capture_logs() as lines:
        refusals = RefusalLog(metrics, structlog.get_logger(), lambda: clock[0])
        for _ in range(50):
            refusals("unknown_key", "10.0.0.7")
        refusals("handshake", "")
        clock[0] = 61.0
        refusals("unknown_key", "10.0.0.8")
        page = metrics.text()
    assert [(line["reason"], line["peer"], line["times"]) for line in lines] == [
        ("unknown_key", "10.0.0.7", 1),
        ("handshake", "", 1),
        ("unknown_key", "10.0.0.8", 50),
    ]
    assert 'seedbed_refused_peers_total{reason="unknown_key"} 51.0' in page
    assert 'seedbed_refused_peers_total{reason="handshake"} 1.0' in page
