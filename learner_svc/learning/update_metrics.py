"""The metrics of a row of metrics.csv: means over the updates since the previous row, totals, rates, loads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from seedbed.learner_svc.learning.trainer import Trained
from seedbed.learner_svc.run.measure import EvaluationResult, Returns, evaluation_figures, own_columns
from seedbed.learner_svc.run.run import Counters
from seedbed.shared.figures import columns, inference
from seedbed.shared.figures.declare import Combine
from seedbed.shared.protocol.statistics import training_column

LARGEST = (columns.LAG_MAX.name,)  # metrics of which the largest value counts; others are averaged


@dataclass(slots=True)
class UpdateMetrics:
    """Sums since the last row. Owned by the learner's loop; memory: one number per metric."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # metrics of the newest update, for /metrics
    newest: dict[str, float] = field(default_factory=dict)  # value of each column in the newest row that has one
    num_updates: int = 0
    num_batches: int = 0
    busy_s: float = 0.0
    evaluation: EvaluationResult | None = None
    _counted_s: float = 0.0  # of the update that runs, in earlier rows
    _idle_s: float = 0.0  # since the last batch that a row counted
    _at: float | None = None
    _counters: Counters = field(default_factory=Counters)

    def start(self, counters: Counters, now: float) -> None:
        """Start the time over which the rates of the first row are taken."""
        self._at, self._counters = now, _copy(counters)

    def trained(self, trained: Trained) -> None:
        """Add the update on one batch."""
        self.num_updates += trained.result.applied
        self.num_batches += 1
        self.busy_s += trained.seconds
        for name, value in trained.result.metrics.items():
            if name in LARGEST:
                self.sums[name] = max(value, self.sums.get(name, value))
                self.counts[name] = 1
            else:
                self.sums[name] = self.sums.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1
        self.last.update(trained.result.metrics)

    def row(
        self, counters: Counters, training: Returns, loads: Iterable[Mapping[str, float]], *, epoch: int, now: float,
        others: Mapping[str, float | int | None], running_s: float = 0.0,
    ) -> dict[str, float | int | None]:  # fmt: skip
        """Return the row and start the next one.

        Args:
          others: columns to add unchanged.
          running_s: how long the update that is under way has been running; 0 without one.
        """
        elapsed = max(1e-9, now - self._at) if self._at is not None else 1e-9
        busy_s = min(elapsed, max(0.0, self.busy_s + running_s - self._counted_s))
        self._idle_s += elapsed - busy_s
        before, lengths = self._counters, training.lengths
        row: dict[str, float | int | None] = {
            columns.SECONDS.name: counters.seconds,
            columns.EPOCH.name: epoch,
            columns.UPDATES.name: counters.updates,
            columns.TRAINED_STEPS.name: counters.trained_steps,
            columns.ENV_STEPS.name: counters.env_steps,
            columns.EPISODES.name: counters.episodes,
            columns.RETURN_MEAN.name: training.mean,
            columns.LENGTH_MEAN.name: sum(lengths) / len(lengths) if lengths else None,
            columns.ENV_STEPS_PER_S.name: (counters.env_steps - before.env_steps) / elapsed,
            columns.TRAINED_STEPS_PER_S.name: (counters.trained_steps - before.trained_steps) / elapsed,
            columns.UPDATES_PER_S.name: self.num_updates / elapsed,
            columns.UPDATE_BUSY_SHARE.name: busy_s / elapsed,
            columns.BATCH_WAIT.name: 1e3 * self._idle_s / self.num_batches if self.num_batches else None,
            columns.DROPPED_STEPS.name: counters.dropped_steps,
            columns.LOST_EPOCH_STEPS.name: counters.lost_epoch_steps,
            columns.ABORTED_EPISODES.name: counters.aborted_episodes,
        }
        row |= {name: total / self.counts[name] for name, total in self.sums.items()}
        row |= own_columns(training.means, training_column)
        row |= _combine(list(loads))
        row |= others
        if self.evaluation is not None:
            row |= evaluation_figures(self.evaluation)
        self.newest |= {name: value for name, value in row.items() if value is not None}
        self.sums, self.counts, self.evaluation = {}, {}, None
        self._idle_s = 0.0 if self.num_batches else self._idle_s
        self.num_updates, self.num_batches, self.busy_s, self._counted_s = 0, 0, 0.0, running_s
        self._at, self._counters = now, _copy(counters)
        return row


def _combine(loads: list[Mapping[str, float]]) -> dict[str, float]:
    """Combine the loads of several inference services."""
    combined: dict[str, float] = {columns.INFERENCE_SERVICES.name: float(len(loads))}
    for load in inference.LOADS:
        values = [told[load.name] for told in loads if load.name in told]
        if values:
            combined[load.column.name] = sum(values) / (len(values) if load.combine is Combine.MEAN else 1)
    return combined


def _copy(counters: Counters) -> Counters:
    return Counters(**counters.to_json())
