"""What the learner shows at /metrics: its counters, read when scraped, and the histogram of update times."""

import math
from collections.abc import Callable

from prometheus_client import Histogram

from seedbed.learner_svc.lag import LAG_BOUNDS
from seedbed.learner_svc.producer_sessions import ProducerSessions
from seedbed.learner_svc.run import Run
from seedbed.learner_svc.run_writer import RunWriter
from seedbed.learner_svc.tasks import TaskRecord
from seedbed.learner_svc.update_metrics import UpdateMetrics
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.messages import unpack_version
from seedbed.shared.protocol.statistics import GIVEN, Means
from seedbed.shared.runtime.metrics import Metrics

Reading = tuple[str, str, Callable[[], float]]


def register(
    metrics: Metrics, run: Run, producers: ProducerSessions, figures: UpdateMetrics, writer: RunWriter, reactor: Reactor
) -> Histogram:
    """Register everything; the histogram of update times, which the shell fills."""
    counters: tuple[Reading, ...] = (
        ("updates", "Learner updates.", lambda: run.counters.updates),
        ("trained_steps", "Valid transitions trained on (agent steps).", lambda: run.counters.trained_steps),
        ("env_steps", "Training transitions acted (agent steps).", lambda: run.counters.env_steps),
        ("episodes", "Finished training episodes.", lambda: run.counters.episodes),
        ("aborted_episodes", "Training episodes that a rebuilt lane cut short.", lambda: run.counters.aborted_episodes),
        ("dropped_steps", "Transitions too old to be trained on.", lambda: run.counters.dropped_steps),
        ("lost_epoch_steps", "Transitions of a lost learner epoch.", lambda: run.counters.lost_epoch_steps),
        ("evaluations", "Evaluations finished in this process.", lambda: run.num_evaluations),
        ("duplicate_unrolls", "UNROLLs that were here already.", lambda: producers.ledger.duplicate_unrolls),
        ("lost_unrolls", "UNROLLs whose updates were lost with an epoch.", lambda: producers.ledger.lost_unrolls),
        (
            "refused_messages",
            "Messages that broke the protocol.",
            lambda: producers.refused_messages + reactor.statistics().oversized,
        ),
        (
            "dropped_messages",
            "Messages dropped unread: their senders had wasted too much time.",
            lambda: reactor.statistics().dropped,
        ),
        ("write_failures", "Rows and checkpoints that the disk refused.", lambda: writer.num_failures),
    )
    gauges: tuple[Reading, ...] = (
        ("state", "0 starting, 1 training, 2 finishing, 3 finished.", lambda: int(run.state)),
        ("seconds", "Time of training, over all restarts.", lambda: run.counters.seconds),
        ("return_mean", "Mean return of the last 100 training episodes.", lambda: _known(run.return_mean)),
        ("eval_return_mean", "Mean return of the last evaluation.", lambda: _last_evaluation(run)),
        ("policy_lag_mean", "Updates between acting and learning.", lambda: figures.last.get("lag_mean", 0.0)),
        ("policy_lag_max", "The most of them in the last update.", lambda: figures.last.get("lag_max", 0.0)),
        ("log_rho_lag0", "Mean |log rho| of rows acted by the weights updated.", lambda: _disagreement(figures)),
        (
            "policy_step",
            "Update number of the published weights.",
            lambda: unpack_version(producers.publisher.version)[1],
        ),
        ("policy_epoch", "How many learners this run has had.", lambda: producers.identity.epoch),
        ("producers", "Inference services that are in.", lambda: len(producers.ledger.sessions)),
    )
    for name, description, read in counters:
        metrics.read_counter(f"learner_{name}", description, read)
    for name, description, read in gauges:
        metrics.read_gauge(f"learner_{name}", description, read)
    metrics.read_histogram(
        "learner_policy_lag",
        "Updates between acting and learning, of every transition that came to an update, too old ones too.",
        LAG_BOUNDS,
        lambda: (run.counters.lag_histogram, run.counters.lag_sum),
    )
    _register_statistics(metrics, run)
    _register_tasks(metrics, run)
    metrics.read_gauge(
        "loop_lag_seconds", "How late the loop's last timer was.", lambda: reactor.statistics().loop_lag_s
    )
    return metrics.histogram("learner_update_seconds", "One update in the update thread.")


def _register_statistics(metrics: Metrics, run: Run) -> None:
    """The means of the environment's own statistics, under the label `statistic`; with tasks also those of each."""
    records = run.tasks.records

    def own(means: Means) -> dict[str, float]:
        return {name: _known(mean) for name, mean in means.items() if name not in GIVEN}

    def of_tasks(read: Callable[[TaskRecord], Means]) -> Callable[[], dict[tuple[str, ...], float]]:
        return lambda: {
            (task, name): mean for task, record in records.items() for name, mean in own(read(record)).items()
        }

    trained, evaluated = "over the last 100 training episodes", "over the last evaluation"
    metrics.read_gauges(
        "learner_statistic", f"Mean {trained} of a statistic of the environment's own.", "statistic",
        lambda: own(run.means),
    )  # fmt: skip
    metrics.read_gauges(
        "learner_eval_statistic", f"The same {evaluated}.", "statistic",
        lambda: own(run.last_result.means) if run.last_result else {},
    )  # fmt: skip
    if records:
        labels = ("task", "statistic")
        metrics.read_gauges(
            "learner_task_statistic", f"A task's mean {trained}.", labels, of_tasks(lambda task: task.training.means)
        )
        metrics.read_gauges(
            "learner_task_eval_statistic", f"A task's mean {evaluated}.", labels,
            of_tasks(lambda task: task.evaluation.means if task.evaluation else {}),
        )  # fmt: skip


def _register_tasks(metrics: Metrics, run: Run) -> None:
    """The figures of each task, under the label `task`; none in a run with one environment."""
    records = run.tasks.records
    counters: tuple[tuple[str, str, Callable[[TaskRecord], float]], ...] = (
        ("trained_steps", "Valid transitions of a task trained on (agent steps).", lambda task: task.trained_steps),
        ("trained_lanes", "Lane-unrolls of a task trained on.", lambda task: task.trained_lanes),
        ("env_steps", "Training transitions of a task acted (agent steps).", lambda task: task.env_steps),
        ("episodes", "Finished training episodes of a task.", lambda task: task.episodes),
        ("aborted_episodes", "Those that a rebuilt lane cut short.", lambda task: task.aborted_episodes),
    )
    gauges: tuple[tuple[str, str, Callable[[TaskRecord], float]], ...] = (
        ("weight", "A task's share of every batch, as configured.", lambda task: task.weight),
        ("return_mean", "Mean return of a task's last 100 training episodes.", lambda task: _known(task.training.mean)),
        ("eval_return_mean", "Mean return of a task's last evaluation.", lambda task: _evaluated(task)),
        ("eval_normalised", "The same between random and human score.", lambda task: _known(task.normalised)),
    )

    def of_each(read: Callable[[TaskRecord], float]) -> Callable[[], dict[str, float]]:
        return lambda: {name: read(record) for name, record in records.items()}

    for name, description, read in counters if records else ():
        metrics.read_counters(f"learner_task_{name}", description, "task", of_each(read))
    for name, description, read in gauges if records else ():
        metrics.read_gauges(f"learner_task_{name}", description, "task", of_each(read))


def _disagreement(figures: UpdateMetrics) -> float:
    """Of the newest update that had such rows."""
    return figures.last.get("log_rho_mean_abs_lag0", math.nan)


def _evaluated(task: TaskRecord) -> float:
    return math.nan if task.evaluation is None else task.evaluation.return_mean


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _last_evaluation(run: Run) -> float:
    return math.nan if run.last_result is None else run.last_result.return_mean
