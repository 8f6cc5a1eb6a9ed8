"""A run that starts with another's weights: what is taken over, and what does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces

from seedbed.learner_svc.algorithms.config import VTraceConfig
from seedbed.learner_svc.learning.initial_weights import find_source, start_from
from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.run.checkpoint import Checkpoint, load_latest, save
from seedbed.shared.errors import CheckpointError, ConfigError
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from seedbed.shared.protocol.rows import EnvSpec
from tests.support import specs
from tests.support.experience import EPOCH, RECORDING, make_batch, make_policy, make_spec, make_updater

CONV = {"network": "impala_shallow"}
NORMALISED = {"normalise_observation": True}


def trained(folder: Path, spec=None, policy=None, **config) -> tuple[Updater, Checkpoint]:
    """An updater after two updates, and its checkpoint."""
    updater = make_updater(spec, policy, **config)
    for seed in range(2):
        updater.update(
            make_batch(updater.policy, seed=seed), step=0, trained_steps=0, max_policy_lag=10,
            version_now=EPOCH << 40,
        )  # fmt: skip
    arrays, meta = updater.state()
    manifest = make_manifest(updater.policy, RECORDING).to_json()
    save(folder / "checkpoints", step=2, arrays=arrays, meta={"updater": meta, "manifest": manifest})
    checkpoint = load_latest(folder / "checkpoints")
    assert checkpoint is not None
    return updater, checkpoint


def weights(updater: Updater) -> dict[str, torch.Tensor]:
    """By name, whatever their memory format."""
    return {name: x.clone() for name, x in updater.parameters.views(updater.parameters.flat).items()}


@pytest.mark.parametrize("config", [{}, {"value_normalisation": "popart"}], ids=["plain", "popart"])
def test_weights_and_statistics_are_taken_and_the_optimiser_begins_anew(tmp_path, config):
    """Both policies say the same of the same rows; moments of the gradient are zero."""
    source, checkpoint = trained(tmp_path, policy={**NORMALISED, "lstm": 4}, **config)
    fresh = make_updater(policy={**NORMALISED, "lstm": 4}, learning_rate=1e-5, **config)
    start_from(fresh, checkpoint)
    assert all(torch.equal(x, weights(source)[name]) for name, x in weights(fresh).items())
    theirs = source.statistics()
    assert theirs.keys() >= {"normaliser.0.mean"}
    assert all(torch.equal(x, theirs[name]) for name, x in fresh.statistics().items())
    optimiser = {name: x for name, x in fresh.state()[0].items() if name.startswith("optimiser.")}
    assert optimiser
    assert not any(np.any(x) for x in optimiser.values())


def test_another_environment_with_the_same_spaces_is_welcome(tmp_path):
    """Its id and settings are no part of the policy."""
    source, checkpoint = trained(tmp_path)
    spec = make_spec()
    other = EnvSpec(env_id="Harder-v0", observation=spec.observation, action=spec.action, settings=(("kwargs", "1"),))
    fresh = make_updater(other)
    start_from(fresh, checkpoint)
    assert all(torch.equal(x, weights(source)[name]) for name, x in weights(fresh).items())


def test_the_memory_format_is_the_new_runs_own():
    """Convolutions saved in one format start a run that chose another."""
    image = spaces.Box(0, 255, (84, 84, 1), np.uint8)
    spec = specs.make_spec(image, spaces.Discrete(3), env_id="Image-v0", image="HWC")
    source, _ = make_policy(spec, **CONV)
    torch.manual_seed(8)
    updater = make_updater(spec, CONV)
    updater.policy.use(Precision(dtype="float32", channels_last=True))
    target = Updater(updater.policy, FlatParameters(updater.policy), VTraceConfig())
    with torch.no_grad():
        target.parameters.flat.mul_(0.5)
    manifest = make_manifest(source, RECORDING)
    checkpoint = Checkpoint(
        path=Path("elsewhere.json"), kind="latest", serial=1, step=5, meta={"manifest": manifest.to_json()},
        arrays={"policy.flat": FlatParameters(source).flat.numpy()},
    )  # fmt: skip
    assert manifest.places != make_manifest(target.policy, RECORDING).places, "they lie alike: the test shows nothing"
    start_from(target, checkpoint)
    named = dict(source.named_parameters())
    assert all(torch.equal(x, named[name]) for name, x in target.policy.named_parameters())


@pytest.mark.parametrize(
    ("spec", "policy", "config", "message"),
    [
        (make_spec(spaces.Discrete(3)), {}, {}, "spaces differ from these: action"),
        (make_spec(masked=True), {}, {}, "action mask columns"),
        (None, {"hidden": [8]}, {}, r"policy.hidden is \[8\] here and \[16, 16\] there"),
        (None, {}, {"value_normalisation": "popart"}, "algorithm.value_normalisation"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_taken(tmp_path, spec, policy, config, message):
    """The leaf, or the setting, with both values."""
    _, checkpoint = trained(tmp_path)
    fresh = make_updater(spec, policy, **config)
    before = weights(fresh)
    with pytest.raises(ConfigError, match=message):
        start_from(fresh, checkpoint)
    assert all(torch.equal(x, before[name]) for name, x in weights(fresh).items())


def test_a_normalised_value_head_is_not_read_as_a_plain_one(tmp_path):
    """Its units would be others."""
    _, checkpoint = trained(tmp_path, value_normalisation="popart")
    with pytest.raises(ConfigError, match=r"algorithm\.value_normalisation"):
        start_from(make_updater(), checkpoint)


def test_the_source_is_a_run_or_one_checkpoint(tmp_path):
    """Anything else says what to name."""
    _, checkpoint = trained(tmp_path)
    assert find_source(tmp_path).path == find_source(checkpoint.path).path == checkpoint.path
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no checkpoint"):
        find_source(tmp_path / "empty")
    (tmp_path / "other.json").write_text(json.dumps({"format": 1}))
    with pytest.raises(CheckpointError, match=r"other\.json"):
        find_source(tmp_path / "other.json")
