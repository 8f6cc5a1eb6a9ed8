"""The metrics of the learner at /metrics: its counters, read at each scrape, and the histogram of update times."""

import math
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import Histogram

from seedbed.learner_svc.algorithms.lag import LAG_BOUNDS
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.producer_sessions import ProducerSessions
from seedbed.learner_svc.ranks.rounds import RankFigures
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import TaskRecord
from seedbed.learner_svc.run.writer import RunWriter
from seedbed.shared.figures import columns, learner
from seedbed.shared.figures.declare import Column, Metric
from seedbed.shared.figures.service import LOOP_LAG
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.protocol.statistics import GIVEN, Means
from seedbed.shared.runtime.metrics import Metrics


def register(
    metrics: Metrics, run: Run, producers: ProducerSessions, figures: UpdateMetrics, writer: RunWriter, reactor: Reactor
) -> Histogram:
    """Register all metrics and return the histogram of update times, which the shell fills."""
    _register_link(metrics, producers, reactor)
    readers: Mapping[Metric, Callable[[], float]] = {
        learner.UPDATES: lambda: run.counters.updates,
        learner.TRAINED_STEPS: lambda: run.counters.trained_steps,
        learner.ENV_STEPS: lambda: run.counters.env_steps,
        learner.EPISODES: lambda: run.counters.episodes,
        learner.ABORTED_EPISODES: lambda: run.counters.aborted_episodes,
        learner.DROPPED_STEPS: lambda: run.counters.dropped_steps,
        learner.LOST_EPOCH_STEPS: lambda: run.counters.lost_epoch_steps,
        learner.EVALUATIONS: lambda: run.num_evaluations,
        learner.WRITE_FAILURES: lambda: writer.num_failures,
        learner.STATE: lambda: int(run.state),
        learner.SECONDS: lambda: run.counters.seconds,
        learner.RETURN_MEAN: lambda: _known(run.return_mean),
        learner.EVAL_RETURN_MEAN: lambda: _last_evaluation(run),
        learner.EVAL_NORMALISED: lambda: _normalised(run),
        learner.LAG_MEAN: lambda: figures.last.get(columns.LAG_MEAN.name, 0.0),
        learner.LAG_MAX: lambda: figures.last.get(columns.LAG_MAX.name, 0.0),
        learner.LOG_RHO_LAG0: lambda: figures.last.get(
            columns.LOG_RHO_LAG0.name, math.nan
        ),  # of the newest that has it
        learner.POLICY_STEP: lambda: unpack_version(producers.publisher.version)[1],
    }
    for metric, read in readers.items():
        metrics.read(metric, read)
    metrics.read_histogram(
        learner.POLICY_LAG.name, learner.POLICY_LAG.meaning, LAG_BOUNDS,
        lambda: (run.counters.lag_histogram, run.counters.lag_sum),
    )  # fmt: skip
    metrics.read_labelled(learner.COLUMN, lambda: _of_the_run(figures.newest))
    _register_statistics(metrics, run)
    if run.tasks.records:
        _register_tasks(metrics, run, figures)
    return metrics.histogram(learner.UPDATE_SECONDS.name, learner.UPDATE_SECONDS.meaning)


def register_rank(metrics: Metrics, producers: ProducerSessions, reactor: Reactor) -> Histogram:
    """Register the metrics of a rank other than the chief: of its link, and update times. The run's are the chief's."""
    _register_link(metrics, producers, reactor)
    return metrics.histogram(learner.UPDATE_SECONDS.name, learner.UPDATE_SECONDS.meaning)


def register_ranks(metrics: Metrics, figures: Callable[[], Sequence[RankFigures]]) -> None:
    """Register what every rank has told of itself, under the label `rank`; `figures` is in the order of ranks."""
    readers: Mapping[Metric, Callable[[RankFigures], float]] = {
        learner.RANK_BATCH_WAIT: lambda rank: rank.batch_wait_s,
        learner.RANK_RANKS_WAIT: lambda rank: rank.ranks_wait_s,
        learner.RANK_TRAINED_LANES: lambda rank: rank.trained_lanes,
    }

    def of_each(read: Callable[[RankFigures], float]) -> Callable[[], dict[str, float]]:
        return lambda: {str(rank): read(item) for rank, item in enumerate(figures())}

    for metric, read in readers.items():
        metrics.read_labelled(metric, of_each(read))


def _register_link(metrics: Metrics, producers: ProducerSessions, reactor: Reactor) -> None:
    """Register the metrics of the link with inference, and of the loop."""
    readers: Mapping[Metric, Callable[[], float]] = {
        learner.DUPLICATE_UNROLLS: lambda: producers.ledger.duplicate_unrolls,
        learner.LOST_UNROLLS: lambda: producers.ledger.lost_unrolls,
        learner.REFUSED_MESSAGES: lambda: producers.refused_messages + reactor.statistics().oversized,
        learner.DROPPED_MESSAGES: lambda: reactor.statistics().dropped,
        learner.POLICY_EPOCH: lambda: producers.identity.epoch,
        learner.PRODUCERS: lambda: len(producers.ledger.sessions),
        LOOP_LAG: lambda: reactor.statistics().loop_lag_s,
    }
    for metric, read in readers.items():
        metrics.read(metric, read)


def _of_the_run(newest: Mapping[str, float]) -> dict[str, float]:
    """Return the columns without those of tasks and ranks, which have metrics of their own."""
    return {name: value for name, value in tuple(newest.items()) if "/" not in name}


def _own(means: Means) -> dict[str, float]:
    return {name: _known(mean) for name, mean in means.items() if name not in GIVEN}


def _register_statistics(metrics: Metrics, run: Run) -> None:
    """Register the means of the environment's own statistics, under the label `statistic`."""
    metrics.read_labelled(learner.STATISTIC, lambda: _own(run.means))
    metrics.read_labelled(learner.EVAL_STATISTIC, lambda: _own(run.last_result.means) if run.last_result else {})


def _register_tasks(metrics: Metrics, run: Run, figures: UpdateMetrics) -> None:
    """Register the metrics of each task, under the label `task`."""
    records = run.tasks.records

    def of_each(read: Callable[[TaskRecord], float]) -> Callable[[], dict[str, float]]:
        return lambda: {name: read(record) for name, record in records.items()}

    def statistics(read: Callable[[TaskRecord], Means]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {
            (task, name): mean for task, record in records.items() for name, mean in _own(read(record)).items()
        }

    def newest(column: Column) -> Callable[[], dict[str, float]]:
        return lambda: {name: figures.last.get(column.of(name), math.nan) for name in records}

    readers: Mapping[Metric, Callable[[TaskRecord], float]] = {
        learner.TASK_TRAINED_STEPS: lambda task: task.trained_steps,
        learner.TASK_TRAINED_LANES: lambda task: task.trained_lanes,
        learner.TASK_ENV_STEPS: lambda task: task.env_steps,
        learner.TASK_EPISODES: lambda task: task.episodes,
        learner.TASK_ABORTED_EPISODES: lambda task: task.aborted_episodes,
        learner.TASK_WEIGHT: lambda task: task.weight,
        learner.TASK_RETURN_MEAN: lambda task: _known(task.training.mean),
        learner.TASK_EVAL_RETURN_MEAN: _evaluated,
        learner.TASK_EVAL_NORMALISED: lambda task: _known(task.normalised),
    }
    for metric, read in readers.items():
        metrics.read_labelled(metric, of_each(read))
    metrics.read_labelled(learner.TASK_EXPLAINED_VARIANCE, newest(columns.EXPLAINED_VARIANCE))
    metrics.read_labelled(learner.TASK_VALUE_UNIT_MEAN, newest(columns.VALUE_UNIT_MEAN))
    metrics.read_labelled(learner.TASK_VALUE_UNIT_STD, newest(columns.VALUE_UNIT_STD))
    metrics.read_labelled(learner.TASK_STATISTIC, statistics(lambda task: task.training.means))
    metrics.read_labelled(
        learner.TASK_EVAL_STATISTIC, statistics(lambda task: task.evaluation.means if task.evaluation else {})
    )


def _evaluated(task: TaskRecord) -> float:
    return math.nan if task.evaluation is None else task.evaluation.return_mean


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _last_evaluation(run: Run) -> float:
    return math.nan if run.last_result is None else run.last_result.return_mean


def _normalised(run: Run) -> float:
    figures = run.normalised_figures
    column = columns.EVAL_NORMALISED_MEAN if run.tasks.is_multi_task else columns.EVAL_NORMALISED
    return _known(figures.get(column.name))
