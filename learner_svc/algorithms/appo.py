"""APPO: PPO on asynchronously collected experience.

Each batch is used in several passes, in minibatches, with returns that are computed once. V-trace's
weight ω = π₀/μ corrects returns and transitions for the policy lag, where π₀ is the policy before the batch. PPO's
ratio r = π/π₀ limits how far the passes move the policy, whatever the age of the batch.

loss = -mean(min(1, ω) g(r, A)) + baseline_cost·½·mean((v - V)²) - entropy_cost·mean H + kl_cost·mean KL(μ‖π), over
trained transitions, where g = min(r A, clip(r, 1/(1+ε), 1+ε) A), and never below dual_clip·A where A is negative.
On-policy this is PPO.
Sources: Schulman et al. 2017, arXiv 1707.06347; Petrenko et al. 2020, arXiv 2006.11751; Hilton et al. 2021, arXiv
2110.00641 (the ratio need not refer to the behaviour policy); Ye et al. 2020, arXiv 1912.09729
(dual clip).

Shape suffixes: T transitions, B lane-unrolls.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.actor_critic import ActorCritic, target_moments
from seedbed.learner_svc.algorithms.algorithm import LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import AppoConfig
from seedbed.learner_svc.algorithms.returns import gae, lambda_advantage, vtrace
from seedbed.learner_svc.sources.batch import Experience, discounts
from seedbed.shared.figures import columns
from seedbed.shared.policy.policy import Policy

RATE_STEP = 1.5  # factor by which the learning rate changes if KL is outside these multiples of its target
SETTLED, TOO_SHORT, TOO_FAR = 0.01, 0.5, 2.0
MUCH_TOO_FAR = 4.0  # times the target in one minibatch: no more steps on this batch
MIN_RATE_FACTOR, MAX_RATE_FACTOR = 0.01, 4.0
MAX_CHANGE = 20.0  # bound of |log r|, so that exp stays finite


class Appo(ActorCritic):
    """APPO's loss, and its factor on the learning rate. Owned by the update thread."""

    Settings = AppoConfig
    is_by_transition = True
    config: AppoConfig

    def __init__(self, config: AppoConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._rate_factor = torch.ones((), dtype=torch.float64)  # on the host

    @property
    def rate_factor(self) -> float:
        """The factor on the learning rate that the KL target has led to."""
        return float(self._rate_factor)

    @torch.no_grad()
    def prepare(self, experience: Experience) -> Prepared:
        """Compute returns, advantages and π₀ of the whole batch, and update the target statistics by the returns."""
        config, batch, length = self.config, experience.batch, experience.batch.num_transitions
        output, evaluation = self._evaluate(experience, length + 1)
        value_TB, last_value_B = self._raw_value(output.value, experience)
        discount_TB, reward_TB = discounts(batch.flags, config.discount), experience.reward_TB
        log_rho_TB = torch.where(experience.valid_TB, evaluation.log_prob - batch.log_prob, 0.0)
        if config.targets == "gae":
            found = gae(discount_TB, reward_TB, experience.valid_TB, value_TB, last_value_B, lam=config.lam)
            target_TB, advantage_TB = found.value_target_TB, found.advantage_TB
        else:
            target_TB = vtrace(
                log_rho_TB, discount_TB, reward_TB, experience.valid_TB, value_TB, last_value_B, lam=config.lam
            ).value_target_TB
            advantage_TB = lambda_advantage(
                discount_TB, reward_TB, experience.valid_TB, value_TB, last_value_B, target_TB, lam=config.lam
            )
        by_task = self._moments_by_task(target_TB, experience)
        self._move_value_statistics(by_task or target_moments(target_TB, experience, self.ranks))
        return {
            "target": target_TB, "advantage": advantage_TB, "value": value_TB, "log_prob": evaluation.log_prob,
            "weight": log_rho_TB.exp().clamp(max=1.0),
        }  # fmt: skip

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """Return the loss of one minibatch, and the sums that `report` turns into metrics."""
        config, batch = self.config, experience.batch
        trained_TB, number = experience.trained_TB, max(1, experience.num_trained)
        output, evaluation = self._evaluate(experience, batch.num_transitions)
        target_TB, advantage_TB = self._in_head_units(prepared["target"], prepared["advantage"], experience)
        raw_advantage_TB = advantage_TB = torch.where(trained_TB, advantage_TB, 0.0)
        advantage_TB = self._standardised(advantage_TB, experience, config.min_advantage_std)
        change_TB = torch.where(trained_TB, evaluation.log_prob - prepared["log_prob"], 0.0)
        gain_TB = clipped_gain(change_TB, advantage_TB, config.policy_clip)
        gain_TB = torch.where(advantage_TB < 0, gain_TB.maximum(config.dual_clip * advantage_TB), gain_TB)
        policy_loss = -torch.where(trained_TB, prepared["weight"] * gain_TB, 0.0).sum() / number
        error_TB = torch.where(trained_TB, target_TB - output.value, 0.0)
        squared_error = self._squared_error(error_TB, output.value, target_TB, prepared, experience)
        loss, diagnostics = self._whole_loss(
            experience, evaluation, policy_loss, squared_error, evaluation.log_prob - batch.log_prob,
            prepared["target"], error_TB, raw_advantage_TB,
        )  # fmt: skip
        return LossOutput(loss, torch.cat([diagnostics, torch.stack(self._moved(change_TB)) / number]))

    def _squared_error(
        self, error_TB: Tensor, value_TB: Tensor, target_TB: Tensor, prepared: Prepared, experience: Experience
    ) -> Tensor:
        """Return the sum of squared errors; with a value clip, of the worse of V and V clipped near its old value."""
        clip, squared_TB = self.config.value_clip, error_TB.square()
        if clip:
            before_TB, _ = self._in_head_units(prepared["value"], prepared["advantage"], experience)
            held_TB = before_TB + (value_TB - before_TB).clamp(-clip, clip)
            squared_TB = squared_TB.maximum(torch.where(experience.trained_TB, target_TB - held_TB, 0.0).square())
        return squared_TB.sum()

    def _moved(self, change_TB: Tensor) -> list[Tensor]:
        """Return the sums of KL(π₀‖π) and of the transitions whose ratio is beyond the clip."""
        change_TB = change_TB.detach().clamp(-MAX_CHANGE, MAX_CHANGE)
        return [
            (change_TB.exp() - 1.0 - change_TB).sum(),
            (change_TB.abs() > torch.tensor(1.0 + self.config.policy_clip).log()).float().sum(),
        ]

    def is_too_far(self, report: Mapping[str, float]) -> bool:
        """Whether KL(π₀‖π) is so large that more steps on this batch would do harm."""
        return 0.0 < MUCH_TOO_FAR * self.config.kl_target < report[columns.KL_STEP.name]

    def after_batch(self, last_pass: Sequence[Mapping[str, float]]) -> None:
        """Adapt the learning rate so that KL stays near its target.

        An almost deterministic policy has almost no KL, however far its weights move. It keeps the configured rate,
        because a higher one would only make its weights drift until training breaks down.
        """
        target = self.config.kl_target
        if not target:
            return
        kl, factor = sum(report[columns.KL_STEP.name] for report in last_pass) / len(last_pass), self.rate_factor
        if kl > TOO_FAR * target or self.is_too_far(last_pass[-1]):
            factor /= RATE_STEP
        elif kl < SETTLED * target:
            factor = max(min(factor, 1.0), factor / RATE_STEP)
        elif kl < TOO_SHORT * target:
            factor *= RATE_STEP
        self._rate_factor.fill_(min(max(factor, MIN_RATE_FACTOR), MAX_RATE_FACTOR))

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """Return the metrics of a step by name, from the host's copy of the diagnostics."""
        *shared, kl_step, clipped = diagnostics
        own = {columns.KL_STEP.name: kl_step, columns.POLICY_CLIPPED_SHARE.name: clipped}
        return super().report(shared, experience) | own

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return super().state() | {"rate_factor": self._rate_factor}


def clipped_gain(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return PPO's clipped objective of each action, with the ratio clipped to 1/(1+clip)…1+clip."""
    ratio = log_ratio.clamp(max=MAX_CHANGE).exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1.0 / (1.0 + clip), 1.0 + clip) * advantage)
