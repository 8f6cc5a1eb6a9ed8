"""The monitor's memory: all runs of a folder, looked at when somebody asks and at most once a second. Blocking.

Nobody asks, nothing happens: there is no thread of its own. Any thread may call it; one at a time is served.
"""

import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, Metric

from seedbed.services.tools.cli.runs import RECORD, SNAPSHOT
from seedbed.services.tools.monitor import views
from seedbed.services.tools.monitor.alerts import Alert, judge_disk
from seedbed.services.tools.monitor.exposition import MetricsSource, render
from seedbed.services.tools.monitor.health import Health
from seedbed.services.tools.monitor.logs import read_logs
from seedbed.services.tools.monitor.pages import Page, PageState, Visitor
from seedbed.services.tools.monitor.pictures import Picture, newest_picture
from seedbed.services.tools.monitor.reading import RunReader
from seedbed.services.tools.monitor.remote_reports import RemoteReports
from seedbed.services.tools.monitor.verdict import judge
from seedbed.shared.figures import declare
from seedbed.shared.figures.monitor import ALERTS, UP

EVERY_S = 0.9  # below the page's second
RESTING_EVERY_S = 5.0  # runs that are not live
MAX_RUNS = 200  # those that began or added to their table last are shown, so that none that trains is left out
MAX_TABLES = 32  # kept in memory: those of live runs, and those asked for last
TABLE = "metrics.csv"
MARKS = (RECORD, str(SNAPSHOT), TABLE)  # a folder that has one of them holds a run


class RunWatch:
    """Reads the runs in a folder, those of seeds too. Memory: bounded by `MAX_RUNS` and `MAX_TABLES`."""

    def __init__(
        self, folder: Path, visitor: Visitor, reports: RemoteReports | None = None, *,
        clock: Callable[[], float] = time.monotonic, wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        """Watch the runs in `folder`; `reports` are those of services whose /metrics cannot be visited, if any."""
        self._folder, self._visitor = folder, visitor
        self._reports = reports if reports is not None else RemoteReports()
        self._clock, self._wall_clock = clock, wall_clock
        self._lock = threading.Lock()
        self._runs: dict[str, RunReader] = {}
        self._wanted: OrderedDict[str, None] = OrderedDict()  # runs whose curves were asked for, the last at the end
        self._looked_at = self._rested_at = float("-inf")
        self._num_left_out = 0
        self._problem = ""

    def overview(self) -> dict[str, Any]:
        """All runs, the newest first, as `views.overview` shows them."""
        with self._lock:
            self._look()
            runs, alerts = list(self._runs.values()), self._alerts()
            return views.overview(
                runs, alerts, folder=self._folder.name, num_left_out=self._num_left_out, problem=self._problem
            )

    def detail(self, name: str) -> dict[str, Any] | None:
        """See `views.detail`; None if there is no such run."""
        return self._view(name, views.detail)

    def curves(self, name: str) -> dict[str, Any] | None:
        """See `views.curves_view`; None if there is no such run."""
        return self._view(name, views.curves_view)

    def settings(self, name: str) -> dict[str, Any] | None:
        """See `views.settings_view`; None if there is no such run."""
        run = self._find(name)
        return views.settings_view(run) if run is not None else None

    def verdict(self, name: str) -> dict[str, Any] | None:
        """See `verdict.judge`; None if there is no such run."""
        return self._view(name, lambda run: judge(run.read_table(), run.max_policy_lag))

    def logs(self, name: str, level: str) -> dict[str, Any] | None:
        """See `logs.read_logs`; None if there is no such run. The files are read outside of the lock."""
        run = self._find(name)
        return views.logs_view(name, read_logs(run.path, level=level)) if run is not None else None

    def video(self, name: str, file: str) -> Path | None:
        """One of a run's videos, by a name that `views.detail` told; None if there is none."""
        run = self._find(name)
        return run.path / file if run is not None and file in run.facts.videos else None

    def _find(self, name: str) -> RunReader | None:
        """A run by its name."""
        with self._lock:
            self._look()
            return self._runs.get(name)

    def picture(self, name: str) -> Picture | None:
        """The newest of a run's evaluation; None if there is none, or no such run. Not under the lock: it may wait."""
        with self._lock:
            self._look()
            run = self._runs.get(name)
            statuses = (
                [status for status in run.facts.statuses if status.role == "inference"] if run is not None else []
            )
            told = self._reports.picture(run.facts.run_id) if run is not None else None
        return told if told is not None else newest_picture(statuses)

    def metrics(self, own: MetricsSource) -> bytes:
        """All live services' metrics, the monitor's own, and what it thinks of them, in Prometheus' text format."""
        with self._lock:
            self._look()
            judged = MetricsSource(labels={}, families=tuple(self._judgement()))
            return render([own, judged, *self._sources()])

    def _view(self, name: str, view: Callable[[RunReader], dict[str, Any]]) -> dict[str, Any] | None:
        """Return a view of a run, whose curves are kept from now on; None if there is no such run.

        Its name is looked up and never joined to a path.
        """
        with self._lock:
            self._look()
            run = self._runs.get(name)
            if run is None:
                return None
            self._wanted.pop(name, None)
            self._wanted[name] = None
            if run.table is None:
                run.read_table()
            return view(run)

    def _look(self) -> None:
        """Renew what is older than its time."""
        clock = self._clock()
        if clock - self._looked_at < EVERY_S:
            return
        rest = clock - self._rested_at >= RESTING_EVERY_S
        self._find_runs()
        due = [run for run in self._runs.values() if rest or run.is_live or run.name in self._wanted]
        self._reports.look()
        told: dict[int, Page] = {}
        for run in due:
            run.look(self._reports)
            told |= run.told
        visited = [status for run in due for status in run.facts.statuses if status.incarnation not in told]
        pages = {**self._visitor.visit(visited), **told}
        visited_at, now = self._clock(), self._wall_clock()
        for run in due:
            run.take_pages(self._pages_of(run, pages), visited_at, now)
        self._read_tables()
        self._looked_at = self._clock()
        self._rested_at = self._looked_at if rest else self._rested_at

    @staticmethod
    def _pages_of(run: RunReader, pages: Mapping[int, Page]) -> dict[int, Page]:
        incarnations = {status.incarnation for status in run.facts.statuses}
        return {incarnation: page for incarnation, page in pages.items() if incarnation in incarnations}

    def _find_runs(self) -> None:
        """Readers for the folders that are there now."""
        self._problem = ""
        try:
            entries = [run for path in self._folder.iterdir() for run in (path, *seeds_in(path))]
        except FileNotFoundError:
            entries = []  # not made yet
        except OSError as error:
            entries, self._problem = [], f"{self._folder}: {error.strerror or error}"
        begun = {path: at for path in entries if (at := begun_at(path)) is not None}
        last = sorted(begun, key=lambda path: (max(begun[path], modified_at(path / TABLE) or 0.0), path), reverse=True)
        self._num_left_out = max(0, len(last) - MAX_RUNS)
        newest = sorted(last[:MAX_RUNS], key=lambda path: (-begun[path], path))
        kept = {printable(path.relative_to(self._folder)): path for path in newest}
        self._runs = {name: self._runs.get(name) or RunReader(name, path) for name, path in kept.items()}

    def _read_tables(self) -> None:
        """Read on in the tables of live runs and of those asked for last; forget the others."""
        live = [name for name, run in self._runs.items() if run.is_live]
        asked = [name for name in reversed(self._wanted) if name in self._runs]
        kept = list(dict.fromkeys((*live, *asked)))[:MAX_TABLES]
        self._wanted = OrderedDict.fromkeys(name for name in self._wanted if name in kept)
        for name, run in self._runs.items():
            if name in kept and (run.is_live or run.table is not None):
                run.read_table()
            elif name not in kept:
                run.forget_table()

    def _alerts(self) -> list[Alert]:
        """Return the alerts of the disk and of every run, the worst first."""
        alerts = [alert for run in self._runs.values() for alert in run.alerts()]
        try:
            usage = shutil.disk_usage(self._folder)
        except OSError:
            return alerts
        return [*judge_disk(usage.free, usage.total), *alerts]

    def _sources(self) -> Iterator[MetricsSource]:
        """The pages of the services that are up."""
        for run in self._runs.values():
            for status in run.facts.statuses:
                page = run.pages.get(status.incarnation)
                if page is not None and page.answer is PageState.UP:
                    labels = {
                        "run": run.name,
                        "service": status.role,
                        "name": status.name,
                        "incarnation": f"{status.incarnation:x}",
                    }
                    yield MetricsSource(labels=labels, families=page.families)

    def _judgement(self) -> Iterator[Metric]:
        """Which services are up, and which alerts there are."""
        registry = CollectorRegistry()
        up = _gauge(UP, registry)
        alerts = _gauge(ALERTS, registry)
        for run in self._runs.values():
            for service in run.services if run.is_live else ():
                up.labels(run.name, service.role, service.name).set(service.health == Health.UP)
        for alert in self._alerts():
            alerts.labels(alert.run, alert.code, alert.level.value).inc()
        yield from registry.collect()


def _gauge(metric: declare.Metric, registry: CollectorRegistry) -> Gauge:
    return Gauge(metric.family, metric.meaning, metric.labels, registry=registry)


def begun_at(path: Path) -> float | None:
    """When a run began or was resumed last, seconds since 1970; None for a folder that holds none, or is gone again."""
    return next((at for mark in MARKS if (at := modified_at(path / mark)) is not None), None)


def modified_at(path: Path) -> float | None:
    """When a file was written last, seconds since 1970; None if it is not there."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def seeds_in(path: Path) -> list[Path]:
    """Where `seedbed train --seeds` puts its runs in a folder; none in one that is something else, or gone again."""
    try:
        return list(path.glob("seed-*"))
    except OSError:
        return []


def printable(path: Path) -> str:
    """A path as text that every encoding has room for."""
    return str(path).encode(errors="replace").decode()
