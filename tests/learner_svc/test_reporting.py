"""Rows of metrics.csv: what an evaluation adds to them."""

import pytest

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_sessions import ProducerSessions
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.reporting import Reporter
from seedbed.learner_svc.run.measure import EvaluationResult
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import TaskBook
from seedbed.learner_svc.run.writer import RestartCounter
from seedbed.shared.protocol.ledger import SINGLE_TASK, Ledger
from seedbed.shared.runtime.config import EnvConfig, EvalConfig
from seedbed.shared.runtime.tasks import TaskConfig
from seedbed.shared.scores.published import published_scale

PONG = EnvConfig(id="ALE/Pong-v5")


def a_reporter(run: Run, figures: UpdateMetrics) -> Reporter:
    settings = LearnerSettings(env=PONG)
    identity = Identity(epoch=1, run_id="r", run_seed=1, unroll_length=2, beat_s=1.0, lease_s=10.0)
    ledger = Ledger(epoch=1, window_lanes=8, lease_s=10.0, weights=SINGLE_TASK)
    producers = ProducerSessions(identity, PONG, ledger, Publisher(), run, lambda: 0.0)
    restarts = RestartCounter({})
    return Reporter(
        settings,
        run,
        producers,
        restarts,
        figures,
        loop_lag_s=lambda: 0.0,
        busy_s=lambda: 0.0,
        machine_share=lambda: 0.5,
        warn=lambda *_: None,
    )


def a_result(mean: float) -> EvaluationResult:
    return EvaluationResult(
        version=1, episodes=1, return_mean=mean, return_std=0.0, return_median=mean, return_min=mean, return_max=mean,
        length_mean=4.0,
    )  # fmt: skip


@pytest.mark.parametrize("has_scale", [True, False])
def test_the_row_after_an_evaluation_has_its_normalised_score(has_scale: bool) -> None:
    """Once, and only where the environment has a scale."""
    evaluation = EvalConfig()
    scale = published_scale(PONG) if has_scale else None
    run = Run(LearnerSettings(env=PONG).run, evaluation, epoch=1, patience_s=1.0, scale=scale)
    figures = UpdateMetrics()
    reporter = a_reporter(run, figures)
    assert "eval_normalised" not in reporter.row(0.0, {})
    run.last_result = figures.evaluation = a_result(14.6)
    row = reporter.row(1.0, {})
    assert row["eval_return_mean"] == 14.6
    assert row.get("eval_normalised") == (1.0 if has_scale else None)
    assert "eval_normalised" not in reporter.row(2.0, {})


def test_the_row_after_an_evaluation_of_all_tasks_has_mean_median_and_capped_mean() -> None:
    """Each task's score comes when the task has played, the combined ones when all have."""
    tasks = {"pong": TaskConfig(env=PONG), "breakout": TaskConfig(env=EnvConfig(id="ALE/Breakout-v5"))}
    book = TaskBook(tasks, EvalConfig())
    run = Run(LearnerSettings(env=PONG).run, EvalConfig(), epoch=1, patience_s=1.0, tasks=book)
    figures = UpdateMetrics()
    reporter = a_reporter(run, figures)
    book.evaluated("pong", 1, a_result(14.6))
    row = reporter.row(0.0, {})
    assert row["eval_normalised/pong"] == 1.0
    assert "eval_normalised_mean" not in row
    figures.evaluation = book.evaluated("breakout", 1, a_result(59.3))
    row = reporter.row(1.0, {})
    combined = [row[f"eval_normalised_{name}"] for name in ("mean", "median", "capped_mean")]
    assert combined == pytest.approx([1.5, 1.5, 1.0])
    assert "eval_normalised_mean" not in reporter.row(2.0, {})
