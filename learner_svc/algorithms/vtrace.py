"""IMPALA: an actor-critic whose off-policy experience is corrected by V-trace.

loss = -mean(log π(a_t) A_t) + baseline_cost·½·mean((v_t - V_t)²) - entropy_cost·mean H + kl_cost·mean KL(μ‖π), means
over trained transitions. Source: Espeholt et al. 2018, arXiv 1802.01561.

Shape suffixes: T transitions, R = T+1 rows, B lane-unrolls.
"""

import math

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.actor_critic import ActorCritic
from seedbed.learner_svc.algorithms.algorithm import LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import VTraceConfig
from seedbed.learner_svc.algorithms.returns import vtrace
from seedbed.learner_svc.sources.batch import Experience, discounts

MAX_KL_LOG_RHO = 3.0  # bounds the gradient of one row where ω is very large


class VTrace(ActorCritic):
    """V-trace's loss. Targets are computed again in each pass, with the present weights."""

    Settings = VTraceConfig
    config: VTraceConfig

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """Return the loss of one batch, and the sums that `report` turns into metrics."""
        config, batch = self.config, experience.batch
        output, evaluation = self._evaluate(experience, batch.num_transitions + 1)
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
        loss, diagnostics = self._policy_gradient(
            experience, output, evaluation, log_rho_TB.detach(), targets.value_target_TB, targets.pg_advantage_TB,
            rho_clip=config.rho_clip,
        )  # fmt: skip
        if config.kl_cost:
            number, log_rho_TB = max(1, experience.num_trained), torch.where(experience.trained_TB, log_rho_TB, 0.0)
            loss = loss + (config.kl_cost / number) * kl_to_behaviour(log_rho_TB).sum()
        return LossOutput(loss, diagnostics)


def kl_to_behaviour(log_rho: Tensor) -> Tensor:
    """Estimate KL(μ‖π) for each action drawn from μ as ω - 1 - log ω ≥ 0, linear in log ω where ω is very large.

    Its gradient, (ω - 1)·∇log π, is 0 on-policy; that of the estimate -log ω is 0 only on average.
    """
    bounded = log_rho.clamp(max=MAX_KL_LOG_RHO)
    return torch.expm1(bounded) - bounded + math.expm1(MAX_KL_LOG_RHO) * (log_rho - bounded)
