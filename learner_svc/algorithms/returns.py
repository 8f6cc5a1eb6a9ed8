"""Value targets and advantages: V-trace, GAE and n-step returns, each over T transitions of B lanes.

All three are one linear recursion backwards in time. Masks use `where`, never a product, so that NaN or infinity in a
transition that is not a step cannot spread.

Shape suffixes: T transitions, B lanes. Index t of a reward, discount or mask
belongs to the transition from row t to row t+1; value_TB holds V(x_0)…V(x_{T-1}), bootstrap_value_B is V(x_T).
A truncated row needs no special case: the transition after it is not valid, so the recursion ends there with V of
the final observation. A terminated row has discount 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class VTraceTargets:
    """Targets [T, B], detached. Where a transition is not a step, the target is V itself and the advantages are 0."""

    value_target_TB: Tensor
    pg_advantage_TB: Tensor  # A_t


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeTargets:
    """Targets [T, B], detached. Where a transition is not a step, the target is V itself and the advantage is 0."""

    value_target_TB: Tensor
    advantage_TB: Tensor


@torch.no_grad()
def vtrace(
    log_rho_TB: Tensor,
    discount_TB: Tensor,
    reward_TB: Tensor,
    valid_TB: Tensor,
    value_TB: Tensor,
    bootstrap_value_B: Tensor,
    *,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    pg_rho_clip: float = 1.0,
    lam: float = 1.0,
) -> VTraceTargets:
    """Off-policy value targets and policy-gradient advantages.

    With ω = exp(log_rho), ρ = min(rho_clip, ω), c = lam·min(c_clip, ω):
      v_t = V_t + ρ_t (r_{t+1} + γ_t V_{t+1} - V_t) + γ_t c_t (v_{t+1} - V_{t+1}),  v_T = V_T
      A_t = min(pg_rho_clip, ω_t) X_t,  X_t = r_{t+1} + γ_t v_{t+1} - V_t

    Args:
      log_rho_TB: log pi(a|x) - log mu(a|x), float [T, B].
      discount_TB: γ, 0 where the next row is terminal, float [T, B].
      reward_TB: the reward that came with the next row, float [T, B].
      valid_TB: False where the next row is a reset row: no target, no loss, bool [T, B].
      value_TB: V(x_t) under the target policy, float [T, B].
      bootstrap_value_B: V(x_T) under the target policy, float [B].
    Raises: ValueError if the shapes disagree.
    Source: Espeholt et al. 2018, arXiv 1802.01561, eq. 1.
    """
    _check_shapes(value_TB, bootstrap_value_B, log_rho_TB, discount_TB, reward_TB, valid_TB)
    omega_TB = log_rho_TB.exp()
    rho_TB = omega_TB.clamp(max=rho_clip)
    c_TB = rho_TB if c_clip == rho_clip else omega_TB.clamp(max=c_clip)
    delta_TB = reward_TB + discount_TB * _shift(value_TB, bootstrap_value_B) - value_TB
    delta_TB = torch.where(valid_TB, rho_TB * delta_TB, 0.0)
    decay_TB = torch.where(valid_TB, (lam * discount_TB) * c_TB, 0.0)
    target_TB = value_TB + _accumulate(delta_TB, decay_TB)
    pg_rho_TB = rho_TB if pg_rho_clip == rho_clip else omega_TB.clamp(max=pg_rho_clip)
    advantage_TB = reward_TB + discount_TB * _shift(target_TB, bootstrap_value_B) - value_TB
    return VTraceTargets(
        value_target_TB=target_TB, pg_advantage_TB=torch.where(valid_TB, pg_rho_TB * advantage_TB, 0.0)
    )


@torch.no_grad()
def gae(
    discount_TB: Tensor,
    reward_TB: Tensor,
    valid_TB: Tensor,
    value_TB: Tensor,
    bootstrap_value_B: Tensor,
    *,
    lam: float = 0.95,
) -> GaeTargets:
    """Generalised advantage estimates: A_t = δ_t + γ_t λ A_{t+1}, δ_t = r_{t+1} + γ_t V_{t+1} - V_t; target A + V.

    Arguments as for `vtrace`.

    Raises: ValueError if the shapes disagree.
    Source: Schulman et al. 2016, arXiv 1506.02438, eq. 16.
    """
    _check_shapes(value_TB, bootstrap_value_B, discount_TB, reward_TB, valid_TB)
    delta_TB = reward_TB + discount_TB * _shift(value_TB, bootstrap_value_B) - value_TB
    advantage_TB = _accumulate(torch.where(valid_TB, delta_TB, 0.0), torch.where(valid_TB, lam * discount_TB, 0.0))
    return GaeTargets(value_target_TB=value_TB + advantage_TB, advantage_TB=advantage_TB)


@torch.no_grad()
def lambda_advantage(
    discount_TB: Tensor,
    reward_TB: Tensor,
    valid_TB: Tensor,
    value_TB: Tensor,
    bootstrap_value_B: Tensor,
    value_target_TB: Tensor,
    *,
    lam: float = 0.95,
) -> Tensor:
    """Advantages [T, B] that go with targets v: A_t = r_{t+1} + γ_t (V_{t+1} + λ (v_{t+1} - V_{t+1})) - V_t, v_T = V_T.

    With GAE's targets this is GAE. V-trace's targets correct the steps after t, but not the action at t, whose
    importance weight belongs into the policy's loss. 0 where a transition is not a step. Arguments as for `vtrace`.

    Raises: ValueError if the shapes disagree.
    """
    _check_shapes(value_TB, bootstrap_value_B, discount_TB, reward_TB, valid_TB, value_target_TB)
    next_value_TB = _shift(value_TB, bootstrap_value_B)
    next_TB = next_value_TB + lam * (_shift(value_target_TB, bootstrap_value_B) - next_value_TB)
    return torch.where(valid_TB, reward_TB + discount_TB * next_TB - value_TB, 0.0)


@torch.no_grad()
def n_step(discount_TB: Tensor, reward_TB: Tensor, valid_TB: Tensor, next_value_TB: Tensor, n: int) -> Tensor:
    """n-step returns [T, B]: up to n rewards, then the discounted value of the row reached.

    It stops early at the first ended row, bootstrapping there unless it is terminal, and at row T. Where a transition
    is not a step, the result has no meaning.

    Args:
      next_value_TB: the value of row t+1, float [T, B].
    Raises: ValueError if the shapes disagree or n < 1.
    Source: Sutton & Barto 2018, eq. 7.1.
    """
    _check_shapes(next_value_TB, next_value_TB[0], discount_TB, reward_TB, valid_TB)
    if n < 1:
        raise ValueError(f"n is {n}, expected at least 1")
    one_TB = torch.where(valid_TB, reward_TB + discount_TB * next_value_TB, next_value_TB)
    target_TB = one_TB
    goes_on_TB = torch.cat([valid_TB[1:], torch.zeros_like(valid_TB[:1])])
    for _ in range(n - 1):
        tail_TB = torch.where(goes_on_TB, _shift(target_TB, next_value_TB[-1]), next_value_TB)
        target_TB = torch.where(valid_TB, reward_TB + discount_TB * tail_TB, next_value_TB)
    return target_TB


def rescale_value(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h(x) = sign(x)(√(|x|+1) - 1) + εx: compresses large returns. Source: Pohlen et al. 2018, arXiv 1805.11593."""
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + eps * x


def unrescale_value(x: Tensor, eps: float = 1e-3) -> Tensor:
    """h⁻¹, the exact inverse of `rescale_value`."""
    root = (1 + 4 * eps * (x.abs() + 1 + eps)).sqrt()
    return x.sign() * (((root - 1) / (2 * eps)) ** 2 - 1)


def _shift(value_TB: Tensor, last_B: Tensor) -> Tensor:
    """Return the value of each row's successor: value_1…value_{T-1}, then `last`."""
    return torch.cat([value_TB[1:], last_B.unsqueeze(0)])


def _accumulate(delta_TB: Tensor, decay_TB: Tensor) -> Tensor:
    """Return y_t = delta_t + decay_t·y_{t+1} with y_T = 0: one multiply-add on [B] for each t."""
    result_TB = torch.empty_like(delta_TB)
    results, deltas, decays = result_TB.unbind(), delta_TB.unbind(), decay_TB.unbind()
    results[-1].copy_(deltas[-1])
    for t in range(len(deltas) - 2, -1, -1):
        torch.addcmul(deltas[t], decays[t], results[t + 1], out=results[t])
    return result_TB


def _check_shapes(value_TB: Tensor, bootstrap_value_B: Tensor, *others: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in (value_TB, *others)]
    if value_TB.ndim != 2 or not len(value_TB) or len(set(shapes)) != 1:
        raise ValueError(f"expected equal shapes [T, B] with T ≥ 1, got {shapes}")
    if bootstrap_value_B.shape != value_TB.shape[1:]:
        raise ValueError(f"bootstrap value is {tuple(bootstrap_value_B.shape)}, expected {tuple(value_TB.shape[1:])}")
