"""What acted and what learns is the same policy: at equal weights their log-probabilities agree on every row."""

import pytest
import torch

from seedbed.shared.policy.policy import Policy
from tests.support.policy_cases import CASES, ActedUnroll, RandomActor, make_policy

LANES, LENGTH, UNROLLS = 5, 7, 4


def evaluate(policy: Policy, unroll: ActedUnroll, first: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
    """log pi [T, B] and V [T, B] of a whole unroll at once, as the learner computes them."""
    output = policy(unroll.obs, unroll.reward, unroll.first if first is None else first, unroll.action, unroll.state)
    mask = None if unroll.mask is None else unroll.mask[:-1]
    return policy.distribution.log_prob(output.params[:-1], unroll.action, mask), output.value[:-1]


@pytest.mark.parametrize("name", CASES)
def test_whole_unrolls_give_the_log_probabilities_that_acted(name: str) -> None:
    """|log pi - log mu| < 1e-4 on every row, across unrolls and resets; values likewise."""
    policy = make_policy(name)
    actor = RandomActor(policy, LANES)
    for _ in range(UNROLLS):
        unroll = actor.unroll(LENGTH)
        assert unroll.log_prob.std() > 0.05  # or the comparison would say nothing
        log_prob, value = evaluate(policy, unroll)
        assert (log_prob - unroll.log_prob).abs().max() < 1e-4
        assert (value - unroll.value).abs().max() < 1e-4


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]()[1].lstm or CASES[name]()[1].stack > 1])
def test_a_policy_with_memory_notices_forgotten_resets(name: str) -> None:
    """The identity test can fail: without the `first` flags the log-probabilities differ."""
    policy = make_policy(name)
    actor = RandomActor(policy, LANES)
    actor.unroll(LENGTH)
    unroll = actor.unroll(LENGTH)
    log_prob, _ = evaluate(policy, unroll, torch.zeros_like(unroll.first))
    assert (log_prob - unroll.log_prob).abs().max() > 1e-3


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]()[1].lstm or CASES[name]()[1].stack > 1])
def test_what_lay_before_a_first_row_does_not_matter(name: str) -> None:
    """With row 0 `first`, any state before it gives the same parameters, except for another task."""
    policy = make_policy(name)
    unroll = RandomActor(policy, LANES).unroll(LENGTH)
    first = unroll.first.clone()
    first[0] = True
    noisy = tuple(torch.randint(1, 100, part.shape).to(part.dtype) for part in unroll.state)
    if policy.tasks:
        noisy = (unroll.state[0], *noisy[1:])
    outputs = [policy(unroll.obs, unroll.reward, first, unroll.action, state) for state in (unroll.state, noisy)]
    torch.testing.assert_close(outputs[0].params, outputs[1].params)


def test_two_halves_equal_the_whole() -> None:
    """The state after one unroll is the state before the next."""
    policy = make_policy("composite")
    unroll = RandomActor(policy, LANES).unroll(LENGTH)
    whole = policy(unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    cut = 3
    head = policy(
        [leaf[:cut] for leaf in unroll.obs], unroll.reward[:cut], unroll.first[:cut], unroll.action[: cut - 1],
        unroll.state,
    )  # fmt: skip
    tail = policy(
        [leaf[cut:] for leaf in unroll.obs], unroll.reward[cut:], unroll.first[cut:], unroll.action[cut:],
        policy.remember(head.state, unroll.action[cut - 1]),
    )  # fmt: skip
    torch.testing.assert_close(torch.cat([head.params, tail.params]), whole.params, atol=1e-5, rtol=1e-5)
    for left, right in zip(tail.state, whole.state, strict=True):
        if left.dtype.is_floating_point and left is not tail.state[-1]:
            torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
