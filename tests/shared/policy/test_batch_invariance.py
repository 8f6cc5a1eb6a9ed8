"""Networks that inference and the learner would compute differently are refused when they are built."""

import pytest
import torch
from torch import nn

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.networks import make_torso


class Layers(nn.Module):
    """A torso of one layer and whatever is put behind it."""

    def __init__(self, image_shapes, vector_size, *, then, **kwargs):
        super().__init__()
        self.output_size = 8
        self.body = nn.Sequential(nn.Linear(vector_size, 8), MODULES[then]())

    def forward(self, images, vector):
        return self.body(vector)


class Functional(nn.Module):
    """A torso whose forward does it, without a module that could be named."""

    def __init__(self, image_shapes, vector_size, *, way):
        super().__init__()
        self.output_size = vector_size
        self.way = way

    def forward(self, images, vector):
        return FORWARDS[self.way](vector)


MODULES = {
    "dropout": nn.Dropout,
    "no dropout": lambda: nn.Dropout(0.0),
    "alpha": nn.AlphaDropout,
    "rrelu": nn.RReLU,
    "batch": lambda: nn.BatchNorm1d(8),
    "batch without statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "layer": lambda: nn.LayerNorm(8),
    "encoder": lambda: nn.TransformerEncoderLayer(8, 2, dropout=0.1, batch_first=True),
}
FORWARDS = {
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "mean": lambda x: x - x.mean(0),
    "shape": lambda x: x[:, :2],
    "error": lambda x: x @ torch.zeros(3, 3),
    "sound": torch.tanh,
}


def build(name, **kwargs):
    config = PolicyConfig(network=f"{__name__}:{name}", network_kwargs=kwargs)
    return make_torso(config, (), 4)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("dropout", r"module body\.1 \(Dropout\) is random.*remove it"),
        ("alpha", r"body\.1 \(AlphaDropout\)"),
        ("rrelu", r"body\.1 \(RReLU\)"),
        ("batch", r"body\.1 \(BatchNorm1d\) has statistics of whole batches.*LayerNorm"),
        ("batch without statistics", r"body\.1 \(BatchNorm1d\)"),
        ("encoder", r"body\.1\.self_attn \(MultiheadAttention\).*set dropout to 0"),
    ],
)
def test_a_module_that_is_random_or_looks_at_the_batch_is_refused_by_path_and_class(then, told):
    """With what to do."""
    with pytest.raises(ConfigError, match=told):
        build("Layers", then=then)


@pytest.mark.parametrize("then", ["no dropout", "layer"])
def test_a_module_that_could_be_random_and_is_not_is_used(then):
    """As is one that looks along each row."""
    assert build("Layers", then=then).output_size == 8


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("dropout", "the same rows gave other features the second time"),
        ("mean", "depend on the other rows of its batch"),
        ("shape", r"gave \[4, 2\], its output_size says \[4, 4\]"),
        ("error", r"raised RuntimeError: .*test_batch_invariance\.py, line \d+"),
    ],
)
def test_what_no_module_tells_is_seen_in_a_few_rows(way, told):
    """The same rows twice, one of them alone, their shape; an error with its place in the user's code."""
    with pytest.raises(ConfigError, match=told):
        build("Functional", way=way)


def test_looking_at_a_network_leaves_the_random_numbers_that_follow_as_they_were():
    """A seed gives the same weights whether or not rows were computed."""
    torch.manual_seed(3)
    build("Functional", way="sound")
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
