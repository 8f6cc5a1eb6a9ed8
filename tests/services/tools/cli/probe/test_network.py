"""Trying a policy: a network of one's own that fails is told by place before any service starts."""

import sys

import numpy as np
import pytest
from gymnasium import spaces

from seedbed.services.tools.cli.probe.network import look, try_policy
from seedbed.services.tools.cli.probe.record import spec_to_json
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from tests.support.own_algorithm import NAME, write_module
from tests.support.specs import make_spec

SPEC = make_spec(
    spaces.Dict(camera=spaces.Box(0, 255, (84, 84), np.uint8), speed=spaces.Box(-1, 1, (3,), np.float32)),
    spaces.Discrete(4), env_id="any",
)  # fmt: skip
VECTOR = make_spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), env_id="any")
NETS = """
import torch
from torch import nn
from seedbed.shared.policy.networks import Torso, dense

class Good(Torso):
    def __init__(self, images, vector):
        super().__init__()
        self.layer, self.output_size = dense(vector, 16), 16
    def forward(self, images, vector):
        return self.layer(vector)

class Narrow(Good):
    def forward(self, images, vector):
        return self.layer(vector[:, :2])  # line 15

class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x
    @staticmethod
    def backward(context, gradient):
        raise NotImplementedError("no gradient yet")  # line 23

class OneWay(Good):
    def forward(self, images, vector):
        return Doubling.apply(self.layer(vector))

class Counting(Good):
    def __init__(self, images, vector):
        super().__init__(images, vector)
        self.register_buffer("rows", torch.zeros(1, dtype=torch.int64))

class Unfinished(Good):
    def __init__(self, images, vector):
        super().__init__(images, vector)
        self.layer = undefined  # line 37
"""


@pytest.fixture
def request_for(tmp_path, monkeypatch):
    """What is asked of the process, for a network in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets_to_try.py").write_text(NETS)

    def make(network: str, **policy):
        return {"spec": spec_to_json(SPEC), "policy": {"network": network, **policy}}

    return make


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Narrow", r"mat1 and mat2 .*nets_to_try\.py, line 15\)"),
        ("OneWay", r"no gradient yet \(.*nets_to_try\.py, line 23\)"),
        ("Counting", "'nets_to_try:Counting': .*rows is torch.int64"),
        ("Unfinished", r"NameError: .*nets_to_try\.py, line 37\)"),
        ("Missing", "has no attribute 'Missing'"),
        ("Narow", "nets_to_try:Narrow"),
    ],
)
def test_what_is_wrong_with_a_network_is_told_by_place(request_for, name, said):
    """Built, and a few rows passed through it and back."""
    with pytest.raises(ConfigError, match=said):
        look(request_for(f"nets_to_try:{name}"))


def test_a_network_that_works_is_let_pass(request_for):
    """With memory, too."""
    assert look(request_for("nets_to_try:Good")) == {}
    assert look(request_for("nets_to_try:Good", lstm=8)) == {}


@pytest.mark.parametrize("network", ["mlp", "impala_shallow"])
def test_our_own_networks_pass(network):
    """On an image and numbers."""
    try_policy(SPEC, PolicyConfig(network=network, normalise_observation=True))


def test_an_unknown_network_is_answered_with_the_nearest(request_for):
    """A typo costs one look."""
    with pytest.raises(ConfigError, match="did you mean 'impala_deep'"):
        look(request_for("impala_dep"))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, ""),
        ({"critic_unit": 3}, "critic_units"),
        ({"name": "my_algorithms:Nothing"}, "Nothing"),
        ({"name": "my_algorithms:Broken"}, r"KeyError: 'acting_valu' \(.*my_algorithms\.py, line \d+\)"),
    ],
)
def test_an_algorithm_of_ones_own_is_tried_too(tmp_path, monkeypatch, changes, told):
    """One update on a few rows: what would stop the learner is told with file and line."""
    write_module(tmp_path)
    module = tmp_path / "my_algorithms.py"
    broken = module.read_text().split("class OwnCritic(Algorithm):")[1].replace('"acting_value"', '"acting_valu"')
    broken = broken.replace('("log_prob", "acting_valu")', '("log_prob", "acting_value")')
    module.write_text(module.read_text() + "\n\nclass Broken(Algorithm):" + broken)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_algorithms", raising=False)
    request = {
        "spec": spec_to_json(VECTOR),
        "policy": {"network": "mlp"},
        "algorithm": {"name": NAME} | changes,
        "unroll_length": 32,
    }
    if not told:
        assert look(request) == {}
        return
    with pytest.raises(ConfigError, match=told):
        look(request)


def test_an_algorithm_that_does_not_take_the_actions_is_refused() -> None:
    """Q-learning needs choices."""
    request = {"spec": spec_to_json(VECTOR), "policy": {}, "algorithm": {"name": "r2d2"}, "unroll_length": 32}
    assert look(request) == {}
    continuous = make_spec(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), env_id="any")
    with pytest.raises(ConfigError, match="Box actions"):
        look(request | {"spec": spec_to_json(continuous)})


def test_an_algorithm_of_ones_own_may_store_rows_again(tmp_path, monkeypatch):
    """Its overlap fits the run's unrolls, and so the trial's."""
    (tmp_path / "my_q_learning.py").write_text(
        "from seedbed.learner_svc.algorithms.r2d2 import R2D2\nclass MyQ(R2D2):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    request = {"spec": spec_to_json(VECTOR), "policy": {}, "unroll_length": 32}
    assert look(request | {"algorithm": {"name": "my_q_learning:MyQ", "burn_in": 16}}) == {}
