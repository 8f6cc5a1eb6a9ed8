"""Jobs of the update thread: one batch, one or several updates."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.trainer import Trainer
from seedbed.learner_svc.run.checkpoint import load_latest, save
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.sources.batch import Batch
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.weights import policy_from_manifest
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.runtime.config import EvalConfig, RunConfig
from seedbed.shared.runtime.tasks import MULTI_TASK_ENV_ID
from tests.support.experience import make_spec

LENGTH, LANES = 8, 6


@pytest.fixture(autouse=True)
def _denormal_numbers() -> Iterator[None]:
    """A trainer switches them off for its process, which is its own otherwise."""
    yield
    torch.set_flush_denormal(False)


def make_trainer(folder: Path, **learner: int) -> tuple[Trainer, Batch]:
    """A trainer with one batch of random rows that its own first weights acted."""
    settings = LearnerSettings.model_validate(
        {
            "env": {"id": "Random-v0"}, "policy": {"hidden": [8]},
            "learner": {"unroll_length": LENGTH, "batch": LANES, "precision": "fp32"} | learner,
        }
    )  # fmt: skip
    trainer = Trainer(settings, folder, folder / "crash", epoch=1, origin=make_spec())
    source: QueueSource[int] = QueueSource(trainer.record, batch=LANES, num_buffers=1)
    observation, reward, _, action, log_prob, version = source.buffers[0]
    generator = np.random.default_rng(0)
    observation[...] = generator.normal(size=observation.shape)
    reward[...] = generator.normal(size=reward.shape)
    action[...] = generator.integers(0, 2, action.shape)
    log_prob[...] = np.log(0.5)
    version[...] = pack_version(1, 0)
    return trainer, Batch.from_arrays(trainer.record, source.buffers[0])


@pytest.mark.parametrize(
    ("reuse", "minibatches", "steps"),
    [(1, 1, 1), (3, 1, 3), (2, 3, 6), (2, 4, 8), pytest.param(1, 99, LANES, id="more minibatches than lanes")],
)
def test_a_batch_is_one_update_however_often_it_is_used(tmp_path, reuse, minibatches, steps):
    """Lag is counted in batches, and a transition once."""
    trainer, batch = make_trainer(tmp_path, reuse=reuse, minibatches=minibatches)
    before = trainer.weights()[1]
    counted = trainer.count(batch)
    counts = trainer.agree(counted, [np.array(counted.numbers)])
    trained = trainer.train(counted, counts, wants_weights=True, wants_snapshot=False)
    assert (trained.result.applied, trainer.step, trained.version) == (True, 1, pack_version(1, 1))
    assert trained.result.valid_steps == trainer.trained_steps == LENGTH * LANES
    assert (trained.result.metrics["lag_mean"], trained.result.metrics["lag_max"]) == (0, 0)
    assert trained.weights is not None
    assert trained.weights != before
    assert trainer.updater.optimiser.state()["count"].item() == steps


def test_a_batch_of_which_all_rows_are_too_old_changes_nothing(tmp_path):
    """It is no update, and there are no weights to publish. Lag counts updates that are agreed on and not yet made."""
    trainer, batch = make_trainer(tmp_path, reuse=3, max_policy_lag=1)
    fresh = trainer.count(batch)
    for _ in range(5):
        trainer.agree(fresh, [np.array(fresh.numbers)])
    counted = trainer.count(batch)
    counts = trainer.agree(counted, [np.array(counted.numbers)])
    trained = trainer.train(counted, counts, wants_weights=True, wants_snapshot=False)
    assert (trained.result.applied, trainer.step, trained.weights) == (False, 0, None)


def test_a_resumed_run_keeps_its_precision_or_says_that_it_must(tmp_path):
    """Another one, asked for by name, would be ignored else; "auto" takes what is there."""
    snapshot = make_trainer(tmp_path)[0].snapshot()
    run = Run(RunConfig(), EvalConfig(), epoch=1, patience_s=1.0)
    folder = tmp_path / "checkpoints"
    save(folder, step=snapshot.step, arrays=snapshot.arrays, meta={**snapshot.meta, "run": run.to_json()})
    checkpoint = load_latest(folder)
    settings = LearnerSettings.model_validate({"env": {"id": make_spec().env_id}, "policy": {"hidden": [8]}})

    def resume(precision):
        chosen = settings.model_copy(update={"learner": settings.learner.model_copy(update={"precision": precision})})
        return Trainer(chosen, tmp_path, tmp_path / "crash", epoch=2, origin=checkpoint)

    for precision in ("auto", "fp32"):
        assert resume(precision).policy.precision.dtype == "float32"
    assert [resume(precision).policy.precision.tf32 for precision in ("fp32", "tf32")] == [False, True]
    with pytest.raises(ConfigError, match=r"trains in float32.*precision is 'bf16'.*--init-from"):
        resume("bf16")


def test_a_run_that_tells_tasks_apart_is_resumed_with_the_same_tasks_in_the_same_order(tmp_path):
    """By default each has its value output where values are normalised; manifest and checkpoint have the names."""
    spec, run = replace(make_spec(), env_id=MULTI_TASK_ENV_ID), Run(RunConfig(), EvalConfig(), epoch=1, patience_s=1.0)

    def make(tasks, origin, heads="auto"):
        settings = LearnerSettings.model_validate(
            {
                "env": {}, "tasks": {name: {"env": {"id": "Random-v0"}} for name in tasks},
                "policy": {"hidden": [8], "value_heads": heads}, "algorithm": {"name": "appo"},
            }
        )  # fmt: skip
        return Trainer(settings, tmp_path, tmp_path / "crash", epoch=2, origin=origin)

    trainer = make("ab", spec)
    assert trainer.policy.tasks == ("a", "b")
    assert policy_from_manifest(trainer.manifest).tasks == ("a", "b")
    assert [item.name for item in trainer.record.state] == ["state/task"]
    snapshot = trainer.snapshot()
    save(tmp_path / "c", step=1, arrays=snapshot.arrays, meta={**snapshot.meta, "run": run.to_json()})
    checkpoint = load_latest(tmp_path / "c")
    assert make("ab", checkpoint).policy.tasks == ("a", "b")
    with pytest.raises(ConfigError, match="the tasks here are b, a, and there, in this order, a, b"):
        make("ba", checkpoint)
    with pytest.raises(ConfigError, match=r"policy.value_heads is 'shared' here and 'per_task' there"):
        make("ab", checkpoint, "shared")
    assert make("ab", spec, "shared").manifest.body.keys() == {"spec", "policy", "precision", "extra"}
