"""V-trace, GAE and n-step returns against literal vectors, a plain float64 reference and their structure."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seedbed.learner_svc.algorithms.returns import gae, n_step, rescale_value, unrescale_value, vtrace

GAMMA = 0.9


def column(*values, dtype=torch.float64):
    """One lane over time, [T, 1]."""
    return torch.tensor(values, dtype=dtype).unsqueeze(1)


def run_vtrace(valid=(True, True, True), discount=(GAMMA,) * 3, lam=1.0):
    """The example of three transitions on which the semantics are fixed."""
    result = vtrace(
        column(0.5, 2.0, 1.0).log(),
        column(*discount),
        column(1.0, 0.0, 2.0),
        column(*valid, dtype=torch.bool),
        column(0.5, 1.0, 1.5),
        torch.tensor([2.0], dtype=torch.float64),
        lam=lam,
    )
    return result.value_target_TB.flatten().tolist(), result.pg_advantage_TB.flatten().tolist()


@pytest.mark.parametrize(
    ("valid", "discount", "targets", "advantages"),
    [
        pytest.param((1, 1, 1), (0.9, 0.9, 0.9), (2.289, 3.42, 3.8), (1.789, 2.42, 2.3), id="no end"),
        pytest.param((1, 0, 1), (0.0, 0.9, 0.9), (0.75, 1, 3.8), (0.25, None, 2.3), id="row 1 terminated"),
        pytest.param((1, 0, 1), (0.9, 0.9, 0.9), (1.2, 1, 3.8), (0.7, None, 2.3), id="row 1 truncated"),
        pytest.param((1, 1, 0), (0.9, 0.0, 0.9), (0.75, 0, 1.5), (0.25, -1, None), id="row 2 terminated"),
        pytest.param((1, 1, 0), (0.9, 0.9, 0.9), (1.3575, 1.35, 1.5), (0.8575, 0.35, None), id="row 2 truncated"),
        pytest.param((1, 1, 1), (0.9, 0.9, 0.0), (1.56, 1.8, 2), (1.06, 0.8, 0.5), id="row 3 terminated"),
    ],
)
def test_vtrace_meets_the_literal_vectors(valid, discount, targets, advantages):
    """Ends of every kind give the targets that the semantics state; without a step the target is V and A is 0."""
    value_targets, pg_advantages = run_vtrace([bool(v) for v in valid], discount)
    assert value_targets == pytest.approx(targets, abs=1e-9)
    assert pg_advantages == pytest.approx([a or 0.0 for a in advantages], abs=1e-9)


def test_vtrace_with_lambda_meets_its_literal_vector():
    """λ = .95 shortens the correction."""
    value_targets, pg_advantages = run_vtrace(lam=0.95)
    assert value_targets == pytest.approx((2.190304, 3.3165, 3.8), abs=1e-6)
    assert pg_advantages == pytest.approx((1.742425, 2.42, 2.3), abs=1e-6)


def test_vtrace_with_unequal_clips_meets_its_literal_vector():
    """Clips above 1, separate for targets and policy gradient."""
    time = torch.arange(5, dtype=torch.float64).unsqueeze(1)
    result = vtrace(
        5 * (time / 5 - 0.5),
        torch.full_like(time, 0.9),
        time,
        torch.ones_like(time, dtype=torch.bool),
        time,
        torch.tensor([1.0], dtype=torch.float64),
        rho_clip=3.7,
        pg_rho_clip=2.2,
    )
    assert result.value_target_TB.flatten().tolist() == pytest.approx(
        (0.200182, 2.709682, 8.513628, 11.932397, 7.33), abs=1e-6
    )
    assert result.pg_advantage_TB.flatten().tolist() == pytest.approx(
        (0.200182, 1.709682, 6.513628, 10.876614, 1.98), abs=1e-6
    )


@pytest.mark.parametrize(
    ("valid", "discount", "advantages"),
    [
        pytest.param((1, 1, 0), (0.97, 0.0, 0.97), (0.167, -1.8, None), id="row 2 terminated"),
        pytest.param((1, 1, 0), (0.97, 0.97, 0.97), (1.57835, 1.11, None), id="row 2 truncated"),
        pytest.param((1, 0, 1), (0.0, 0.97, 0.97), (-0.9, None, 1.18), id="row 1 terminated"),
        pytest.param((1, 0, 1), (0.97, 0.97, 0.97), (1.04, None, 1.18), id="row 1 truncated"),
    ],
)
def test_gae_meets_the_literal_vectors(valid, discount, advantages):
    """Ends of both kinds; the target is A + V."""
    value = column(1.0, 2.0, 3.0)
    result = gae(
        column(*discount),
        column(0.1, 0.2, 0.3),
        column(*(bool(v) for v in valid), dtype=torch.bool),
        value,
        torch.tensor([4.0], dtype=torch.float64),
        lam=0.5,
    )
    wanted = [a or 0.0 for a in advantages]
    assert result.advantage_TB.flatten().tolist() == pytest.approx(wanted, abs=1e-9)
    assert (result.value_target_TB - value).flatten().tolist() == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "discount", "targets"),
    [
        (1, (0.9, 0.9, 0.9), (91, 182, 273)),
        (1, (0.9, 0.0, 0.9), (91, 2, 273)),
        (2, (0.9, 0.9, 0.9), (164.8, 247.7, 273)),
    ],
)
def test_n_step_meets_the_literal_vectors(n, discount, targets):
    """Bootstraps n rows on, at the end of the rows, and not at a terminal one."""
    result = n_step(
        column(*discount),
        column(1.0, 2.0, 3.0),
        column(True, True, True, dtype=torch.bool),
        column(100.0, 200.0, 300.0),
        n,
    )
    assert result.flatten().tolist() == pytest.approx(targets, abs=1e-9)


def test_n_step_bootstraps_from_a_truncated_row():
    """The return stops at the final observation's value and takes nothing from the next episode."""
    valid = column(True, False, True, dtype=torch.bool)
    result = n_step(column(0.9, 0.9, 0.9), column(1.0, 0.0, 3.0), valid, column(100.0, 200.0, 300.0), 3)
    assert result[0].item() == pytest.approx(1 + 0.9 * 100)


@pytest.mark.parametrize(("x", "h"), [(1.0, 0.415214), (100.0, 9.149876), (0.0, 0.0), (-1.0, -0.415214)])
def test_value_rescaling_meets_the_literal_vectors(x, h):
    """h as R2D2 states it."""
    assert rescale_value(torch.tensor(x, dtype=torch.float64)).item() == pytest.approx(h, abs=1e-6)


@given(st.floats(-1e5, 1e5))
def test_value_rescaling_is_undone_exactly(x):
    """h⁻¹(h(x)) = x."""
    there = rescale_value(torch.tensor(x, dtype=torch.float64))
    assert unrescale_value(there).item() == pytest.approx(x, rel=1e-6, abs=1e-6)


number = st.floats(-3, 3, width=32)
transition = st.tuples(number, st.sampled_from([0.0, 0.9, 1.0]), number, st.booleans(), number)
clips = st.tuples(st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0.1, 3), st.floats(0, 1))


def reference_vtrace(transitions, bootstrap, rho_clip, c_clip, pg_rho_clip, lam):
    """The definition, one lane, in plain Python."""
    targets, advantages = [0.0] * len(transitions), [0.0] * len(transitions)
    next_target = next_value = bootstrap
    for t in reversed(range(len(transitions))):
        log_rho, discount, reward, valid, value = transitions[t]
        targets[t] = value
        if valid:
            omega = math.exp(log_rho)
            delta = min(rho_clip, omega) * (reward + discount * next_value - value)
            targets[t] = value + delta + discount * lam * min(c_clip, omega) * (next_target - next_value)
            advantages[t] = min(pg_rho_clip, omega) * (reward + discount * next_target - value)
        next_target, next_value = targets[t], value
    return targets, advantages


@given(st.lists(transition, min_size=1, max_size=12), number, clips)
@settings(max_examples=60, deadline=None)
def test_vtrace_equals_the_plain_definition(transitions, bootstrap, bounds):
    """Any lane, any ends, any clips: the same as the definition in double precision."""
    rho_clip, c_clip, pg_rho_clip, lam = bounds
    log_rho, discount, reward, valid, value = (column(*item) for item in zip(*transitions, strict=True))
    result = vtrace(
        log_rho, discount, reward, valid.bool(), value, torch.tensor([bootstrap], dtype=torch.float64),
        rho_clip=rho_clip, c_clip=c_clip, pg_rho_clip=pg_rho_clip, lam=lam,
    )  # fmt: skip
    targets, advantages = reference_vtrace(transitions, bootstrap, *bounds)
    assert result.value_target_TB.flatten().tolist() == pytest.approx(targets, abs=1e-9)
    assert result.pg_advantage_TB.flatten().tolist() == pytest.approx(advantages, abs=1e-9)


@given(st.lists(transition, min_size=1, max_size=12), number)
@settings(max_examples=40, deadline=None)
def test_vtrace_on_policy_is_the_n_step_return(transitions, bootstrap):
    """With ω = 1 and λ = 1 the target is the longest n-step return, and A its distance from V."""
    _, discount, reward, valid, value = (column(*item) for item in zip(*transitions, strict=True))
    valid = valid.bool()
    last = torch.tensor([bootstrap], dtype=torch.float64)
    result = vtrace(torch.zeros_like(value), discount, reward, valid, value, last)
    longest = n_step(discount, reward, valid, torch.cat([value[1:], last.unsqueeze(0)]), len(value))
    torch.testing.assert_close(result.value_target_TB[valid], longest[valid])
    torch.testing.assert_close(result.pg_advantage_TB[valid], (longest - value)[valid])


@given(st.lists(transition, min_size=1, max_size=6), st.lists(transition, min_size=1, max_size=6), number, number)
@settings(max_examples=40, deadline=None)
def test_two_episodes_joined_equal_the_two_apart(first, second, final_value, bootstrap):
    """Between them lies the transition into the reset row; nothing crosses it, however wild its own numbers."""
    border = (50.0, 0.9, math.inf, False, final_value)

    def targets(transitions, last):
        columns = (column(*item) for item in zip(*transitions, strict=True))
        log_rho, discount, reward, valid, value = columns
        end = torch.tensor([last], dtype=torch.float64)
        return vtrace(log_rho, discount, reward, valid.bool(), value, end).value_target_TB.flatten()

    joined = targets([*first, border, *second], bootstrap)
    apart = torch.cat([targets(first, final_value), joined.new_tensor([final_value]), targets(second, bootstrap)])
    torch.testing.assert_close(joined, apart)


@given(st.lists(transition, min_size=1, max_size=12), number, st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_gae_is_vtrace_on_policy(transitions, bootstrap, lam):
    """On-policy the V-trace target is V plus the advantage that GAE gives for the same λ."""
    _, discount, reward, valid, value = (column(*item) for item in zip(*transitions, strict=True))
    valid, last = valid.bool(), torch.tensor([bootstrap], dtype=torch.float64)
    traced = vtrace(torch.zeros_like(value), discount, reward, valid, value, last, lam=lam)
    estimated = gae(discount, reward, valid, value, last, lam=lam)
    torch.testing.assert_close(traced.value_target_TB, estimated.value_target_TB)


def test_lanes_do_not_mix():
    """Each of B lanes gets what it would get alone."""
    generator = torch.Generator().manual_seed(3)
    log_rho, reward, value = torch.randn(3, 7, 5, generator=generator)
    discount, valid = torch.full((7, 5), 0.9), torch.rand(7, 5, generator=generator) > 0.2
    last = torch.randn(5, generator=generator)
    together = vtrace(log_rho, discount, reward, valid, value, last)
    for lane in range(5):
        only = slice(lane, lane + 1)
        alone = vtrace(log_rho[:, only], discount[:, only], reward[:, only], valid[:, only], value[:, only], last[only])
        torch.testing.assert_close(together.value_target_TB[:, only], alone.value_target_TB)
        torch.testing.assert_close(together.pg_advantage_TB[:, only], alone.pg_advantage_TB)


def test_an_exploding_weight_stays_finite():
    """exp(log ω) may overflow; the clip holds it."""
    one = torch.ones(2, 1)
    result = vtrace(one * 1e4, one * 0.9, one, one.bool(), one, torch.ones(1))
    assert torch.isfinite(result.value_target_TB).all()
    assert torch.isfinite(result.pg_advantage_TB).all()


def test_shapes_that_disagree_are_refused():
    """No silent broadcasting between lanes and time."""
    one = torch.ones(2, 3)
    with pytest.raises(ValueError, match="equal shapes"):
        vtrace(one, one[:1], one, one.bool(), one, torch.ones(3))
    with pytest.raises(ValueError, match="bootstrap value"):
        gae(one, one, one.bool(), one, torch.ones(2))
    with pytest.raises(ValueError, match="n is 0"):
        n_step(one, one, one.bool(), one, 0)
