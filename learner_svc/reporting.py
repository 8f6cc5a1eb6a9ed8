"""Reports on a run: rows of metrics.csv, the summary, dropped experience by actor, and a warning of too many lanes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seedbed.learner_svc.config import LearnerSettings, check_lag
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.producer_sessions import ProducerSessions, UnrollKey
from seedbed.learner_svc.ranks.rounds import RankFigures
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.writer import RestartCounter, summarise
from seedbed.learner_svc.sources.source import FilledBatch
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns, inference

MAX_ACTORS = 1024  # actors whose dropped steps are counted one by one


class Reporter:
    """Collects reports from the parts of a learner. Owned by its loop; memory: a count for each of MAX_ACTORS actors.

    Args:
      loop_lag_s: returns how late the loop's last timer was, seconds.
      busy_s: returns for how long the update thread has been at its present job, seconds.
      machine_share: returns how busy the machine was since the last call, 0…1.
      warn: logs a warning; takes an event's name and its values.
    """

    def __init__(
        self, settings: LearnerSettings, run: Run, producers: ProducerSessions, restarts: RestartCounter,
        figures: UpdateMetrics, *, loop_lag_s: Callable[[], float], busy_s: Callable[[], float],
        machine_share: Callable[[], float | None], warn: Callable[..., object],
    ) -> None:  # fmt: skip
        self.dropped_by_actor: dict[str, int] = {}
        self.ranks: Sequence[RankFigures] = ()  # what every learner rank has told of itself, if there are several
        self._settings, self._run, self._figures = settings, run, figures
        self._producers, self._restarts = producers, restarts
        self._loop_lag_s, self._busy_s, self._machine_share, self._warn = loop_lag_s, busy_s, machine_share, warn
        self._warned_lanes = 0
        self._last_row: tuple[float, Sequence[RankFigures]] = (0.0, ())  # when it was made, and from which `ranks`

    def row(self, now: float, source: Mapping[str, float]) -> dict[str, float | int | None]:
        """Return the next row of metrics.csv by column; warns of more lanes than the limit on the lag allows.

        Args:
          source: metrics of the source of batches, by column.
        """
        producers, ledger = self._producers, self._producers.ledger
        self._restarts.heard({incarnation: load.figures for incarnation, load in producers.loads.items()})
        loads = [load.figures for load in producers.loads.values()]
        self._warn_of_lanes(int(sum(load.get(inference.NUM_LANES.name, 0.0) for load in loads)))
        others: dict[str, float | int | None] = {
            columns.DUPLICATE_UNROLLS.name: float(ledger.duplicate_unrolls),
            columns.LOST_UNROLLS.name: float(ledger.lost_unrolls),
            columns.INFERENCE_RESTARTS.name: float(sum(self._restarts.inference().values())),
            columns.LEARNER_LOOP_LAG.name: 1e3 * self._loop_lag_s(),
            columns.MACHINE_BUSY_SHARE.name: self._machine_share(),
        }
        scores = self._run.normalised_figures if self._figures.evaluation is not None else {}
        return self._figures.row(
            self._run.counters, self._run.training, loads, epoch=producers.identity.epoch, now=now,
            running_s=self._busy_s(),
            others=others | dict(source) | self._run.tasks.row() | scores | self._rank_columns(now),
        )  # fmt: skip

    def _rank_columns(self, now: float) -> dict[str, float]:
        """Return the columns of each rank since the last row; none in the first row."""
        (then, before), self._last_row = self._last_row, (now, self.ranks)
        passed_s = max(1e-9, now - then)
        row: dict[str, float] = {}
        for rank, (total, former) in enumerate(zip(self.ranks, before, strict=False)):
            risen = total.since(former)
            row[columns.RANK_BATCH_WAIT.of(str(rank))] = min(1.0, risen.batch_wait_s / passed_s)
            row[columns.RANK_RANKS_WAIT.of(str(rank))] = min(1.0, risen.ranks_wait_s / passed_s)
            row[columns.RANK_TRAINED_LANES.of(str(rank))] = risen.trained_lanes / passed_s
        return row

    def _warn_of_lanes(self, lanes: int) -> None:
        """Warn of more lanes than the limit on the lag allows, once for each larger number.

        It only warns, because the number comes from peers; the launcher checks the lanes that it starts itself.
        """
        if lanes <= self._warned_lanes or not self._settings.algorithm.is_lag_bounded:
            return
        self._warned_lanes = lanes
        try:
            check_lag(self._settings.learner, lanes, num_ranks=self._producers.identity.num_ranks)
        except ConfigError as error:
            self._warn("too_many_lanes", error=str(error))

    def count_drops(self, batch: FilledBatch[UnrollKey], dropped: Sequence[int]) -> None:
        """Count transitions that were too old to be trained on by actor; `dropped` has a number for each lane."""
        lane = 0
        for key, lanes in batch.parts:
            steps = sum(dropped[lane : lane + lanes])
            lane += lanes
            if steps and (key.actor in self.dropped_by_actor or len(self.dropped_by_actor) < MAX_ACTORS):
                self.dropped_by_actor[key.actor] = self.dropped_by_actor.get(key.actor, 0) + steps

    def summary(self, *, device: str) -> dict[str, Any]:
        """Return the present content of summary.json."""
        identity, restarts, ledger = self._producers.identity, self._restarts, self._producers.ledger
        return summarise(
            self._run, self._settings, run_id=identity.run_id, device=device,
            restarts={"learner": identity.epoch - 1, **restarts.inference(), "actors": restarts.actors()},
            dropped_unrolls={
                "expired": self._run.counters.expired_unrolls,
                "lost_epoch": ledger.lost_unrolls,
                "duplicate": ledger.duplicate_unrolls,
            },
        )  # fmt: skip
