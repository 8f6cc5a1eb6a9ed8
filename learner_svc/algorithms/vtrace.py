"""IMPALA: an actor-critic whose off-policy experience is corrected by V-trace.

loss = -mean(log π(a_t) A_t) + baseline_cost·½·mean((v_t - V_t)²) - entropy_cost·mean H + kl_cost·mean KL(μ‖π), means
over trained transitions. Source: Espeholt et al. 2018, arXiv 1802.01561.

Shape suffixes: T transitions, R = T+1 rows, B lane-unrolls.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.actor_critic import (
    ActorCritic,
    TargetMoments,
    describe_update,
    moments_from_sums,
    standardise,
)
from seedbed.learner_svc.algorithms.algorithm import LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import VTraceConfig
from seedbed.learner_svc.algorithms.returns import vtrace
from seedbed.learner_svc.sources.batch import Experience, discounts
from seedbed.shared.policy.policy import Policy

MAX_KL_LOG_RHO = 3.0  # bounds the gradient of one row where ω is very large


class VTrace(ActorCritic):
    """V-trace's loss. Targets are computed again in each pass, with the present weights."""

    Settings = VTraceConfig
    config: VTraceConfig

    def __init__(self, config: VTraceConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._target_moments: TargetMoments | None = None  # of the last loss

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """Return the loss of one batch, and the sums that `report` turns into metrics."""
        config, batch = self.config, experience.batch
        length, trained_TB, number = batch.num_transitions, experience.trained_TB, max(1, experience.num_trained)
        output, evaluation = self._evaluate(experience, length + 1)
        log_rho_TB = torch.where(experience.valid_TB, evaluation.log_prob - batch.log_prob, 0.0)
        targets = vtrace(
            log_rho_TB,
            discounts(batch.flags, config.discount),
            experience.reward_TB,
            experience.valid_TB,
            *self._raw_value(output.value, experience),
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
            pg_rho_clip=config.pg_rho_clip,
            lam=config.lam,
        )
        target_TB, advantage_TB = self._in_head_units(targets.value_target_TB, targets.pg_advantage_TB, experience)
        if config.normalise_advantage:
            advantage_TB = standardise(advantage_TB, trained_TB, number, ranks=self.ranks)
        advantage_TB = torch.where(trained_TB, advantage_TB, 0.0)
        error_TB = torch.where(trained_TB, target_TB - output.value[:length], 0.0)
        gain_TB = torch.where(trained_TB, evaluation.log_prob, 0.0) * advantage_TB
        policy_loss = -gain_TB.sum() / number
        value_loss = torch.sum(error_TB.square()) * (0.5 / number)
        entropy, entropy_cost = self._entropy_bonus(evaluation, trained_TB, number)
        loss = policy_loss + config.baseline_cost * value_loss - entropy_cost * entropy
        if config.kl_cost:
            loss = loss + (config.kl_cost / number) * kl_to_behaviour(torch.where(trained_TB, log_rho_TB, 0.0)).sum()
        with torch.no_grad():
            scalars = torch.stack([policy_loss, value_loss, entropy, self._part(entropy_cost)])
            sums = self._sums(
                experience, log_rho_TB.detach(), targets.value_target_TB, error_TB, advantage_TB,
                rho_clip=config.rho_clip,
            )  # fmt: skip
            if self._value is not None:
                by_task = self._moments_by_task(targets.value_target_TB, experience)
                self._target_moments = by_task or moments_from_sums(self.ranks.sum(sums), number)
        return LossOutput(loss, torch.cat([scalars.detach(), sums]))

    def after_step(self, learning_rate: float) -> None:
        """Update the target statistics and the adaptive entropy cost."""
        if self._target_moments is not None:
            self._move_value_statistics(self._target_moments)
        if self._entropy is not None:
            self._entropy.step(learning_rate)

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """Return the metrics of a step by name, from the host's copy of the diagnostics."""
        return describe_update(diagnostics[:4], diagnostics[4:], experience, self.value_tasks)


def kl_to_behaviour(log_rho: Tensor) -> Tensor:
    """Estimate KL(μ‖π) for each action drawn from μ as ω - 1 - log ω ≥ 0, linear in log ω where ω is very large.

    Its gradient, (ω - 1)·∇log π, is 0 on-policy; that of the estimate -log ω is 0 only on average.
    """
    bounded = log_rho.clamp(max=MAX_KL_LOG_RHO)
    return torch.expm1(bounded) - bounded + math.expm1(MAX_KL_LOG_RHO) * (log_rho - bounded)
