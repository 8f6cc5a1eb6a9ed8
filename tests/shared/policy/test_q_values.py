"""Q of a duelling network over every kind of choice, and the exploration of lanes."""

import itertools

import numpy as np
import pytest
import torch
from gymnasium import spaces

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import MAX_Q, ActingOutputs, EpsilonGreedy, Q
from seedbed.shared.policy.distributions import ActionDistribution
from seedbed.shared.policy.q_values import DuellingQ, lane_epsilons
from seedbed.shared.protocol.spaces import space_from_gymnasium

SPACES = {
    "discrete": spaces.Discrete(4, start=2),
    "even": spaces.MultiDiscrete([3, 3]),
    "uneven": spaces.MultiDiscrete([2, 4, 3]),
    "dict": spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([3, 2])}),
}


def sizes_of(space: spaces.Space) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec]
    return [size for part in space.values() for size in sizes_of(part)]


def reference(params: list[float], value: float, sizes: list[int], action: list[int]) -> float:
    """Plain Python: V plus, for each component, A of its choice less the mean of A."""
    q, start = value, 0
    for size, chosen in zip(sizes, action, strict=True):
        part = params[start : start + size]
        q += part[chosen] - sum(part) / size
        start += size
    return q


@pytest.mark.parametrize("kind", SPACES)
def test_q_is_that_of_plain_python(kind: str) -> None:
    """For every action; the greatest is that of the distribution's mode, with a mask too."""
    sizes, generator = sizes_of(SPACES[kind]), np.random.default_rng(0)
    distribution = ActionDistribution(space_from_gymnasium(SPACES[kind]))
    q = DuellingQ(distribution)
    params, value = torch.from_numpy(generator.normal(size=(5, sum(sizes)))).float(), torch.arange(5.0)
    mask = torch.from_numpy(generator.integers(0, 2, (5, sum(sizes)))).to(torch.uint8)
    for row in range(5):
        every = {
            action: reference(params[row].tolist(), float(value[row]), sizes, list(action))
            for action in itertools.product(*map(range, sizes))
        }
        own = torch.tensor([list(action) for action in every], dtype=torch.float32)
        found = q.of(params[row].expand(len(own), -1), value[row].expand(len(own)), own)
        torch.testing.assert_close(found, torch.tensor(list(every.values())), atol=1e-5, rtol=1e-5)
        of_row, greatest = (params[row : row + 1], value[row : row + 1]), pytest.approx(max(every.values()), abs=1e-5)
        assert q.greatest(*of_row).item() == greatest
        assert q.of(*of_row, distribution.mode(params[row : row + 1])).item() == greatest
    allowed = distribution.mode(params, mask)
    torch.testing.assert_close(q.greatest(params, value, mask), q.of(params, value, allowed))


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), spaces.MultiBinary(3)])
def test_actions_that_are_no_choices_are_refused_by_name(space: spaces.Space) -> None:
    """With what to use instead."""
    with pytest.raises(ConfigError, match=type(space).__name__):
        DuellingQ(ActionDistribution(space_from_gymnasium(space)))


@pytest.mark.parametrize("lanes", [1, 3, 16, 100])
def test_exploration_is_spread_evenly_for_any_number_of_lanes(lanes: int) -> None:
    """As many lanes in each quarter of the exponents as in another, but for one or two; the first one explores most."""
    epsilon = lane_epsilons(range(lanes), base=0.4, alpha=7.0)
    u = (torch.log(epsilon) / np.log(0.4) - 1) / 7
    counts = np.histogram(u.numpy(), bins=4, range=(0, 1))[0]
    assert counts.max() - counts.min() <= 2
    assert epsilon[0].item() == pytest.approx(0.4)
    assert epsilon.min() >= 0.4**8 * (1 - 1e-5)


def test_replicas_explore_otherwise() -> None:
    """The same slots of two inference services have other ε, spread as evenly."""
    first, second = (lane_epsilons(range(8), base=0.4, alpha=7.0, replica=number) for number in (1, 2))
    assert not set(first.tolist()) & set(second.tolist())


def test_a_lane_explores_as_often_as_its_epsilon_says() -> None:
    """And then takes any permitted action, each as often; else the best one. Equal arguments give equal noise."""
    distribution = ActionDistribution(space_from_gymnasium(spaces.Discrete(4)))
    rule = EpsilonGreedy(base=0.5, alpha=1.0)
    ticks, slots = 20_000, range(2)
    noise = rule.noise(distribution, 3, 0, ticks, slots)
    again = rule.noise(distribution, 3, 0, ticks, slots)
    assert all((one == other).all() for one, other in zip(noise, again, strict=True))
    assert not (noise[-1] == rule.noise(distribution, 3, 1, ticks, slots)[-1]).all()
    params = torch.tensor([[0.0, 3.0, 1.0, 2.0]]).expand(2, -1)
    mask = torch.tensor([[1, 1, 1, 0]], dtype=torch.uint8).expand(2, -1)
    outputs = ActingOutputs(params, torch.tensor([10.0, 20.0]))
    counts = np.zeros((2, 4))
    for tick in range(0, ticks, 4):
        decision = rule.decide(
            distribution, outputs, [torch.from_numpy(array[tick]) for array in noise], mask, {Q, MAX_Q}
        )
        counts[np.arange(2), decision.action[:, 0].int().numpy()] += 1
    share = counts / counts.sum(1, keepdims=True)
    epsilon = lane_epsilons(slots, base=0.5, alpha=1.0).numpy()
    np.testing.assert_allclose(share[:, 0], epsilon / 3, atol=0.02)
    np.testing.assert_allclose(share[:, 1], 1 - epsilon * 2 / 3, atol=0.02)
    assert (share[:, 3] == 0).all()
    assert decision.recorded[MAX_Q].tolist() == [11.5, 21.5]


@pytest.mark.parametrize("parameters", [{"base": 1.5}, {"base": -0.1}, {"alpha": -1.0}])
def test_an_epsilon_that_is_no_probability_is_refused(parameters: dict[str, float]) -> None:
    """By a manifest's reader too."""
    with pytest.raises(ValueError, match="expected 0"):
        EpsilonGreedy(**parameters)
