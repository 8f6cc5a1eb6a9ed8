"""The flat optimiser against plain Python and against PyTorch's own, and the learning-rate decay."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seedbed.learner_svc.algorithms.config import AlgorithmSettings
from seedbed.learner_svc.learning.optimiser import FlatOptimiser, learning_rate_at


def test_rmsprop_has_eps_inside_the_root():
    """TensorFlow's form, step by step in plain Python, with momentum."""
    config = AlgorithmSettings(optimizer="rmsprop", eps=1e-2, rmsprop_decay=0.9, rmsprop_momentum=0.5)
    parameter, gradient = torch.tensor([1.0]), torch.zeros(1)
    optimiser = FlatOptimiser(config, parameter, gradient)
    value, mean_square, velocity = 1.0, 0.0, 0.0
    for g in (0.3, -0.2, 1.5):
        gradient.fill_(g)
        optimiser.step(0.1)
        mean_square = 0.9 * mean_square + 0.1 * g * g
        velocity = 0.5 * velocity + 0.1 * g / math.sqrt(mean_square + 1e-2)
        value -= velocity
        assert parameter.item() == pytest.approx(value, rel=1e-5)


def test_adam_is_adam():
    """Kingma & Ba's algorithm 1 in plain Python."""
    config = AlgorithmSettings(adam_beta1=0.8, adam_beta2=0.95, eps=1e-3)
    parameter, gradient = torch.tensor([1.0]), torch.zeros(1)
    optimiser = FlatOptimiser(config, parameter, gradient)
    value, mean, mean_square = 1.0, 0.0, 0.0
    for count, g in enumerate((0.3, -0.2, 1.5), start=1):
        gradient.fill_(g)
        optimiser.step(0.1)
        mean, mean_square = 0.8 * mean + 0.2 * g, 0.95 * mean_square + 0.05 * g * g
        corrected = mean_square / (1 - 0.95**count)
        value -= 0.1 * mean / (1 - 0.8**count) / (math.sqrt(corrected) + 1e-3)
        assert parameter.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_a_resumed_optimiser_goes_on_exactly(name):
    """Its state is all that it needs."""
    config = AlgorithmSettings(optimizer=name, rmsprop_momentum=0.9)
    gradients = torch.randn(6, 40, generator=torch.Generator().manual_seed(1))
    whole, gradient = torch.ones(40), torch.zeros(40)
    optimiser = FlatOptimiser(config, whole, gradient)
    for index, drawn in enumerate(gradients):
        if index == 3:
            halfway, state = whole.clone(), {k: v.clone() for k, v in optimiser.state().items()}
        gradient.copy_(drawn)
        optimiser.step(0.01)
    resumed = FlatOptimiser(config, halfway, gradient)
    for key, tensor in resumed.state().items():
        tensor.copy_(state[key])
    for drawn in gradients[3:]:
        gradient.copy_(drawn)
        resumed.step(0.01)
    assert torch.equal(halfway, whole)


@given(st.integers(0, 2000))
def test_the_learning_rate_falls_linearly_to_zero_and_stays(trained_steps):
    """Over configured steps, not updates."""
    config = AlgorithmSettings(learning_rate=0.5, learning_rate_decay_steps=1000)
    assert learning_rate_at(config, trained_steps, 0) == pytest.approx(0.5 * max(0, 1 - trained_steps / 1000))


def test_the_decay_lasts_the_run_unless_said_otherwise():
    """A run without a length, or a decay of 0, keeps the rate."""
    assert learning_rate_at(AlgorithmSettings(learning_rate=0.5), 50, 100) == 0.25
    assert learning_rate_at(AlgorithmSettings(learning_rate=0.5), 50, 0) == 0.5
    assert learning_rate_at(AlgorithmSettings(learning_rate=0.5, learning_rate_decay_steps=0), 50, 100) == 0.5


def test_the_learning_rate_rises_from_zero_where_a_warmup_is_asked_for():
    """Linear in trained steps, times the decay."""
    config = AlgorithmSettings(learning_rate=0.5, learning_rate_warmup_steps=100, learning_rate_decay_steps=1000)
    rates = [learning_rate_at(config, trained_steps, 0) for trained_steps in (0, 50, 100, 500)]
    assert rates == pytest.approx([0.0, 0.25 * 0.95, 0.5 * 0.9, 0.5 * 0.5])
    assert learning_rate_at(AlgorithmSettings(learning_rate=0.5, learning_rate_warmup_steps=100), 50, 0) == 0.25


def test_a_parameter_that_is_not_flat_is_refused():
    """Or a gradient of another size."""
    with pytest.raises(ValueError, match="not flat"):
        FlatOptimiser(AlgorithmSettings(), torch.zeros(2, 2), torch.zeros(2, 2))
