"""The figures of one row of metrics.csv: means over the updates since the row before, totals, rates, others' loads."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from seedbed.learner_svc.measure import EvaluationResult, Returns, own_columns
from seedbed.learner_svc.run import Counters
from seedbed.learner_svc.trainer import Trained
from seedbed.shared.protocol.statistics import evaluation_column, training_column

MEANS = (
    "batch_fill",
    "queue_wait_ms",
    "forward_ms",
    "loop_lag_ms",
    "env_busy_share",
)  # of inference services; other loads are summed
SUMS = ("sessions", "lanes", "actor_restarts")
LARGEST = ("lag_max",)  # of several updates; other metrics are averaged


@dataclass(slots=True)
class UpdateMetrics:
    """Sums since the last row. Owned by the learner's loop; memory: one number per metric."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)  # of the newest update, for /metrics
    num_updates: int = 0
    num_batches: int = 0
    busy_s: float = 0.0
    evaluation: EvaluationResult | None = None
    _at: float | None = None
    _counters: Counters = field(default_factory=Counters)

    def start(self, counters: Counters, now: float) -> None:
        """Begin to count: the first row's rates are over the time from now on."""
        self._at, self._counters = now, _copy(counters)

    def trained(self, trained: Trained) -> None:
        """Take in the update on one batch."""
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
        others: Mapping[str, float | int | None],
    ) -> dict[str, float | int | None]:  # fmt: skip
        """The row, and start the next. `others` are added as they are."""
        elapsed = max(1e-9, now - self._at) if self._at is not None else 1e-9
        before, lengths = self._counters, training.lengths
        row: dict[str, float | int | None] = {
            "seconds": counters.seconds,
            "epoch": epoch,
            "updates": counters.updates,
            "trained_steps": counters.trained_steps,
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "return_mean": training.mean,
            "length_mean": sum(lengths) / len(lengths) if lengths else None,
            "env_steps_per_s": (counters.env_steps - before.env_steps) / elapsed,
            "trained_steps_per_s": (counters.trained_steps - before.trained_steps) / elapsed,
            "updates_per_s": self.num_updates / elapsed,
            "update_busy_share": min(1.0, self.busy_s / elapsed),
            "batch_wait_ms": 1e3 * max(0.0, elapsed - self.busy_s) / self.num_batches if self.num_batches else None,
            "dropped_steps": counters.dropped_steps,
            "lost_epoch_steps": counters.lost_epoch_steps,
            "aborted_episodes": counters.aborted_episodes,
        }
        row |= {name: total / self.counts[name] for name, total in self.sums.items()}
        row |= own_columns(training.means, training_column)
        row |= _combine(list(loads))
        row |= others
        if self.evaluation is not None:
            row |= evaluation_figures(self.evaluation)
        self.sums, self.counts, self.evaluation = {}, {}, None
        self.num_updates, self.num_batches, self.busy_s = 0, 0, 0.0
        self._at, self._counters = now, _copy(counters)
        return row


def evaluation_figures(result: EvaluationResult) -> dict[str, float | int | None]:
    """An evaluation's result as columns of metrics.csv."""
    return {
        "eval_return_mean": result.return_mean,
        "eval_return_std": result.return_std,
        "eval_return_median": result.return_median,
        "eval_return_min": result.return_min,
        "eval_return_max": result.return_max,
        "eval_length_mean": result.length_mean,
        "eval_episodes": result.episodes,
        "eval_version": result.version,
        **own_columns(result.means, evaluation_column),
    }


def _combine(loads: list[Mapping[str, float]]) -> dict[str, float]:
    """Several inference services' loads as one."""
    combined: dict[str, float] = {"inference_services": float(len(loads))}
    for name in SUMS + MEANS:
        values = [load[name] for load in loads if name in load]
        if values:
            combined[f"inference_{name}"] = sum(values) / (len(values) if name in MEANS else 1)
    return combined


def _copy(counters: Counters) -> Counters:
    return Counters(**counters.to_json())
