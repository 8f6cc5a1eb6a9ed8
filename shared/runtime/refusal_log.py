"""Counts refused peers by reason at /metrics, and logs them at most once a minute for each reason."""

import time
from collections.abc import Callable

from seedbed.shared.figures.service import REFUSED_PEERS
from seedbed.shared.runtime import open_files
from seedbed.shared.runtime.logs import Log
from seedbed.shared.runtime.metrics import Metrics

TELL_EVERY_S = 60.0


class RefusalLog:
    """Called with a reason (a short constant) and who it was. Owned by the service's loop; bounded by the reasons."""

    def __init__(self, metrics: Metrics, log: Log, now: Callable[[], float] = time.monotonic) -> None:
        self._count = metrics.counter(REFUSED_PEERS.name, REFUSED_PEERS.meaning, REFUSED_PEERS.labels)
        self._log, self._now = log, now
        self._tell_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

    def __call__(self, reason: str, peer: str) -> None:
        """Count and log that someone was refused."""
        self._count.labels(reason=reason).inc()
        untold = self._untold[reason] = self._untold.get(reason, 0) + 1
        now = self._now()
        if now >= self._tell_at.get(reason, now):
            self._tell_at[reason] = now + TELL_EVERY_S
            self._untold[reason] = 0
            hint = {"hint": _open_files_hint()} if reason == open_files.REFUSED else {}
            self._log.warning("peer_refused", reason=reason, peer=peer, times=untold, **hint)


def _open_files_hint() -> str:
    limit = open_files.file_limit()
    most = f"this service may have {limit} open files, of which each connection is one"
    return f"{most}: {open_files.how_to_raise(limit)}"
