"""Action distributions against slow plain-Python references, for every kind of space."""

import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from seedbed.shared.policy.distributions import MASKED, ActionDistribution
from seedbed.shared.protocol.spaces import flatten, space_from_gymnasium, unflatten
from tests.support.policy_cases import COMPOSITE_ACTION

SPACES: dict[str, gymnasium.Space[Any]] = {
    "discrete": spaces.Discrete(4),
    "equal": spaces.MultiDiscrete([3, 3]),
    "unequal": spaces.MultiDiscrete([[2, 4], [3, 1]]),
    "binary": spaces.MultiBinary(3),
    "bounded": spaces.Box(-2, 2, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "composite": COMPOSITE_ACTION,
    "scattered": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2), spaces.Discrete(2), spaces.MultiBinary(1))),
}


def make(space: gymnasium.Space[Any], **kwargs: Any) -> ActionDistribution:
    """The distribution over a Gymnasium space."""
    return ActionDistribution(space_from_gymnasium(space, image=None), **kwargs)


def random_case(name: str, rows: int = 6, seed: int = 0) -> tuple[ActionDistribution, torch.Tensor, list[torch.Tensor]]:
    """A distribution, parameters and noise for some rows."""
    distribution = make(SPACES[name])
    generator = torch.Generator().manual_seed(seed)
    params = torch.randn(rows, distribution.param_size, generator=generator)
    noise = [torch.from_numpy(x[0]) for x in distribution.noise(seed, 0, 1, rows)]
    return distribution, params, noise


def reference_log_prob(space: gymnasium.Space[Any], params: list[float], own: list[float], mask: list[int]) -> float:
    """log pi of one row by the definition, component by component."""
    leaves = space_from_gymnasium(space, image=None).leaves()
    num_logits = sum(leaf.num_categories for leaf in leaves)
    num_binaries = sum(leaf.num_elements for leaf in leaves if leaf.kind == "multi_binary")
    num_normals = sum(leaf.num_elements for leaf in leaves if leaf.kind == "box")
    logit, binary, normal = 0, num_logits, num_logits + num_binaries
    total, columns = 0.0, iter(own)
    for leaf in leaves:
        if leaf.nvec:
            for n in leaf.nvec:
                allowed = mask[logit : logit + n] if any(mask[logit : logit + n]) else [1] * n
                weights = [
                    math.exp(value) if ok else 0.0 for value, ok in zip(params[logit : logit + n], allowed, strict=True)
                ]
                total += math.log(weights[int(next(columns))] / sum(weights))
                logit += n
        elif leaf.kind == "multi_binary":
            for _ in range(leaf.num_elements):
                p = 1 / (1 + math.exp(-params[binary]))
                total += math.log(p if next(columns) else 1 - p)
                binary += 1
        else:
            for _ in range(leaf.num_elements):
                mean, log_std = params[normal], min(2.0, max(-5.0, params[normal + num_normals]))
                z = (next(columns) - mean) / math.exp(log_std)
                total += -0.5 * z * z - log_std - 0.5 * math.log(2 * math.pi)
                normal += 1
    return total


@pytest.mark.parametrize("name", SPACES)
def test_log_probability_is_the_definition(name: str) -> None:
    """Sampled actions' log-probabilities equal the plain-Python sum, with and without masks."""
    distribution, params, noise = random_case(name)
    ones = torch.ones(len(params), distribution.mask_size, dtype=torch.uint8)
    some = (torch.rand(ones.shape, generator=torch.Generator().manual_seed(5)) < 0.5).to(torch.uint8)
    for mask in (ones, some):
        given = mask if distribution.mask_size else None
        own, log_prob = distribution.sample_with_log_prob(params, noise, given)
        assert own.shape == (len(params), distribution.action_size)
        torch.testing.assert_close(own, distribution.sample(params, noise, given))
        torch.testing.assert_close(log_prob, distribution.log_prob(params, own, given))
        expected = [
            reference_log_prob(SPACES[name], *row)
            for row in zip(params.tolist(), own.tolist(), mask.tolist(), strict=True)
        ]
        assert log_prob.tolist() == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("name", SPACES)
def test_time_and_batch_axes_do_not_matter(name: str) -> None:
    """[T, B, ...] gives what [T·B, ...] gives; `evaluate` gives both parts."""
    distribution, params, noise = random_case(name)
    own = distribution.sample(params, noise)
    mask = torch.ones(len(params), distribution.mask_size, dtype=torch.uint8)
    for given in (mask, None):
        flat = distribution.evaluate(params, own, given)
        folded = None if given is None else given.view(2, 3, -1)
        cube = distribution.evaluate(params.view(2, 3, -1), own.view(2, 3, -1), folded)
        torch.testing.assert_close(cube.log_prob.flatten(), flat.log_prob)
        torch.testing.assert_close(cube.entropy.flatten(), flat.entropy)
        torch.testing.assert_close(flat.entropy, distribution.entropy(params, given))
        torch.testing.assert_close(flat.log_prob, distribution.log_prob(params, own, given))


def test_sampled_frequencies_follow_the_probabilities() -> None:
    """Discrete, binary and normal samples have the moments that their parameters say."""
    rows = 20_000
    categorical = make(spaces.Discrete(3))
    params = torch.tensor([0.2, 1.5, -0.7])
    noise = [torch.from_numpy(x[0]) for x in categorical.noise(3, 9, 1, rows)]
    own = categorical.sample(params.expand(rows, -1), noise).long().flatten()
    assert (own.bincount(minlength=3) / rows).tolist() == pytest.approx(params.softmax(-1).tolist(), abs=0.015)
    binary = make(spaces.MultiBinary(1))
    noise = [torch.from_numpy(x[0]) for x in binary.noise(3, 9, 1, rows)]
    assert binary.sample(torch.full((rows, 1), 0.8), noise).mean().item() == pytest.approx(0.69, abs=0.015)
    normal = make(spaces.Box(-1, 1, (1,), np.float32))
    noise = [torch.from_numpy(x[0]) for x in normal.noise(3, 9, 1, rows)]
    drawn = normal.sample(torch.tensor([[0.5, math.log(0.3)]]).expand(rows, -1), noise)
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
    assert drawn.std().item() == pytest.approx(0.3, abs=0.01)


def test_noise_depends_on_its_key_alone() -> None:
    """The same (seed, block) gives the same noise whatever was drawn before; another key gives another."""
    distribution = make(COMPOSITE_ACTION)
    first = distribution.noise(11, 2, 4, 3)
    distribution.noise(1, 1, 1, 1)
    assert all((a == b).all() for a, b in zip(first, distribution.noise(11, 2, 4, 3), strict=True))
    huge = (1 << 63) + 11  # a key must not pass through a float
    assert (distribution.noise(huge, 0, 4, 3)[0] != distribution.noise(huge + 1, 0, 4, 3)[0]).any()
    for other in (distribution.noise(11, 3, 4, 3), distribution.noise(12, 2, 4, 3)):
        assert all((a != b).any() for a, b in zip(first, other, strict=True))
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in first)
    assert distribution.noise(-5, 0, 1, 1)[0].shape[:2] == (1, 1)


@pytest.mark.parametrize("masked", [False, True])
def test_entropy_of_categories_and_bits_is_the_sum_over_all_actions(masked: bool) -> None:
    """Entropy equals -Σ p log p over the enumerated joint actions; probabilities sum to one."""
    space = spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3])))
    distribution = make(space)
    params = torch.randn(1, distribution.param_size, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 0, 1, 0, 0, 1, 0, 1]], dtype=torch.uint8) if masked else None
    actions = torch.tensor(list(itertools.product(range(3), (0, 1), (0, 1), range(2), range(3))), dtype=torch.float32)
    log_p = distribution.log_prob(
        params.expand(len(actions), -1), actions, None if mask is None else mask.expand(len(actions), -1)
    )
    p = log_p.double().exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    expected = -(p * log_p.double().clamp(min=-100)).sum().item()
    assert distribution.entropy(params, mask).item() == pytest.approx(expected, abs=1e-5)


def test_entropy_of_a_squashed_normal_is_that_of_its_samples() -> None:
    """Gaussian H + E[log(1 - tanh²)], against a large sample; an unbounded normal's is the Gaussian's alone."""
    distribution = make(spaces.Box(-1, 1, (1,), np.float32))
    free = make(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    u = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for mean, std in ((0.0, 1.0), (1.3, 0.4), (-3.0, 1.5)):
        params = torch.tensor([[mean, math.log(std)]])
        gaussian = math.log(std) + 0.5 * math.log(2 * math.pi * math.e)
        slope = torch.log1p(-torch.tanh(mean + std * u).square().clamp(max=1 - 1e-16)).mean().item()
        assert distribution.entropy(params).item() == pytest.approx(gaussian + slope, abs=0.02)
        assert free.entropy(params).item() == pytest.approx(gaussian, abs=1e-5)


@pytest.mark.parametrize("log_std", [-3.0, -1.0, 0.0, 1.0, 2.0])
def test_entropy_of_a_squashed_normal_is_near_for_any_width(log_std: float) -> None:
    """Against a sum over a fine grid, for means inside and far outside the bounds."""
    distribution = make(spaces.Box(-1, 1, (1,), np.float32))
    std = math.exp(log_std)
    for mean in (0.0, 0.5, 2.0, 5.0):
        u = torch.linspace(mean - 10 * std, mean + 10 * std, 200_001, dtype=torch.float64)
        density = torch.distributions.Normal(mean, std).log_prob(u).exp()
        slope = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
        expected = log_std + 0.5 * (math.log(2 * math.pi) + 1) + float(torch.trapezoid(density * slope, u))
        assert distribution.entropy(torch.tensor([mean, log_std])).item() == pytest.approx(expected, abs=0.014)


@pytest.mark.parametrize("name", ["discrete", "equal", "unequal", "composite"])
def test_masked_categories_are_never_chosen(name: str) -> None:
    """Neither by sampling nor greedily; everything stays finite, gradients too."""
    distribution, params, _ = random_case(name, rows=500)
    params.requires_grad_()
    mask = (torch.rand(500, distribution.mask_size, generator=torch.Generator().manual_seed(3)) < 0.5).to(torch.uint8)
    noise = [torch.from_numpy(x[0]) for x in distribution.noise(0, 0, 1, 500)]
    for own in (distribution.sample(params, noise, mask), distribution.mode(params, mask)):
        found = distribution.evaluate(params, own, mask)
        assert found.log_prob.isfinite().all()
        assert found.log_prob.min() > -100  # a forbidden category would be near MASKED
        assert found.entropy.min() > -100
    (gradient,) = torch.autograd.grad((found.log_prob + found.entropy).sum(), params)
    assert gradient.isfinite().all()


def test_a_row_without_permitted_category_permits_all() -> None:
    """An all-zero mask counts as all-one, for each component on its own."""
    distribution = make(spaces.MultiDiscrete([2, 3]))
    params = torch.randn(4, 5)
    own = torch.tensor([[0.0, 1.0]]).expand(4, -1)
    none = torch.tensor([[0, 0, 0, 1, 1]], dtype=torch.uint8).expand(4, -1)
    same = torch.tensor([[1, 1, 0, 1, 1]], dtype=torch.uint8).expand(4, -1)
    torch.testing.assert_close(distribution.log_prob(params, own, none), distribution.log_prob(params, own, same))
    single = make(spaces.Discrete(3))
    params, zeros = torch.randn(4, 3), torch.zeros(4, 3, dtype=torch.uint8)
    torch.testing.assert_close(single.entropy(params, zeros), single.entropy(params))


def test_gumbel_noise_cannot_lift_a_masked_logit() -> None:
    """The largest noise that can be drawn stays far below MASKED's distance."""
    assert -math.log(1e-20) < 50 < -MASKED


def test_environment_actions_lie_in_their_space() -> None:
    """Starts are added, boxes squashed, clipped and rounded, dtypes and shapes right: every sample is contained."""
    space = space_from_gymnasium(COMPOSITE_ACTION, image=None)
    for squash in (True, False):
        distribution = ActionDistribution(space, squash=squash)
        params = 4 * torch.randn(300, distribution.param_size, generator=torch.Generator().manual_seed(4))
        noise = [torch.from_numpy(x[0]) for x in distribution.noise(0, 0, 1, 300)]
        leaves = distribution.to_env(distribution.sample(params, noise).numpy())
        assert [leaf.dtype.name for leaf in leaves] == [leaf.wire_dtype for leaf in space.leaves()]
        value = unflatten(space, leaves)
        for lane in range(300):
            assert COMPOSITE_ACTION.contains({name: part[lane] for name, part in value.items()})
        assert {int(x) for x in value["gear"]} == {-1, 0, 1}
        assert {int(x) for x in value["steps"][:, 0]} == set(range(-3, 5))


def test_squashed_and_clipped_boxes_use_their_bounds() -> None:
    """tanh maps onto [low, high]; without squashing the value is clipped; open bounds leave it alone."""
    box = spaces.Box(np.array([-1, 0, -np.inf], np.float32), np.array([1, 5, 2], np.float32))
    own = np.array([[0.5, 0.0, 3.0], [-20.0, 20.0, -4.0]], np.float32)
    (squashed,) = make(box).to_env(own)
    np.testing.assert_allclose(squashed, [[math.tanh(0.5), 2.5, 2.0], [-1, 5, -4]], rtol=1e-6)
    (clipped,) = make(box, squash=False).to_env(own)
    np.testing.assert_allclose(clipped, [[0.5, 0, 2.0], [-1, 5, -4]])


def test_the_widest_integers_survive() -> None:
    """An int64 box without real bounds is clipped within int64."""
    limits = np.iinfo(np.int64)
    box = spaces.Box(limits.min, limits.max, (1,), np.int64)
    (values,) = make(box).to_env(np.array([[1e30], [-1e30], [3.4]], np.float32))
    assert values[0, 0] > 2**62
    assert values[1, 0] == limits.min
    assert values[2, 0] == 3


def test_encoding_keeps_zero_for_no_action() -> None:
    """One-hot per component, ±1 for bits, squashed values: no action encodes as zeros."""
    space = spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2), spaces.Box(-1, 1, (1,), np.float32)))
    distribution = make(space)
    encoded = distribution.encode(torch.tensor([[[2.0, 0.0, 1.0, 0.5]]]))
    assert encoded.shape == (1, 1, distribution.encoded_size)
    assert encoded.flatten().tolist() == pytest.approx([0, 0, 1, -1, 1, math.tanh(0.5)])
    single = make(spaces.Discrete(3))
    assert single.encode(torch.tensor([[1.0]])).tolist() == [[0, 1, 0]]
    free = make(spaces.Box(-np.inf, np.inf, (1,), np.float32))
    assert free.encode(torch.tensor([[99.0]])).item() == 10


@pytest.mark.parametrize("name", SPACES)
def test_mode_is_the_most_likely_action(name: str) -> None:
    """No sample is more likely than the mode."""
    distribution, params, _ = random_case(name, rows=1)
    best = distribution.log_prob(params, distribution.mode(params))
    noise = [torch.from_numpy(x[0]) for x in distribution.noise(0, 1, 1, 500)]
    rows = params.expand(500, -1)
    assert (distribution.log_prob(rows, distribution.sample(rows, noise)) <= best + 1e-5).all()


def test_own_actions_keep_the_canonical_order() -> None:
    """Own-action columns follow the space's leaves, as `flatten` orders them, whatever their kinds."""
    space = space_from_gymnasium(COMPOSITE_ACTION, image=None)
    distribution = ActionDistribution(space)
    params = torch.zeros(1, distribution.param_size)
    params[0, distribution.num_logits + distribution.num_binaries :] = 0.25  # means
    own = distribution.mode(params)[0].tolist()
    assert own == [0.25, 0.25, 0, 0, 0, 0.25, 0.25, 0, 0, 0, 0, 0.25]
    leaves = distribution.to_env(np.array([own], np.float32))
    assert [leaf.shape for leaf in leaves] == [leaf.shape for leaf in flatten(space, unflatten(space, leaves))]
