"""What the learner shows at /metrics: its counters, read when scraped, and the histogram of update times."""

import math
from collections.abc import Callable

from prometheus_client import Histogram

from learner_svc.figures import Figures
from learner_svc.lag import LAG_BOUNDS
from learner_svc.producers import Desk
from learner_svc.run import Run
from shared.net.reactor import Reactor
from shared.protocol.messages import unpack_version
from shared.runtime.metrics import Metrics

Reading = tuple[str, str, Callable[[], float]]


def register(metrics: Metrics, run: Run, desk: Desk, figures: Figures, reactor: Reactor) -> Histogram:
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
        ("duplicate_unrolls", "UNROLLs that were here already.", lambda: desk.ledger.duplicate_unrolls),
        ("lost_unrolls", "UNROLLs whose updates were lost with an epoch.", lambda: desk.ledger.lost_unrolls),
        ("refused_messages", "Messages that broke the protocol.", lambda: desk.refused_messages),
    )
    gauges: tuple[Reading, ...] = (
        ("state", "0 starting, 1 training, 2 finishing, 3 finished.", lambda: int(run.state)),
        ("seconds", "Time with a policy, over all restarts.", lambda: run.counters.seconds),
        ("return_mean", "Mean return of the last 100 training episodes.", lambda: _known(run.training.mean)),
        ("eval_return_mean", "Mean return of the last evaluation.", lambda: _last_evaluation(run)),
        ("policy_lag_mean", "Updates between acting and learning.", lambda: figures.last.get("lag_mean", 0.0)),
        ("policy_lag_max", "The most of them in the last update.", lambda: figures.last.get("lag_max", 0.0)),
        ("policy_step", "Update number of the published weights.", lambda: unpack_version(desk.publisher.version)[1]),
        ("policy_epoch", "How many learners this run has had.", lambda: desk.identity.epoch),
        ("producers", "Inference services that are in.", lambda: len(desk.ledger.sessions)),
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
    metrics.read_gauge(
        "loop_lag_seconds", "How late the loop's last timer was.", lambda: reactor.statistics().loop_lag_s
    )
    return metrics.histogram("learner_update_seconds", "One update in the update thread.")


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _last_evaluation(run: Run) -> float:
    return math.nan if run.last_result is None else run.last_result.return_mean
