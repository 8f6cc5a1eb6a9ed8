"""What the summary says, and how restarts are counted."""

import json

import numpy as np
import pytest

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.run import checkpoint
from seedbed.learner_svc.run.checkpoint import Snapshot, list_checkpoints
from seedbed.learner_svc.run.folder import RunFolder
from seedbed.learner_svc.run.history import History
from seedbed.learner_svc.run.measure import EvaluationResult
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.writer import RestartCounter, RunWriter, checkpoint_meta, restore, summarise
from seedbed.shared.errors import StorageError
from seedbed.shared.protocol.ledger import Ledger
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.runtime.config import EnvConfig, RunConfig
from seedbed.shared.scores.scale import ScoreScale

REQUIRED = {
    "experiment", "env_id", "device", "seconds", "env_steps", "trained_steps", "env_steps_per_s", "trained_steps_per_s",
    "updates", "policy_lag_mean", "policy_lag_max", "episode_return_mean", "eval_return_mean", "eval_episodes",
    "restarts", "dropped_unrolls",
}  # fmt: skip


def make_summary(run: Run) -> dict:
    """Of a run with a few restarts and drops."""
    settings = LearnerSettings(env=EnvConfig(id="CartPole-v1"), run=RunConfig(name="small"))
    return summarise(
        run, settings, run_id="r", device="cpu", restarts={"learner": 1}, dropped_unrolls={"expired": 2, "duplicate": 0}
    )


def make_ledger() -> Ledger:
    """One without producers."""
    return Ledger(epoch=1, window_lanes=8, lease_s=10.0)


@pytest.fixture
def run() -> Run:
    """Two updates of 10 and 30 steps with lags 1 and 3, one evaluation, ten seconds."""
    settings = LearnerSettings(env=EnvConfig(id="CartPole-v1"))
    run = Run(settings.run, settings.eval, epoch=1, patience_s=10.0)
    run.start(0.0)
    run.trained(10, updates=1, lag_mean=1.0, lag_max=2.0, lag_histogram=(0, 10, *8 * [0]), lag_sum=10)
    run.trained(
        30, updates=1, lag_mean=3.0, lag_max=5.0, expired_unrolls=2, lag_histogram=(0, 0, 29, 1, *6 * [0]), lag_sum=90
    )
    run.acted(np.array([[5, 5], [7, 7]], np.float32), steps=50, aborted=0)
    run.counters.seconds = 10.0
    run.last_result = EvaluationResult(
        version=pack_version(1, 2), episodes=4, return_mean=9.0, return_std=1.0, return_median=9.0, return_min=8.0,
        return_max=10.0, length_mean=9.0,
    )  # fmt: skip
    return run


def test_the_summary_has_what_users_look_for(run):
    """Every figure by its promised name, as JSON."""
    summary = make_summary(run)
    assert set(summary) >= REQUIRED
    json.dumps(summary, allow_nan=False)


def test_the_summarys_figures_are_those_of_the_whole_run(run):
    """Lag is weighted by steps; rates are over the run's seconds."""
    summary = make_summary(run)
    assert summary["policy_lag_mean"] == pytest.approx((10 * 1.0 + 30 * 3.0) / 40)
    assert summary["policy_lag_max"] == 5.0
    assert list(summary["policy_lag_histogram"].items())[:5] == [
        ("0", 0),
        ("1", 10),
        ("2-3", 29),
        ("4-7", 1),
        ("8-15", 0),
    ]
    assert summary["trained_steps_per_s"] == pytest.approx(4.0)
    assert summary["env_steps_per_s"] == pytest.approx(5.0)
    assert summary["episode_return_mean"] == pytest.approx(6.0)
    assert (summary["eval_return_mean"], summary["eval_episodes"]) == (9.0, 4)


def test_a_run_without_an_evaluation_says_so(run):
    """The names are there all the same."""
    run.last_result = None
    summary = make_summary(run)
    assert set(summary) >= REQUIRED
    assert (summary["eval_return_mean"], summary["eval_episodes"]) == (None, 0)


def test_a_score_is_normalised_where_there_is_a_scale(run):
    """Of the last evaluation's mean return, with the scale beside it; nothing without one."""
    assert not {"eval_normalised", "score_scale"} & set(make_summary(run))
    run.scale = ScoreScale(random=1.0, human=5.0, source="a paper")
    summary = make_summary(run)
    assert summary["eval_normalised"] == 2.0
    assert summary["score_scale"] == {"random": 1.0, "human": 5.0, "source": "a paper"}
    run.last_result = None
    assert "eval_normalised" not in make_summary(run)


def test_restarts_are_counted_from_incarnations():
    """An inference's second life is one restart; actors are counted by each life of inference."""
    incarnations = {"inference-0": {11, 12}, "inference-1": {21}}
    restarts = RestartCounter(incarnations)
    restarts.heard({11: {"actor_restarts": 2.0}, 21: {}})
    restarts.heard({12: {"actor_restarts": 1.0}, 21: {"actor_restarts": 1.0}})
    assert restarts.inference() == {"inference-0": 1, "inference-1": 0}
    assert restarts.actors() == 4


def test_restarts_survive_the_learners_own():
    """They travel with the checkpoint, and the living inference is not counted twice."""
    before = RestartCounter({"inference-0": {11, 12}})
    before.heard({12: {"actor_restarts": 3.0}})
    meta = json.loads(json.dumps(before.to_json()))
    incarnations: dict[str, set[int]] = {}
    after = RestartCounter(incarnations)
    after.restore(meta)
    incarnations.setdefault("inference-0", set()).add(12)
    after.heard({12: {"actor_restarts": 4.0}})
    assert after.inference() == {"inference-0": 1}
    assert after.actors() == 4
    after.restore({})
    assert after.actors() == 4


def test_counts_of_unrolls_go_on_after_a_restart(run):
    """Those that were lost with an earlier learner are told of by later ones only."""
    before, restarts = make_ledger(), RestartCounter({})
    before.lost_unrolls, before.duplicate_unrolls = 7, 3
    meta = json.loads(json.dumps(checkpoint_meta(run, before, restarts, run_id="r")))
    after = make_ledger()
    restore(meta, run, after, restarts)
    assert (after.lost_unrolls, after.duplicate_unrolls) == (7, 3)
    del meta["lost_unrolls"], meta["duplicate_unrolls"]  # as of an earlier version
    restore(meta, run, after, restarts)
    assert (after.lost_unrolls, after.duplicate_unrolls) == (0, 0)


def test_a_best_checkpoint_that_could_not_be_written_is_tried_again(tmp_path, monkeypatch):
    """No later one would take its place: none was better. The newest is still the newest."""

    def snapshot(step: int) -> Snapshot:
        return Snapshot(version=step, step=step, trained_steps=step, arrays={"x": np.zeros(4, np.float32)}, meta={})

    def is_full(*_args: object) -> None:
        raise StorageError("no space left")

    with RunFolder(tmp_path) as folder:
        writer = RunWriter(folder, History(tmp_path, tensorboard=False), keep=3)
        with monkeypatch.context() as patched:
            patched.setattr(checkpoint, "write_durably", is_full)
            writer.save(snapshot(1), "best")
        assert writer.num_failures == 1
        writer.save(snapshot(2), "latest")
        writer.save(snapshot(3), "latest")
    assert [(item.step, item.kind) for item in list_checkpoints(tmp_path / "checkpoints")] == [
        (1, "best"), (2, "latest"), (3, "latest"),
    ]  # fmt: skip
