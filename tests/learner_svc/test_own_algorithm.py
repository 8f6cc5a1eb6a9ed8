"""The algorithm of docs/own_algorithm.md: it records a field of its own and has a network beside the policy."""

import sys

import numpy as np
import pytest
import torch

from seedbed.inference_svc.engine import Engine
from seedbed.learner_svc.algorithms.registry import find_algorithm, recording_of
from seedbed.learner_svc.learning.update import Updater
from seedbed.shared.errors import CheckpointError, ConfigError, RemoteWireError
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from seedbed.shared.protocol.messages import pack_version
from tests.support.experience import EPOCH, algorithm_config, make_batch, make_policy
from tests.support.own_algorithm import NAME, write_module


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    """The module can be imported, for this test alone."""
    write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_algorithms", None)


def make_updater(**settings):
    """An updater of that algorithm."""
    policy, parameters = make_policy()
    return Updater(policy, parameters, algorithm_config({"name": NAME, **settings}))


def recorded_batch(updater, seed=0):
    """A batch with what its acting rule records besides."""
    return make_batch(updater.policy, seed=seed, recording=recording_of(algorithm_config({"name": NAME}), 8))


def update(updater, step=0, seed=0):
    """One update at (EPOCH, step)."""
    return updater.update(
        recorded_batch(updater, seed),
        step=step, trained_steps=0, max_policy_lag=20, version_now=pack_version(EPOCH, step),
    )  # fmt: skip


def test_both_networks_learn_and_its_metrics_are_told():
    """Each has an optimiser of its own."""
    updater = make_updater(learning_rate=1e-2)
    before = {name: array.copy() for name, array in updater.state()[0].items() if name.endswith("flat")}
    metrics = update(updater).metrics
    after = updater.state()[0]
    assert before.keys() == {"policy.flat", "network.critic.flat"}
    assert all(not np.array_equal(after[name], array) for name, array in before.items())
    assert metrics["critic_from_head"] > 0
    assert {"loss", "grad_norm", "entropy"} <= metrics.keys()


def test_a_resume_is_exact():
    """Networks and optimisers beside the policy's go on as if nothing had happened."""
    updater, resumed = make_updater(), make_updater()
    update(updater)
    resumed.load_state(*updater.state())
    results = [update(each, step=1, seed=1) for each in (updater, resumed)]
    states = [each.state()[0] for each in (updater, resumed)]
    assert results[0].metrics["loss"] == results[1].metrics["loss"]
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])


def test_a_checkpoint_without_its_network_is_refused():
    """Named, and nothing has changed."""
    updater = make_updater()
    arrays, meta = make_updater().state()
    del arrays["network.critic.flat"]
    with pytest.raises(CheckpointError, match=r"network\.critic\.flat"):
        updater.load_state(arrays, meta)


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        (NAME, {"critic_unit": 3}, "critic_units"),
        (NAME, {"critic_units": 0}, "critic_units"),
        (NAME, {"rho_clip": 2.0}, "rho_clip"),
        ("my_algorithms:Nothing", {}, "Nothing"),
        ("my_algorithms:CriticSettings", {}, "Algorithm"),
        ("no_such_module:Anything", {}, "no_such_module"),
    ],
)
def test_what_is_wrong_with_it_is_named(name, settings, told):
    """Module, class or setting."""
    with pytest.raises(ConfigError, match=told):
        find_algorithm(algorithm_config({"name": name, **settings}))


def test_what_the_rule_cannot_record_is_named():
    """Before anything acts."""
    policy, _ = make_policy()
    recording = recording_of(algorithm_config({"name": NAME}), 8)
    record = recording.make_record(policy.spec, policy.state_fields)
    assert [item.name for item in record.decided] == ["log_prob", "acting_value"]
    torch.manual_seed(0)
    broken = type(recording)(rule=recording.rule, decided=("log_prob", "temperature"), unroll_length=8)
    with pytest.raises(ConfigError, match="temperature"):
        broken.make_record(policy.spec, policy.state_fields)


def test_a_frozen_network_is_kept_and_has_no_optimiser():
    """Such as a target network."""
    updater = make_updater()
    for parameter in updater.algorithm.critic.parameters():
        parameter.requires_grad_(False)
    policy, parameters = updater.policy, updater.parameters
    assert isinstance(parameters, FlatParameters)
    kind, settings = find_algorithm(algorithm_config({"name": NAME}))

    class Frozen(kind):
        """Its critic is given."""

        def networks(self):
            """Without gradients."""
            return {"target": updater.algorithm.critic}

    sys.modules["my_algorithms"].Frozen = Frozen
    frozen = Updater(policy, parameters, algorithm_config({"name": "my_algorithms:Frozen"}))
    names = set(frozen.state()[0])
    assert "network.target.flat" in names
    assert not any(name.startswith("network.target.optimiser") for name in names)
    assert settings.critic_units == 64


@pytest.mark.parametrize(
    "extra",
    [
        {"unroll_length": 8, "acting": "sample"},
        {"unroll_length": 8, "acting": {"rule": 1, "parameters": {}, "decided": []}},
        {"unroll_length": 8, "overlap": 9},
        {"unroll_length": True},
        {},
    ],
)
def test_a_manifest_that_names_no_recording_is_refused(extra):
    """Whatever its JSON holds."""
    with pytest.raises(RemoteWireError):
        Recording.from_json(extra)


def test_an_inference_without_the_rules_module_says_so(tmp_path):
    """By the rule's name, before it acts."""
    policy, parameters = make_policy()
    manifest = make_manifest(policy, Recording(rule="nowhere_to_be_found:Rule", unroll_length=8))
    with pytest.raises(ConfigError, match="nowhere_to_be_found"):
        Engine(torch.device("cpu")).load(1, manifest, parameters.export())
