"""What a run counts for each of its tasks, and how their results become one. Pure.

A run with one environment has no tasks: its book stays empty. Columns and labels are named after the tasks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seedbed.learner_svc.run.measure import EvaluationResult, Returns, mean_over, median, own_columns
from seedbed.shared.figures import columns
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import TaskEnv
from seedbed.shared.protocol.statistics import Means, evaluation_column, training_column
from seedbed.shared.runtime.tasks import TaskConfig, normalised_weights

COUNTS = ("trained_lanes", "trained_steps", "env_steps", "episodes", "aborted_episodes")


@dataclass(slots=True)
class TaskRecord:
    """One task's figures. The counts are totals over all restarts."""

    config: TaskConfig
    weight: float  # its share of a batch as configured
    trained_lanes: int = 0  # lane-unrolls of the batches that were trained on
    trained_steps: int = 0  # valid transitions trained on
    env_steps: int = 0  # valid transitions acted in training
    episodes: int = 0  # finished, in training
    aborted_episodes: int = 0
    training: Returns = field(default_factory=Returns)
    evaluation: EvaluationResult | None = None  # the last

    @property
    def normalised(self) -> float | None:
        """The last evaluation between random and human score; None if either is missing."""
        return self.config.normalise(self.evaluation.return_mean) if self.evaluation else None


class TaskBook:
    """Every task's record. Owned by the learner's loop; memory: the last 100 episodes of each task."""

    def __init__(self, tasks: Mapping[str, TaskConfig]) -> None:
        weights = normalised_weights(tasks)
        self.records = {name: TaskRecord(config, weights[name]) for name, config in tasks.items()}
        self._round_id = 0  # the evaluation under way
        self._round: dict[str, EvaluationResult] = {}
        self._fresh: set[str] = set()  # tasks evaluated since the last row
        self._is_complete = False  # an evaluation was completed since then

    @property
    def are_several(self) -> bool:
        """Whether the run is for tasks that it names, not for one environment."""
        return bool(self.records)

    @property
    def means(self) -> Means:
        """Mean over the tasks of every statistic's training mean, None until each has one."""
        return mean_over([record.training.means for record in self.records.values()])

    @property
    def have_returns(self) -> bool:
        """Whether in every task so many episodes have ended that their mean means something."""
        return all(record.training.is_full for record in self.records.values())

    def adopt(self, statistics: Sequence[str]) -> None:
        """The environments' own statistics are these."""
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
        """Count a part of a batch that was trained on: lane-unrolls, and their valid transitions."""
        record = self.records.get(task)
        if record is not None:
            record.trained_lanes += lanes
            record.trained_steps += steps

    def shares(self) -> dict[str, float]:
        """Each task's share of the lane-unrolls trained on so far; NaN before the first."""
        total = sum(record.trained_lanes for record in self.records.values())
        return {name: record.trained_lanes / total if total else math.nan for name, record in self.records.items()}

    def evaluated(self, task: str, evaluation_id: int, result: EvaluationResult) -> EvaluationResult | None:
        """A task's result of an evaluation; the whole one when it was the last that was missing. The first counts."""
        if evaluation_id != self._round_id:
            self._round_id, self._round = evaluation_id, {}
        if task not in self.records or task in self._round:
            return None
        self._round[task] = self.records[task].evaluation = result
        self._fresh.add(task)
        if len(self._round) < len(self.records):
            return None
        self._is_complete = True
        return combine(list(self._round.values()))

    def missing(self) -> list[str]:
        """Tasks without a result of the evaluation under way."""
        return [name for name in self.records if name not in self._round]

    def row(self) -> dict[str, float | int | None]:
        """Columns of metrics.csv, with the evaluations since the row before; none without tasks."""
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
            if record.config.random_score is not None:
                row[columns.EVAL_NORMALISED.of(name)] = record.normalised if fresh else None
            row[columns.SHARE.of(name)] = shares[name]
            row[columns.TRAINED_STEPS.of(name)] = record.trained_steps
            row[columns.ENV_STEPS.of(name)] = record.env_steps
            row[columns.EPISODES.of(name)] = record.episodes
        if self._is_complete:
            row |= self.normalised_figures()
        self._fresh, self._is_complete = set(), False
        return row

    def normalised_figures(self) -> dict[str, float | int | None]:
        """Mean, capped mean and median over the tasks of their normalised scores; none unless all have one."""
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
        """The tasks' part of summary.json."""
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
                **own_columns(record.training.means, training_column),
                **(own_columns(record.evaluation.means, evaluation_column) if record.evaluation else {}),
            }
            for name, record in self.records.items()
        }

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            name: {
                **{count: getattr(record, count) for count in COUNTS},
                **record.training.to_json(),
            }
            for name, record in self.records.items()
        }

    def restore(self, meta: Mapping[str, Any]) -> None:
        """Take over what `to_json` gave; a task that is new begins at zero, one that is no more is forgotten."""
        for name, kept in meta.items():
            record = self.records.get(name)
            if record is not None:
                for count in COUNTS:
                    setattr(record, count, kept[count])
                record.training.restore(kept)


def combine(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """Several tasks' results as one. The version is the oldest: several inference services may play different ones."""
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


def count_parts(book: TaskBook, parts: Iterable[tuple[str, int]], trained_steps_B: Sequence[int]) -> None:
    """Count a batch: (task, lanes) in order of the lanes, and the transitions of each lane that were trained on."""
    lane = 0
    for task, lanes in parts:
        book.trained(task, lanes=lanes, steps=sum(trained_steps_B[lane : lane + lanes]))
        lane += lanes


def reward_scales(tasks: Mapping[str, TaskConfig], parts: Iterable[tuple[str, int]]) -> Array | None:
    """What each lane of a batch has its rewards multiplied by, f32 [B]; None if no task scales its own."""
    if all(task.reward_scale == 1.0 for task in tasks.values()):
        return None
    return np.concatenate([np.full(lanes, tasks[task].reward_scale, np.float32) for task, lanes in parts])


def task_environments(tasks: Mapping[str, TaskConfig]) -> tuple[TaskEnv, ...]:
    """The tasks as every WELCOME names them."""
    return tuple(TaskEnv(name=name, env_id=task.env.id, settings=task.env.settings()) for name, task in tasks.items())
