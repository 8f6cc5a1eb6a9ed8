"""The counters and results of each task of a run, and their combination. Pure.

A run with one environment has no tasks. Columns and labels are named after the tasks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from seedbed.learner_svc.run.measure import EvaluationResult, Returns, mean_over, median, own_columns
from seedbed.shared.figures import columns
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import TaskEnv
from seedbed.shared.protocol.statistics import Means, evaluation_column, training_column
from seedbed.shared.runtime.config import EvalConfig
from seedbed.shared.runtime.tasks import TaskConfig, normalised_weights
from seedbed.shared.scores.scale import ScoreScale

COUNTS = ("trained_lanes", "trained_steps", "env_steps", "episodes", "aborted_episodes")


@dataclass(slots=True)
class TaskRecord:
    """The counters and results of one task. Counters are totals over all restarts."""

    config: TaskConfig
    weight: float  # configured share of a batch
    scale: ScoreScale | None  # of its normalised scores
    trained_lanes: int = 0  # lane-unrolls of the batches that were trained on
    trained_steps: int = 0  # valid transitions trained on
    env_steps: int = 0  # valid transitions acted in training
    episodes: int = 0  # finished, in training
    aborted_episodes: int = 0
    training: Returns = field(default_factory=Returns)
    evaluation: EvaluationResult | None = None  # the last one

    @property
    def normalised(self) -> float | None:
        """The mean return of the last evaluation, normalised to random and human score; None without one or a scale."""
        return self.scale.normalise(self.evaluation.return_mean) if self.scale and self.evaluation else None


class TaskBook:
    """The records of all tasks. Owned by the learner's loop; memory: the last 100 episodes of each task."""

    def __init__(self, tasks: Mapping[str, TaskConfig], evaluation: EvalConfig) -> None:
        weights = normalised_weights(tasks)
        self.records = {
            name: TaskRecord(config, weights[name], config.scale(evaluation)) for name, config in tasks.items()
        }
        self._round_id = 0  # id of the evaluation under way
        self._round: dict[str, EvaluationResult] = {}
        self._fresh: set[str] = set()  # tasks evaluated since the last row of metrics.csv

    @property
    def is_multi_task(self) -> bool:
        """Whether the run has tasks."""
        return bool(self.records)

    @property
    def means(self) -> Means:
        """Mean over the tasks of each statistic's training mean; None until all tasks have one."""
        return mean_over([record.training.means for record in self.records.values()])

    @property
    def have_returns(self) -> bool:
        """Whether enough episodes have ended in every task for a meaningful mean."""
        return all(record.training.is_full for record in self.records.values())

    def adopt(self, statistics: Sequence[str]) -> None:
        """Set the names of the environments' own statistics."""
        for record in self.records.values():
            record.training.adopt(statistics)

    def acted(self, task: str, statistics: Array, *, steps: int, aborted: int) -> None:
        """Count an EPISODES message of a task's training groups: statistics f32 [N, K] of the episodes that ended."""
        record = self.records.get(task)
        if record is not None:
            record.training.add(statistics)
            record.episodes += len(statistics)
            record.env_steps += steps
            record.aborted_episodes += aborted

    def trained(self, task: str, *, lanes: int, steps: int) -> None:
        """Count a task's part of a batch that was trained on: lane-unrolls, and their valid transitions."""
        record = self.records.get(task)
        if record is not None:
            record.trained_lanes += lanes
            record.trained_steps += steps

    def shares(self) -> dict[str, float]:
        """Return each task's share of the lane-unrolls trained on so far; NaN before the first."""
        total = sum(record.trained_lanes for record in self.records.values())
        return {name: record.trained_lanes / total if total else math.nan for name, record in self.records.items()}

    def evaluated(self, task: str, evaluation_id: int, result: EvaluationResult) -> EvaluationResult | None:
        """Take a task's result; return the combined result if it was the last one missing. A second one is ignored."""
        if evaluation_id != self._round_id:
            self._round_id, self._round = evaluation_id, {}
        if task not in self.records or task in self._round:
            return None
        self._round[task] = self.records[task].evaluation = result
        self._fresh.add(task)
        if len(self._round) < len(self.records):
            return None
        return combine(list(self._round.values()))

    def missing(self) -> list[str]:
        """Return the tasks without a result of the evaluation under way."""
        return [name for name in self.records if name not in self._round]

    def row(self) -> dict[str, float | int | None]:
        """Return columns of metrics.csv, with the evaluations since the last row; none without tasks."""
        shares = self.shares()
        row: dict[str, float | int | None] = {}
        if self.records:
            row = {columns.RETURN_MEAN.name: self.means["return"], **own_columns(self.means, training_column)}
        for name, record in self.records.items():
            row[columns.RETURN_MEAN.of(name)] = record.training.mean
            fresh = record.evaluation if name in self._fresh else None
            row[columns.EVAL_RETURN_MEAN.of(name)] = fresh.return_mean if fresh else None
            row |= own_columns(record.training.means, training_column, name)
            row |= dict.fromkeys(own_columns(record.training.means, evaluation_column, name))
            row |= own_columns(fresh.means, evaluation_column, name) if fresh else {}
            if record.scale is not None:
                row[columns.EVAL_NORMALISED.of(name)] = record.normalised if fresh else None
            row[columns.SHARE.of(name)] = shares[name]
            row[columns.TRAINED_STEPS.of(name)] = record.trained_steps
            row[columns.ENV_STEPS.of(name)] = record.env_steps
            row[columns.EPISODES.of(name)] = record.episodes
        self._fresh = set()
        return row

    def normalised_figures(self) -> dict[str, float | int | None]:
        """Return mean, capped mean and median of the tasks' normalised scores; none unless all have one."""
        scores = [record.normalised for record in self.records.values()]
        known = sorted(score for score in scores if score is not None)
        if not known or len(known) < len(scores):
            return {}
        return {
            columns.EVAL_NORMALISED_MEAN.name: math.fsum(known) / len(known),
            columns.EVAL_NORMALISED_CAPPED_MEAN.name: math.fsum(min(1.0, score) for score in known) / len(known),
            columns.EVAL_NORMALISED_MEDIAN.name: median(known),
        }

    def summary(self) -> dict[str, Any]:
        """Return the tasks' part of summary.json."""
        shares = self.shares()
        return {
            name: {
                "env_id": record.config.env.id,
                "weight": record.weight,
                "share": None if math.isnan(shares[name]) else round(shares[name], 6),
                **{count: getattr(record, count) for count in COUNTS},
                "episode_return_mean": record.training.mean,
                "eval_return_mean": record.evaluation.return_mean if record.evaluation else None,
                "eval_return_std": record.evaluation.return_std if record.evaluation else None,
                "eval_length_mean": record.evaluation.length_mean if record.evaluation else None,
                "eval_episodes": record.evaluation.episodes if record.evaluation else 0,
                "eval_normalised": record.normalised,
                "score_scale": asdict(record.scale) if record.scale else None,
                **own_columns(record.training.means, training_column),
                **(own_columns(record.evaluation.means, evaluation_column) if record.evaluation else {}),
            }
            for name, record in self.records.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            name: {
                **{count: getattr(record, count) for count in COUNTS},
                **record.training.to_json(),
            }
            for name, record in self.records.items()
        }

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Restore what `to_json` returned; a new task begins at zero, and one that no longer exists is dropped."""
        for name, kept in meta.items():
            record = self.records.get(name)
            if record is not None:
                for count in COUNTS:
                    setattr(record, count, kept[count])
                record.training.restore(kept)


def combine(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Combine several tasks' results. The version is the oldest, as inference services may play different ones."""
    means = sorted(result.return_mean for result in results)
    mean = math.fsum(means) / len(means)
    return EvaluationResult(
        version=min(result.version for result in results),
        episodes=sum(result.episodes for result in results),
        return_mean=mean,
        return_std=math.sqrt(math.fsum((value - mean) ** 2 for value in means) / len(means)),
        return_median=median(means),
        return_min=means[0],
        return_max=means[-1],
        length_mean=math.fsum(result.length_mean for result in results) / len(results),
        own=mean_over([result.own for result in results]),
    )


def lane_tasks(tasks: Iterable[str], parts: Sequence[tuple[str, int]]) -> Array | None:
    """Return the number of each lane's task, i64 [B], in the order of `tasks`; None in a run without tasks.

    Args:
      parts: (task, number of lanes), in the order of the lanes.
    """
    numbers = {task: number for number, task in enumerate(tasks)}
    if not numbers:
        return None
    return np.repeat([numbers[task] for task, _ in parts], [lanes for _, lanes in parts])


def task_environments(tasks: Mapping[str, TaskConfig]) -> tuple[TaskEnv, ...]:
    """Return the tasks as WELCOME lists them."""
    return tuple(TaskEnv(name=name, env_id=task.env.id, settings=task.env.settings()) for name, task in tasks.items())
