"""IMPALA: an actor-critic whose off-policy experience is corrected by V-trace.

loss = -mean(log π(a_t) A_t) + baseline_cost·½·mean((v_t - V_t)²) - entropy_cost·mean H + kl_cost·mean KL(μ‖π), means
over trained transitions. Source: Espeholt et al. 2018, arXiv 1802.01561.

Shape suffixes: T transitions, R = T+1 rows, B lane-unrolls.
"""

import torch

from seedbed.learner_svc.algorithms.actor_critic import ActorCritic
from seedbed.learner_svc.algorithms.algorithm import LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import VTraceConfig
from seedbed.learner_svc.algorithms.returns import vtrace
from seedbed.learner_svc.sources.batch import Experience, discounts


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
            experience, output, evaluation, log_rho_TB, targets.value_target_TB, targets.pg_advantage_TB,
            rho_clip=config.rho_clip,
        )  # fmt: skip
        return LossOutput(loss, diagnostics)
