"""Updates: what is masked and counted, that nothing broken is ever applied, and that a resume is exact."""

import json

import numpy as np
import pytest
import safetensors.torch
import torch

from seedbed.learner_svc.run.checkpoint import load_latest, save
from seedbed.shared.errors import CheckpointError, NumericsError
from seedbed.shared.policy.acting import Recording
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import Flags
from tests.support.experience import EPOCH, make_batch, make_updater


def run(updater, batch, *, step=0, trained_steps=0, max_policy_lag=20, version=None):
    """One update at (EPOCH, step)."""
    return updater.update(
        batch,
        step=step,
        trained_steps=trained_steps,
        max_policy_lag=max_policy_lag,
        version_now=pack_version(EPOCH, step) if version is None else version,
    )


def weights(updater):
    """A copy of the flat weights."""
    return updater.parameters.flat.clone()


def set_versions(batch, *steps):
    """The step that acted, per row."""
    for t, step in enumerate(steps):
        batch.version[t] = pack_version(EPOCH, step)


def test_an_update_moves_the_weights_and_says_what_it_did():
    """Every figure that users look at, and the counts of transitions."""
    updater = make_updater()
    batch = make_batch(updater.policy)
    before = weights(updater)
    result = run(updater, batch)
    valid = int(((batch.flags[1:] & int(Flags.FIRST)) == 0).sum())
    assert result.applied
    assert (result.valid_steps, result.dropped_steps, result.dropped_unrolls) == (valid, 0, 0)
    assert result.lag_histogram[0] == valid
    assert not torch.equal(weights(updater), before)
    assert {
        "loss", "policy_loss", "value_loss", "entropy", "entropy_cost", "grad_norm", "learning_rate", "kl",
        "explained_variance", "rho_clipped_share", "effective_sample_size", "log_rho_mean_abs_lag0", "lag_mean",
        "lag_max", "valid_share", "dropped_share", "update_ms",
    } <= result.metrics.keys()  # fmt: skip
    assert all(np.isfinite(value) for value in result.metrics.values())


def test_updates_lower_the_loss_on_a_fixed_batch():
    """The gradient points the right way."""
    updater = make_updater(learning_rate=3e-3, entropy_cost=0.0)
    batch = make_batch(updater.policy, rows=17, lanes=8)
    losses = [run(updater, batch).metrics["value_loss"] for _ in range(30)]
    assert losses[-1] < 0.7 * losses[0]


def test_rows_that_are_too_old_are_masked_and_counted_per_lane():
    """They change nothing, however wild; fresh rows of the same unroll are trained on."""
    results, after = [], []
    for wild in (False, True):
        updater = make_updater()
        batch = make_batch(updater.policy)
        batch.flags.zero_()
        set_versions(batch, 1, 1, 1, 6, 7, 8, 9, 10)
        if wild:
            batch.log_prob[:3] += 1.0
            batch.reward[1:4] = 1e3
        results.append(run(updater, batch, step=10, max_policy_lag=4))
        after.append(weights(updater))
    lanes = batch.num_lanes
    assert torch.equal(after[0], after[1])
    for result in results:
        assert (result.valid_steps, result.stale_steps) == (5 * lanes, 3 * lanes)
        assert result.dropped_steps_B.tolist() == [3] * lanes
        assert (result.dropped_unrolls, result.lost_epoch_steps) == (0, 0)
        assert result.metrics["lag_max"] == 4
        assert result.metrics["lag_mean"] == 2
        assert result.lag_histogram == (lanes, lanes, 2 * lanes, lanes, 3 * lanes, 0, 0, 0, 0, 0)


def test_masked_rows_do_not_dilute_the_mean():
    """A batch with a stale half gives the gradient of the fresh half alone."""
    updater, alone = make_updater(), make_updater()
    batch = make_batch(updater.policy, lanes=6)
    half = make_batch(alone.policy, lanes=6)
    batch.version[:, 3:] = pack_version(EPOCH, 1)
    for name in ("observation", "reward", "flags", "action", "log_prob", "version"):
        half.tensors[name] = half[name][:, :3].contiguous()
    batch.version[:, :3] = half.version.fill_(pack_version(EPOCH, 50))
    result = run(updater, batch, step=50)
    wanted = run(alone, half, step=50)
    assert result.dropped_unrolls == 3
    assert result.metrics["grad_norm"] == pytest.approx(wanted.metrics["grad_norm"], rel=1e-4)
    torch.testing.assert_close(weights(updater), weights(alone), atol=1e-5, rtol=1e-4)


def test_a_batch_without_a_fresh_row_changes_nothing():
    """Not even by momentum; every unroll of it counts as dropped."""
    updater = make_updater()
    batch = make_batch(updater.policy)
    run(updater, batch)
    before, state = weights(updater), updater.state()[0]
    result = run(updater, batch, step=500)
    assert not result.applied
    assert result.valid_steps == 0
    assert result.dropped_unrolls == batch.num_lanes
    assert torch.equal(weights(updater), before)
    assert all(np.array_equal(array, state[name]) for name, array in updater.state()[0].items())


def test_rows_of_a_lost_epoch_are_dropped_as_such():
    """The learner resumed at step 4; the epoch before had acted with 5 and 6."""
    updater = make_updater(epoch_start_step=4)
    batch = make_batch(updater.policy)
    batch.flags.zero_()
    steps = (3, 4, 5, 6)
    for t in range(8):
        batch.version[t] = pack_version(EPOCH - 1, steps[t]) if t < 4 else pack_version(EPOCH, 4)
    result = run(updater, batch, step=4)
    assert result.lost_epoch_steps == 2 * batch.num_lanes
    assert result.stale_steps == 0
    assert result.valid_steps == 6 * batch.num_lanes


def test_the_identity_holds_at_lag_zero_only():
    """Without a row acted by the very weights there is no such figure."""
    updater = make_updater()
    batch = make_batch(updater.policy)
    assert run(updater, batch).metrics["log_rho_mean_abs_lag0"] < 1e-5
    result = run(updater, batch, step=1)
    assert "log_rho_mean_abs_lag0" not in result.metrics
    assert result.metrics["log_rho_mean_abs"] > 0


@pytest.mark.parametrize("where", ["observation", "reward", "log_prob"])
def test_a_loss_that_is_not_finite_stops_with_the_batch_saved(tmp_path, where):
    """Weights, optimiser and statistics stay as they were before it."""
    updater = make_updater(policy={"normalise_observation": True}, crash_folder=tmp_path, value_normalisation="popart")
    batch = make_batch(updater.policy)
    run(updater, batch)
    before = updater.state()[0]
    batch.flags.zero_()
    broken = batch.observation[0] if where == "observation" else getattr(batch, where)
    broken[3, 1] = torch.nan
    with pytest.raises(NumericsError, match="non-finite-step1"):
        run(updater, batch, step=1)
    assert all(np.array_equal(array, before[name]) for name, array in updater.state()[0].items())
    saved = safetensors.torch.load_file(tmp_path / "non-finite-step1.safetensors")
    torch.testing.assert_close(saved["reward"], batch.reward, equal_nan=True)
    assert torch.equal(saved["policy.flat"], updater.parameters.flat)
    assert {"observation", "flags", "action", "log_prob", "version"} <= saved.keys()


def test_the_gradient_is_clipped_by_its_global_norm():
    """With plain momentum-free RMSProp of a huge eps, the step is the clipped gradient times a known factor."""
    updater = make_updater(optimizer="rmsprop", eps=1e12, learning_rate=1e6, grad_clip=0.25)
    batch = make_batch(updater.policy)
    batch.reward.mul_(100)
    before = weights(updater)
    result = run(updater, batch)
    assert result.metrics["grad_norm"] > 0.25
    assert (weights(updater) - before).norm().item() == pytest.approx(0.25, rel=1e-2)


def test_the_learning_rate_follows_trained_steps():
    """Not updates."""
    updater = make_updater(run_steps=1000, learning_rate=1e-3)
    batch = make_batch(updater.policy)
    assert run(updater, batch, trained_steps=250).metrics["learning_rate"] == pytest.approx(7.5e-4)


def test_observation_statistics_move_after_the_update_that_used_them():
    """The first update sees mean 0 and deviation 1; published are its rows' own."""
    updater = make_updater(policy={"normalise_observation": True})
    batch = make_batch(updater.policy)
    batch.observation[0].mul_(1.5).add_(2)
    plain = make_updater(policy={"normalise_observation": False})
    result = run(updater, batch)
    assert result.metrics["value_loss"] == pytest.approx(run(plain, batch).metrics["value_loss"], rel=1e-5)
    rows = batch.observation[0][1:].flatten(0, 1).double()
    (published,) = updater.policy.normalisers()
    torch.testing.assert_close(published.mean.double(), rows.mean(0), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(published.rstd.double(), 1 / rows.std(0, correction=0), atol=1e-4, rtol=1e-4)


OPTIONS = [
    {},
    {"optimizer": "rmsprop", "rmsprop_momentum": 0.5},
    {"entropy_target": 0.4, "value_normalisation": "popart", "policy": {"normalise_observation": True, "lstm": 4}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["adam", "rmsprop", "everything"])
def test_a_resumed_run_goes_on_exactly(tmp_path, options):
    """Three updates, a checkpoint, three more: bit by bit what six without a stop give."""

    def make():
        return make_updater(**{name: dict(v) if isinstance(v, dict) else v for name, v in options.items()})

    whole = make()
    batches = [make_batch(whole.policy, seed=seed) for seed in range(6)]
    for index, batch in enumerate(batches):
        if index == 3:
            arrays, meta = whole.state()
            save(tmp_path, step=index, arrays=arrays, meta={"updater": json.loads(json.dumps(meta))})
        run(whole, batch, step=0)
    checkpoint = load_latest(tmp_path)
    assert checkpoint is not None
    resumed = make()
    resumed.load_state(checkpoint.arrays, checkpoint.meta["updater"])
    for batch in batches[3:]:
        run(resumed, batch, step=0)
    assert torch.equal(weights(resumed), weights(whole))
    wanted = whole.state()[0]
    assert all(np.array_equal(array, wanted[name]) for name, array in resumed.state()[0].items())


def test_the_state_is_a_copy():
    """A thread may write it while training goes on."""
    updater = make_updater()
    arrays, _ = updater.state()
    before = {name: array.copy() for name, array in arrays.items()}
    run(updater, make_batch(updater.policy))
    assert all(np.array_equal(array, before[name]) for name, array in arrays.items())


def test_a_state_of_other_options_is_refused_by_name():
    """Nothing is loaded in part."""
    updater = make_updater()
    arrays, meta = updater.state()
    before = weights(updater)
    with pytest.raises(CheckpointError, match="optimizer is 'adam'"):
        make_updater(optimizer="rmsprop").load_state(arrays, meta)
    with pytest.raises(CheckpointError, match=r"algorithm\.value_normalisation"):
        make_updater(value_normalisation="popart").load_state(arrays, meta)
    with pytest.raises(CheckpointError, match=r"lacks algorithm\.entropy"):
        make_updater(entropy_target=0.5).load_state(arrays, meta)
    with pytest.raises(CheckpointError, match=r"policy\.flat is"):
        make_updater(policy={"hidden": [8]}).load_state(arrays, meta)
    assert torch.equal(weights(updater), before)


@pytest.mark.parametrize("theirs", ["popart", "returns"])
def test_normalised_values_are_not_read_as_plain_ones(theirs):
    """What the head says would be taken for rewards; deviations are deviations, rescaled or not."""
    arrays, meta = make_updater(value_normalisation=theirs).state()
    with pytest.raises(CheckpointError, match=r"algorithm\.value_normalisation"):
        make_updater().load_state(arrays, meta)
    make_updater(value_normalisation="popart").load_state(arrays, meta)


def test_what_an_unroll_shares_with_the_one_before_is_trained_on_once():
    """The first rows of a record with an overlap only warm the memory up, and are counted nowhere."""
    updater = make_updater()
    recording = Recording(unroll_length=6, overlap=2)
    batch = make_batch(updater.policy, rows=9, recording=recording)
    batch.flags.zero_()
    result = run(updater, batch)
    assert (result.valid_steps, result.dropped_steps) == (6 * batch.num_lanes, 0)
