"""The learner's page of metrics: normalised scores, and what it shows of each task."""

import asyncio
import math
from pathlib import Path

import pytest

from seedbed.learner_svc.learning.update_metrics import UpdateMetrics
from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_sessions import ProducerSessions
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.metrics import register
from seedbed.learner_svc.run.folder import RunFolder
from seedbed.learner_svc.run.history import History
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import TaskBook
from seedbed.learner_svc.run.writer import RunWriter
from seedbed.shared.figures import learner
from seedbed.shared.figures.declare import Metric
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.ledger import SINGLE_TASK, Ledger
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RunConfig
from seedbed.shared.runtime.metrics import Metrics
from seedbed.shared.runtime.tasks import TaskConfig
from seedbed.shared.scores.published import published_scale
from tests.learner_svc.test_reporting import a_result

PONG, BREAKOUT = EnvConfig(id="ALE/Pong-v5"), EnvConfig(id="ALE/Breakout-v5")


def make_run(*, tasks: TaskBook | None = None, has_scale: bool = True) -> Run:
    """A run of Pong, or of several tasks."""
    scale = published_scale(PONG) if has_scale else None
    return Run(RunConfig(), EvalConfig(), epoch=1, patience_s=1.0, tasks=tasks, scale=scale)


def read(folder: Path, run: Run, metric: Metric, figures: UpdateMetrics | None = None, **labels: str) -> float | None:
    """What the page of a learner of this run shows; None if there is no such sample."""

    async def page() -> float | None:
        identity = Identity(epoch=1, run_id="r", run_seed=1, unroll_length=2, beat_s=1.0, lease_s=10.0)
        ledger = Ledger(epoch=1, window_lanes=8, lease_s=10.0, weights=SINGLE_TASK)
        producers = ProducerSessions(identity, PONG, ledger, Publisher(), run, lambda: 0.0)
        with RunFolder(folder) as held, Metrics("learner", "learner", 1) as metrics, Reactor() as reactor:
            writer = RunWriter(held, History(folder, tensorboard=False), keep=1)
            register(metrics, run, producers, figures or UpdateMetrics(), writer, reactor)
            return metrics.registry.get_sample_value(metric.sample, labels)

    return asyncio.run(page())


def test_the_normalised_score_of_a_run_with_one_environment_is_a_gauge(tmp_path: Path) -> None:
    """Of the last evaluation; not a number before the first, and where there is no scale."""
    run, unknown = make_run(), make_run(has_scale=False)
    assert math.isnan(read(tmp_path, run, learner.EVAL_NORMALISED))
    run.last_result = unknown.last_result = a_result(14.6)
    assert read(tmp_path, run, learner.EVAL_NORMALISED) == 1.0
    assert math.isnan(read(tmp_path, unknown, learner.EVAL_NORMALISED))


def test_the_normalised_score_of_several_tasks_is_their_mean(tmp_path: Path) -> None:
    """Once all have been evaluated; each task has its own as well."""
    book = TaskBook({"pong": TaskConfig(env=PONG), "breakout": TaskConfig(env=BREAKOUT)}, EvalConfig())
    run = make_run(tasks=book)
    book.evaluated("pong", 1, a_result(14.6))
    assert math.isnan(read(tmp_path, run, learner.EVAL_NORMALISED))
    book.evaluated("breakout", 1, a_result(59.3))
    assert read(tmp_path, run, learner.EVAL_NORMALISED) == pytest.approx(1.5)
    assert read(tmp_path, run, learner.TASK_EVAL_NORMALISED, task="pong") == 1.0


def test_values_of_each_task_are_gauges(tmp_path: Path) -> None:
    """Of the newest update that had lanes of it; not a number before the first."""
    book = TaskBook({"pong": TaskConfig(env=PONG), "breakout": TaskConfig(env=BREAKOUT)}, EvalConfig())
    figures = UpdateMetrics()
    figures.last |= {"explained_variance/pong": 0.5, "value_unit_mean/pong": 3.0, "value_unit_std/pong": 2.0}
    shown = {
        metric: [read(tmp_path, make_run(tasks=book), metric, figures, task=task) for task in book.records]
        for metric in (learner.TASK_EXPLAINED_VARIANCE, learner.TASK_VALUE_UNIT_MEAN, learner.TASK_VALUE_UNIT_STD)
    }
    assert [pong for pong, _ in shown.values()] == [0.5, 3.0, 2.0]
    assert all(math.isnan(breakout) for _, breakout in shown.values())
