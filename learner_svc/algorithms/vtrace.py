"""IMPALA: an actor-critic whose off-policy experience is corrected by V-trace.

loss = -mean(log π(a_t) A_t) + baseline_cost·½·mean((v_t - V_t)²) - entropy_cost·mean H + kl_cost·mean KL(μ‖π), means
over trained transitions. With `policy_clip` ε its first term is PPO's, for experience that is used more than once:
-mean(min(ω_t X_t, clip(ω_t, 1/(1+ε), 1+ε) X_t)), X the advantage without its weight. Acting is plain sampling from π.
Targets are computed in raw reward units; with `value_normalisation` the network's value output is (V - mean) / std of
the targets, and loss and advantages are divided by std. Sources: Espeholt et al. 2018, arXiv 1802.01561; Schulman et
al. 2017, arXiv 1707.06347.

Shape suffixes: T transitions, R = T+1 rows, B lane-unrolls, P distribution parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learner_svc.algorithm_config import VTraceConfig
from learner_svc.batch import Experience, discounts, first_rows
from learner_svc.normaliser import ValueNormaliser
from learner_svc.optimiser import FlatOptimiser
from learner_svc.returns import vtrace
from shared.policy.policy import Policy

MAX_LOG_RHO = 20.0  # of what is summed for people; the targets clip ω themselves
MAX_KL_LOG_RHO = 3.0  # bounds one row's pull on the policy where ω explodes
ENTROPY_PARAMETER_BOUND = 20.0  # |m·p| of the adaptive entropy cost, so that exp stays finite


@dataclass(frozen=True, slots=True)
class LossOutput:
    """What one evaluation of the loss gives the updater."""

    loss: Tensor  # scalar, with gradient
    diagnostics: Tensor  # f32 [D], detached; `VTrace.report` names them after the update's one sync


class VTrace:
    """The loss and its own small state. Owned by the update thread."""

    def __init__(self, config: VTraceConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy
        device = next(policy.parameters()).device
        self._value = (
            None if config.value_normalisation == "none" else ValueNormaliser(config.value_normalisation_rate, device)
        )
        self._target_moments: tuple[Tensor, Tensor] | None = None  # of the last loss
        self._entropy: AdaptiveEntropyCost | None = None
        if config.entropy_target is not None:
            self._entropy = AdaptiveEntropyCost(config, config.entropy_target, device)

    def loss(self, experience: Experience) -> LossOutput:
        """The loss of one batch, and the sums that `report` turns into figures."""
        config, batch = self.config, experience.batch
        length, trained_TB, number = batch.num_transitions, experience.trained_TB, max(1, experience.num_trained)
        output = self.policy(batch.observation, batch.reward, first_rows(batch.flags), batch.action, batch.state)
        mask_TB = None if batch.mask is None else batch.mask[:length]
        evaluation = self.policy.distribution.evaluate(output.params[:length], batch.action, mask_TB)
        log_rho_TB = torch.where(experience.valid_TB, evaluation.log_prob - batch.log_prob, 0.0)
        targets = vtrace(
            log_rho_TB,
            discounts(batch.flags, config.discount),
            self._reward(batch.reward[1:], experience.reward_scale_B),
            experience.valid_TB,
            *self._raw_value(output.value, length),
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            pg_rho_clip=config.pg_rho_clip,
            lam=config.lam,
        )
        value_TB, target_TB = output.value[:length], targets.value_target_TB
        advantage_TB = targets.advantage_TB if config.policy_clip else targets.pg_advantage_TB
        if self._value is not None:
            target_TB = (target_TB - self._value.mean.float()) / self._value.std.float()
            advantage_TB = advantage_TB / self._value.std.float()
        if config.normalise_advantage:
            advantage_TB = _standardise(advantage_TB, trained_TB, number)
        advantage_TB = torch.where(trained_TB, advantage_TB, 0.0)
        error_TB = torch.where(trained_TB, target_TB - value_TB, 0.0)
        if config.policy_clip:
            gain_TB = clipped_gain(torch.where(trained_TB, log_rho_TB, 0.0), advantage_TB, config.policy_clip)
        else:
            gain_TB = torch.where(trained_TB, evaluation.log_prob, 0.0) * advantage_TB
        policy_loss = -gain_TB.sum() / number
        value_loss = torch.sum(error_TB.square()) * (0.5 / number)
        entropy = torch.where(trained_TB, evaluation.entropy, 0.0).sum() / number
        entropy_cost = self._entropy.cost() if self._entropy else entropy.new_full((), config.entropy_cost)
        loss = policy_loss + config.baseline_cost * value_loss - entropy_cost * entropy
        if config.kl_cost:
            loss = loss + (config.kl_cost / number) * kl_to_behaviour(torch.where(trained_TB, log_rho_TB, 0.0)).sum()
        with torch.no_grad():
            if self._entropy is not None:
                self._entropy.measure(entropy)
            scalars = torch.stack([policy_loss, value_loss, entropy, entropy_cost])
            sums = self._sums(experience, log_rho_TB.detach(), targets.value_target_TB, error_TB, advantage_TB)
        return LossOutput(loss, torch.cat([scalars.detach(), sums]))

    def after_step(self, learning_rate: float) -> None:
        """Move what learns beside the network: target statistics and the entropy cost."""
        if self._value is not None and self._target_moments is not None:
            scale, shift = self._value.update(*self._target_moments)
            if self.config.value_normalisation == "popart":
                self.policy.rescale_value_(scale, shift)
        if self._entropy is not None:
            self._entropy.step(learning_rate)

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """The figures that people look at, by name, from the host's copy of the diagnostics."""
        policy_loss, value_loss, entropy, entropy_cost, shift, *sums = diagnostics
        number = max(1, experience.num_trained)
        clipped, omega, omega_square, kl, log_rho, target, target_square, error, error_square, advantage_square = (
            total / number for total in sums[:10]
        )
        target_variance = max(0.0, target_square - target**2)
        error_variance = max(0.0, error_square - error**2)
        figures = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "entropy_cost": entropy_cost,
            "rho_clipped_share": clipped,
            "effective_sample_size": omega**2 / omega_square if omega_square > 0 else 0.0,  # share of the batch
            "kl": kl,
            "log_rho_mean_abs": log_rho,
            "value_target_mean": shift + target,
            "value_error_mean": error,
            "advantage_rms": math.sqrt(max(0.0, advantage_square)),
        }
        if target_variance > 1e-12:
            figures["explained_variance"] = 1.0 - error_variance / target_variance
        if experience.num_current:
            figures["log_rho_mean_abs_lag0"] = sums[10] / experience.num_current
        return figures

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        parts: dict[str, Mapping[str, Tensor]] = {}
        if self._value is not None:
            parts["value"] = self._value.state()
        if self._entropy is not None:
            parts["entropy"] = self._entropy.state()
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _reward(self, reward_TB: Tensor, scale_B: Tensor | None) -> Tensor:
        """Rewards as trained on: scaled by their task, then by the algorithm, then clipped."""
        if scale_B is not None:
            reward_TB = reward_TB * scale_B
        if self.config.reward_scale != 1.0:
            reward_TB = reward_TB * self.config.reward_scale
        if self.config.reward_clip:
            reward_TB = reward_TB.clamp(-self.config.reward_clip, self.config.reward_clip)
        return reward_TB

    def _raw_value(self, value_RB: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """V of rows 0…T-1 and of row T in units of reward, detached."""
        value_RB = value_RB.detach()
        if self._value is not None:
            value_RB = value_RB * self._value.std.float() + self._value.mean.float()
        return value_RB[:length], value_RB[length]

    def _sums(
        self, experience: Experience, log_rho_TB: Tensor, target_TB: Tensor, error_TB: Tensor, advantage_TB: Tensor
    ) -> Tensor:
        """[12]: a shift near the mean target, then sums over trained rows; last, |log ρ| over those of lag 0.

        `error` is in units of the value head, and so is the target's spread: explained variance has no unit.
        """
        log_rho_TB = log_rho_TB.clamp(-MAX_LOG_RHO, MAX_LOG_RHO)
        omega_TB, distance_TB = log_rho_TB.exp(), log_rho_TB.abs()
        shift = target_TB.mean()  # squares of what is centred keep their digits
        centred_TB = target_TB - shift
        error_TB = error_TB.detach()
        if self._value is not None:
            error_TB = error_TB * self._value.std.float()
        series = torch.stack(
            [
                (omega_TB > self.config.rho_clip).float(),
                omega_TB,
                omega_TB.square(),
                omega_TB - 1.0 - log_rho_TB,
                distance_TB,
                centred_TB,
                centred_TB.square(),
                error_TB,
                error_TB.square(),
                advantage_TB.square(),
            ]
        ).flatten(1)
        trained_N = experience.trained_TB.flatten().float()
        sums = series @ trained_N
        if self._value is not None:
            self._keep_target_moments(sums, shift, max(1, experience.num_trained))
        current = (
            torch.dot(distance_TB.flatten(), experience.current_TB.flatten().float())
            if experience.num_current
            else torch.zeros_like(shift)
        )
        return torch.cat([shift.reshape(1), sums, current.reshape(1)])

    def _keep_target_moments(self, sums: Tensor, shift: Tensor, number: int) -> None:
        """Mean and variance of this batch's targets, taken in after the step."""
        mean, square = sums[5] / number, sums[6] / number
        self._target_moments = (shift + mean, (square - mean.square()).clamp(min=0.0))


class AdaptiveEntropyCost:
    """cost = exp(m·p), with p moved so that the entropy nears its target: loss += cost·sg(H - H*), |p| ≤ 20/m."""

    def __init__(self, config: VTraceConfig, target: float, device: torch.device) -> None:
        self._speed, self._target = config.entropy_adjustment_speed, target
        start = math.log(config.entropy_cost) / self._speed
        self._parameter = torch.full((1,), start, device=device)
        self._gradient = torch.zeros(1, device=device)
        self._optimiser = FlatOptimiser(config, self._parameter, self._gradient)

    def cost(self) -> Tensor:
        """The cost now, a constant for the network's gradient."""
        return (self._speed * self._parameter[0]).exp()

    def measure(self, entropy: Tensor) -> None:
        """Remember the gradient of the batch that was just evaluated: m·cost·(H - H*)."""
        self._gradient[0] = self._speed * self.cost() * (entropy - self._target)

    def step(self, learning_rate: float) -> None:
        """One optimiser step on p."""
        self._optimiser.step(learning_rate)
        bound = ENTROPY_PARAMETER_BOUND / self._speed
        self._parameter.clamp_(-bound, bound)

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        return {"parameter": self._parameter} | {f"optimiser.{k}": v for k, v in self._optimiser.state().items()}


def kl_to_behaviour(log_rho: Tensor) -> Tensor:
    """An estimate of KL(μ‖π) for each action drawn from μ, never negative: ω - 1 - log ω, straight where ω explodes.

    Its gradient, (ω - 1)·∇log π, vanishes on-policy; that of -log ω only does so on average.
    """
    bounded = log_rho.clamp(max=MAX_KL_LOG_RHO)
    return torch.expm1(bounded) - bounded + math.expm1(MAX_KL_LOG_RHO) * (log_rho - bounded)


def clipped_gain(log_rho: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """PPO's objective of each action: nothing is gained by moving ω out of 1/(1+clip)…1+clip."""
    omega = log_rho.clamp(max=MAX_LOG_RHO).exp()
    return torch.minimum(omega * advantage, omega.clamp(1.0 / (1.0 + clip), 1.0 + clip) * advantage)


def _standardise(advantage_TB: Tensor, trained_TB: Tensor, number: int) -> Tensor:
    """Mean 0 and deviation 1 over trained transitions."""
    mean = torch.where(trained_TB, advantage_TB, 0.0).sum() / number
    centred_TB = torch.where(trained_TB, advantage_TB - mean, 0.0)
    deviation = (centred_TB.square().sum() / number).sqrt()
    return centred_TB / (deviation + 1e-6)
