"""One run, read again and again: what its folder, its table and its services' pages say together. Blocking reads.

`refresh` looks; everything else only says what was seen.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from seedbed.learner_svc.algorithms.config import is_lag_bounded
from seedbed.services.tools.cli.board import Board, Samples
from seedbed.services.tools.cli.run_state import State
from seedbed.services.tools.monitor.alerts import FIGURES, Alert, Reading, judge_run
from seedbed.services.tools.monitor.curves import Array, Curves
from seedbed.services.tools.monitor.folder import Facts, WatchedFolder
from seedbed.services.tools.monitor.health import ServiceHealth, map_services, ups
from seedbed.services.tools.monitor.lag import LagHistogram, LagWindow, read_page, read_summary
from seedbed.services.tools.monitor.pages import Page, PageState
from seedbed.services.tools.monitor.remote_reports import RemoteReports
from seedbed.services.tools.monitor.table import MetricsTable
from seedbed.shared.figures import columns
from seedbed.shared.figures.declare import Column
from seedbed.shared.protocol.messages import RunState

WRITING_S = 15.0  # a table that changed since then belongs to a learner that we may not see
STARTING_S = 60.0
ENDING_S = 2.0  # between the last row and the launcher's word that the run has ended
LAG_ROWS = 30  # over which the lag is judged
READ_BUDGET_S = 0.25  # of a table, in one turn
STATES = {
    RunState.STARTING: "starting",
    RunState.TRAINING: "training",
    RunState.FINISHING: "evaluating",
    RunState.FINISHED: "finished",
}


class RunReader:
    """Owned by one thread at a time. Memory: the small files, and the table while it is wanted."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self._folder = WatchedFolder(path)
        self._path = path
        self._board: Board | None = None
        self._roles: Mapping[str, str] = {}  # of every service that the board knows
        self._fresh: Mapping[str, Samples] = {}  # of those that are up
        self._now = 0.0
        self.table: MetricsTable | None = None
        self.table_problem = ""
        self.pages: Mapping[int, Page] = {}
        self.facts: Facts = self._folder.read()
        self.told: Mapping[int, Page] = {}  # pages that came over the link, by incarnation
        self.services: list[ServiceHealth] = []
        self._lag = LagWindow()

    def look(self, reports: RemoteReports) -> None:
        """Read the small files again, and what its services said over the link."""
        facts = self._folder.read()
        told: dict[int, Page] = {}
        added, deaths = [], reports.deaths(facts.run_id)
        for status, page in reports.of(facts.run_id):
            told[status.incarnation] = page
            if status.incarnation not in (known.incarnation for known in facts.statuses):
                added.append(status)
        self.told = told
        num_deaths = Counter(facts.num_deaths) + Counter(death.service for death in deaths)
        self.facts = replace(
            facts, statuses=(*facts.statuses, *added), deaths=(*facts.deaths, *deaths), num_deaths=num_deaths
        )

    def take_pages(self, pages: Mapping[int, Page], at: float, now: float) -> None:
        """What the visit of this run's services brought; decides who is live.

        `at`: when they were visited, by a clock that never goes back, seconds; `now`: seconds since 1970.
        """
        self.pages, self._now = pages, now
        self._observe(at)
        figures = {name: self._board.service(name) for name in self._fresh} if self._board is not None else {}
        self.services = map_services(self.facts, pages, figures, is_over=not self.is_live, now=now)

    def read_table(self) -> MetricsTable:
        """The table, read on for at most `READ_BUDGET_S`."""
        if self.table is None:
            self.table = MetricsTable(self._path / "metrics.csv")
        try:
            self.table.advance(time.monotonic() + READ_BUDGET_S)
            self.table_problem = self.table.problem
        except OSError as error:
            self.table_problem = f"metrics.csv: {error.strerror or error}"
        return self.table

    def forget_table(self) -> None:
        """Nobody wants the curves for now."""
        self.table = None

    @property
    def is_live(self) -> bool:
        """Whether something of the run is at work, as far as it can be seen from here."""
        if any(page.answer is PageState.UP for page in self.pages.values()):
            return True
        status = self.facts.status
        if status.state is State.RUNNING:
            return True
        if self.facts.summary.get("finished") is True:
            return False
        changed, started = self.facts.changed_at, self.facts.started_at
        if status.at is not None and status.at >= max(changed or 0.0, started or 0.0) - ENDING_S:
            return False  # whoever held the folder told its end, and nothing was written since
        is_writing = changed is not None and self._now - changed < max(WRITING_S, 3 * self._row_every_s)
        is_starting = started is not None and self._now - started < STARTING_S
        return is_writing or (is_starting and not self.facts.summary)

    @property
    def live(self) -> Board | None:
        """What the live services say; None without a state."""
        return None if self.state is None else self._board

    @property
    def state(self) -> RunState | None:
        """Where the run is, as its learner says; None if none is up, or for a state that this version does not know."""
        if self._board is None or "learner" not in (self._roles[name] for name in self._fresh):
            return None
        try:
            return self._board.state
        except ValueError:
            return None

    @property
    def state_word(self) -> str:
        """The state as the page says it."""
        state = self.state
        if state is not None:
            return STATES[state]
        if self.is_live:
            return "training" if self.facts.changed_at is not None else "starting"
        return self.facts.status.state.value

    def alerts(self) -> list[Alert]:
        """What is wrong with the run now."""
        table = self.table
        curves = table.curves if table is not None and table.share_read == 1.0 else None
        reading = Reading(
            name=self.name,
            is_live=self.is_live,
            state=self.state,
            stalled_s=stalled_s(curves, self.facts, self._now) if curves is not None else None,
            row_every_s=self._row_every_s,
            figures={column: _recent(curves, column, combine) for column, combine in FIGURES.items()},
            max_policy_lag=self.max_policy_lag,
            crashes=self.facts.crashes,
            deaths=self.facts.deaths,
            services=self.services,
            failure=self.facts.status if self.facts.status.state is State.FAILED else None,
            problems=(*self.facts.problems, *([self.table_problem] if self.table_problem else ())),
            broken_lines=table.broken_lines if table is not None else 0,
        )
        return judge_run(reading, self._now)

    @property
    def max_policy_lag(self) -> float | None:
        """The bound of the policy lag, updates; None if the run has none, or its settings do not say."""
        return self._setting("max_policy_lag") if is_lag_bounded(self.facts.config.get("algorithm", {})) else None

    @property
    def lag_histogram(self) -> LagHistogram | None:
        """The policy lags of the last minute while the run is live, and of the whole run when it is over."""
        return self._lag.recent() if self.is_live else read_summary(self.facts.summary)

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self._path

    @property
    def settings(self) -> Mapping[str, str]:
        """Every setting of the run's as text, without secrets."""
        return self._folder.settings

    @property
    def num_up(self) -> int:
        """The number of the run's services that are up."""
        return ups(self.services)

    @property
    def _row_every_s(self) -> float:
        """How often the learner adds a row."""
        every_s = self._setting("metrics_every_s")
        return 1.0 if every_s is None else every_s

    def _setting(self, key: str) -> float | None:
        """Return a number among the learner's settings; None if it is none."""
        value = self.facts.setting("learner", key)
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def _observe(self, at: float) -> None:
        """Feed the board with the pages of the services that are up. A new service begins a new one."""
        roles = {status.name: status.role for status in self.facts.statuses}
        if self._board is None or not roles.items() <= self._roles.items():
            self._roles = {**self._roles, **roles}
            self._board = Board(self._roles)
        found = {status.name: self.pages.get(status.incarnation) for status in self.facts.statuses}
        self._fresh = {name: page.samples() for name, page in found.items() if page and page.answer is PageState.UP}
        learners = [page for status in self.facts.statuses if status.role == "learner" and (page := found[status.name])]
        if not any(page.answer is PageState.UP for page in learners):
            self._lag.clear()
        for page in learners:
            if (histogram := read_page(page.families)) is not None:
                self._lag.add(histogram, at)
        for name in self._roles:
            if name in self._fresh:
                self._board.observe(name, self._fresh[name], at)
            else:
                self._board.forget(name)


def stalled_s(curves: Curves, facts: Facts, now: float) -> float | None:
    """How long no step has been acted or trained, seconds; at least, if it is longer than the recent rows tell."""
    seconds = curves.recent[:, curves.columns.index(columns.SECONDS.name)]
    if not len(seconds):
        return now - facts.started_at if facts.started_at is not None else None
    steps = [
        curves.recent[:, curves.columns.index(column.name)] for column in (columns.TRAINED_STEPS, columns.ENV_STEPS)
    ]
    rises = np.flatnonzero((np.diff(steps[0]) > 0) | (np.diff(steps[1]) > 0))
    last_rise = rises[-1] + 1 if len(rises) else 0
    since_row = max(0.0, now - facts.changed_at) if facts.changed_at is not None else 0.0
    return float(seconds[-1] - seconds[last_rise]) + since_row


def _recent(curves: Curves | None, column: Column, combine: Callable[[Array], np.float64]) -> float | None:
    """One column's last rows as one figure."""
    values = curves.recent_values(column.name)[-LAG_ROWS:] if curves is not None else np.empty(0)
    return float(combine(values)) if len(values) else None
