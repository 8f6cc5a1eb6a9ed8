"""The base of actor-critic algorithms: rewards, units of the value head, entropy bonus and metrics of an update.

Targets are computed in units of reward; with `value_normalisation` the network's value output is (V - mean) / std of
the targets, and value loss and advantages are in units of std. If the policy has a value output for each task, so are
mean and std, and each lane has those of its task (Hessel et al. 2018, arXiv 1809.04474).

Shape suffixes: K tasks, T transitions, R = T+1 rows, B lane-unrolls, P distribution parameters.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seedbed.learner_svc.algorithms.algorithm import Algorithm
from seedbed.learner_svc.algorithms.config import ActorCriticConfig
from seedbed.learner_svc.learning.normaliser import ValueNormaliser
from seedbed.learner_svc.learning.optimiser import FlatOptimiser
from seedbed.learner_svc.ranks.ranks import ALONE, Ranks
from seedbed.learner_svc.sources.batch import Experience, first_rows
from seedbed.shared.figures import columns
from seedbed.shared.policy.distributions import ActionEvaluation
from seedbed.shared.policy.policy import Policy, PolicyOutput

MAX_KL_LOG_RHO = 3.0  # bounds the gradient of one row's KL cost where ω is very large
MAX_LOG_RHO = 20.0  # bound for the metrics only; the targets clip ω themselves
MIN_VARIANCE = 1e-12  # of targets: below there is nothing to explain
NUM_SCALARS = 4  # that diagnostics begin with: policy loss, value loss, entropy and its cost
NUM_SUMS = 12  # of an update that are not of single tasks
ENTROPY_PARAMETER_BOUND = 20.0  # |m·p| of the adaptive entropy cost, so that exp stays finite


@dataclass(frozen=True, slots=True)
class TargetMoments:
    """Mean and variance of a batch's value targets, in units of reward: scalars, or [K] by task."""

    mean: Tensor
    variance: Tensor
    is_present: Tensor | None = None  # bool [K]: which tasks have any targets; None: all


class ActorCritic(Algorithm):
    """State and computations that actor-critic algorithms share. Owned by the update thread."""

    def __init__(self, config: ActorCriticConfig, policy: Policy) -> None:
        super().__init__(config, policy)
        self._shared = config
        device = next(policy.parameters()).device
        self._num_tasks = policy.num_values if policy.num_values > 1 else 0  # that have values of their own
        self._value: ValueNormaliser | None = None
        if config.value_normalisation != "none":
            shape = (self._num_tasks,) if self._num_tasks else ()
            self._value = ValueNormaliser(config.value_normalisation_rate, device, shape)
        self._target_moments: TargetMoments | None = None  # of the last policy gradient, for normalised values
        self._entropy: AdaptiveEntropyCost | None = None
        if config.entropy_target is not None:
            self._entropy = AdaptiveEntropyCost(config, config.entropy_target, device)

    @property
    def value_units(self) -> str:
        """Deviations of the targets where values are normalised."""
        return "rewards" if self._value is None else "deviations of their targets"

    @property
    def value_tasks(self) -> tuple[str, ...]:
        """The tasks that have a value output of their own; none if they share one."""
        return self.policy.tasks if self._num_tasks else ()

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        parts: dict[str, Mapping[str, Tensor]] = {}
        if self._value is not None:
            parts["value"] = self._value.state()
        if self._entropy is not None:
            parts["entropy"] = self._entropy.state()
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def statistics(self) -> dict[str, Tensor]:
        """Return the statistics of the value targets, which define the units of the value head."""
        return {name: tensor for name, tensor in self.state().items() if name.startswith("value.")}

    def _evaluate(self, experience: Experience, rows: int) -> tuple[PolicyOutput, ActionEvaluation]:
        """Run the policy over the first `rows` rows (T or T+1), and evaluate the T actions under it."""
        batch, length = experience.batch, experience.batch.num_transitions
        observation = tuple(leaf[:rows] for leaf in batch.observation)
        action = batch.action[: rows - 1]
        output = self.policy(observation, batch.reward[:rows], first_rows(batch.flags[:rows]), action, batch.state)
        mask_TB = None if batch.mask is None else batch.mask[:length]
        return output, self.policy.distribution.evaluate(output.params[:length], batch.action, mask_TB)

    def _units(self, value: ValueNormaliser, experience: Experience) -> tuple[Tensor, Tensor]:
        """Return mean and std of the value head's units, f32: of each lane's task [B], or scalars of all."""
        mean, std = value.mean.float(), value.std.float()
        return (mean[experience.lane_tasks], std[experience.lane_tasks]) if self._num_tasks else (mean, std)

    def _raw_value(self, value_RB: Tensor, experience: Experience) -> tuple[Tensor, Tensor]:
        """Return V of rows 0…T-1 and of row T in units of reward, detached."""
        value_RB, length = value_RB.detach(), experience.batch.num_transitions
        if self._value is not None:
            mean, std = self._units(self._value, experience)
            value_RB = value_RB * std + mean
        return value_RB[:length], value_RB[length]

    def _in_head_units(self, value_TB: Tensor, advantage_TB: Tensor, experience: Experience) -> tuple[Tensor, Tensor]:
        """Convert values and advantages from units of reward to units of the value head."""
        if self._value is None:
            return value_TB, advantage_TB
        mean, std = self._units(self._value, experience)
        return (value_TB - mean) / std, advantage_TB / std

    def _moments_by_task(self, target_TB: Tensor, experience: Experience) -> TargetMoments | None:
        """Return the moments of the value targets of each task; None if all tasks share one value output."""
        if not self._num_tasks:
            return None
        return moments_by_task(target_TB, experience.trained_TB, experience.lane_tasks, self._num_tasks, self.ranks)

    def _move_value_statistics(self, moments: TargetMoments) -> None:
        """Update the target statistics by one batch; with PopArt, rescale the value head to keep V."""
        if self._value is not None:
            scale, shift = self._value.update(moments.mean, moments.variance, moments.is_present)
            if self._shared.value_normalisation == "popart":
                self.policy.rescale_value_(scale, shift)

    def _policy_gradient(
        self, experience: Experience, output: PolicyOutput, evaluation: ActionEvaluation, log_rho_TB: Tensor,
        target_TB: Tensor, advantage_TB: Tensor, *, rho_clip: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the loss -log π·A with what `_whole_loss` adds, and the diagnostics for `report`.

        Args:
          output, evaluation: of the present policy, from `_evaluate` over all T+1 rows.
          log_rho_TB: log π - log μ of the actions, f32 [T, B].
          target_TB, advantage_TB: v and A in units of reward, f32 [T, B], detached.
          rho_clip: ratios π/μ above this are counted as clipped.
        """
        trained_TB, number = experience.trained_TB, max(1, experience.num_trained)
        head_target_TB, advantage_TB = self._in_head_units(target_TB, advantage_TB, experience)
        step_TB = torch.where(trained_TB, self._standardised(advantage_TB, experience), 0.0)
        error_TB = torch.where(trained_TB, head_target_TB - output.value[: len(target_TB)], 0.0)
        gain_TB = torch.where(trained_TB, evaluation.log_prob, 0.0) * step_TB
        loss, diagnostics = self._whole_loss(
            experience, evaluation, -gain_TB.sum() / number, error_TB.square().sum(), log_rho_TB, target_TB, error_TB,
            advantage_TB, rho_clip=rho_clip,
        )  # fmt: skip
        if self._value is not None:
            by_task = self._moments_by_task(target_TB, experience)
            self._target_moments = by_task or moments_from_sums(self.ranks.sum(diagnostics[NUM_SCALARS:]), number)
        return loss, diagnostics

    def _standardised(self, advantage_TB: Tensor, experience: Experience, least: float = 0.0) -> Tensor:
        """Return advantages in the units that the policy's loss uses, with `normalise_advantage` deviations."""
        if not self._shared.normalise_advantage:
            return advantage_TB
        number = max(1, experience.num_trained)
        return standardise(advantage_TB, experience.trained_TB, number, least=least, ranks=self.ranks)

    def _whole_loss(
        self, experience: Experience, evaluation: ActionEvaluation, policy_loss: Tensor, squared_error: Tensor,
        log_rho_TB: Tensor, target_TB: Tensor, error_TB: Tensor, advantage_TB: Tensor, *, rho_clip: float = 1.0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return policy_loss + baseline_cost·½(v - V)² - entropy_cost·H + kl_cost·KL, and diagnostics for `report`.

        Args:
          evaluation: of the present policy.
          policy_loss, squared_error: the mean over trained rows, and the sum of (v - V)²; scalars.
          log_rho_TB: log π - log μ of the actions, f32 [T, B]; its gradient is that of the KL cost.
          target_TB: v in units of reward, f32 [T, B], detached.
          error_TB, advantage_TB: v - V and A in units of the value head, for the metrics, f32 [T, B]. The error is 0
            where nothing is trained.
          rho_clip: ratios π/μ above this are counted as clipped.
        """
        config, trained_TB, number = self._shared, experience.trained_TB, max(1, experience.num_trained)
        value_loss = squared_error * (0.5 / number)
        entropy, entropy_cost = self._entropy_bonus(evaluation, trained_TB, number)
        loss = policy_loss + config.baseline_cost * value_loss - entropy_cost * entropy
        with torch.no_grad():
            scalars = torch.stack([policy_loss, value_loss, entropy, self._part(entropy_cost)])
            sums = self._sums(experience, log_rho_TB, target_TB, error_TB, advantage_TB, rho_clip=rho_clip)
        if config.kl_cost:
            kl_TB = kl_to_behaviour(torch.where(trained_TB, log_rho_TB, 0.0))
            loss = loss + (config.kl_cost / number) * kl_TB.sum()
        return loss, torch.cat([scalars.detach(), sums])

    def after_step(self, learning_rate: float) -> None:
        """Update the target statistics by the targets of `_policy_gradient`, and the adaptive entropy cost."""
        if self._target_moments is not None:
            self._move_value_statistics(self._target_moments)
        if self._entropy is not None:
            self._entropy.step(learning_rate)

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """Return the metrics of a step by name, from the host's copy of the diagnostics of `_policy_gradient`."""
        return describe_update(diagnostics[:NUM_SCALARS], diagnostics[NUM_SCALARS:], experience, self.value_tasks)

    def _entropy_bonus(self, evaluation: ActionEvaluation, trained_TB: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Return the mean entropy of trained rows, this rank's part of it, and the cost of entropy, both scalars."""
        entropy = torch.where(trained_TB, evaluation.entropy, 0.0).sum() / number
        if self._entropy is None:
            return entropy, entropy.new_full((), self._shared.entropy_cost)
        cost = self._entropy.cost()
        self._entropy.measure(self.ranks.sum(entropy.detach()))
        return entropy, cost

    def _sums(
        self, experience: Experience, log_rho_TB: Tensor, target_TB: Tensor, error_TB: Tensor, advantage_TB: Tensor,
        *, rho_clip: float,
    ) -> Tensor:  # fmt: skip
        """Return this rank's part of the sums that the metrics need, f32 [12 + 2·N + M].

        The first is a shift near the mean target, the twelfth |log ρ| summed over rows of lag 0; the others of the
        first twelve are sums over trained rows. Then come, of the run's N tasks, the variances of targets and of
        errors; then mean and std of the value head's units (M = 2, 2·K of K tasks, 0 without units of its own).
        `error` is in units of the value head.
        """
        trained_TB = experience.trained_TB
        log_rho_TB = torch.where(trained_TB, log_rho_TB, 0.0).clamp(-MAX_LOG_RHO, MAX_LOG_RHO)
        advantage_TB = torch.where(trained_TB, advantage_TB, 0.0)
        omega_TB, distance_TB = log_rho_TB.exp(), log_rho_TB.abs()
        shift = self.ranks.mean(target_TB.mean())  # squares of centred values keep their precision
        centred_TB = target_TB - shift
        error_TB = error_TB.detach()
        if self._value is not None:
            error_TB = error_TB * self._units(self._value, experience)[1]
        series = torch.stack(
            [
                (omega_TB > rho_clip).float(),
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
        trained_N = trained_TB.flatten().float()
        sums = series @ trained_N
        current = (
            torch.dot(distance_TB.flatten(), experience.current_TB.flatten().float())
            if experience.num_current
            else torch.zeros_like(shift)
        )
        value = self._value
        units = [] if value is None else [item.float().reshape(-1) for item in (value.mean, value.std)]
        more = self._part(torch.cat([self._variances(experience, target_TB, error_TB), *units]))
        return torch.cat([self._part(shift).reshape(1), sums, current.reshape(1), more])

    def _variances(self, experience: Experience, *series_TB: Tensor) -> Tensor:
        """Return the variance of each series of trained rows within each task, f32 [series·N], 0 in absent tasks."""
        if not experience.tasks:
            return series_TB[0].new_zeros(0)
        trained_TB, task_B, number = experience.trained_TB, experience.lane_tasks, len(experience.tasks)
        moments = [moments_by_task(item_TB, trained_TB, task_B, number, self.ranks) for item_TB in series_TB]
        return torch.cat([item.variance for item in moments]).float()

    def _part(self, number: Tensor) -> Tensor:
        """Return this rank's part of a number that all ranks know, which adds up to the number."""
        return number if self.ranks.is_alone else number / self.ranks.size


def moments_from_sums(sums: Tensor, number: int) -> TargetMoments:
    """Return the moments of all value targets of a batch, from `ActorCritic._sums`."""
    shift, mean, square = sums[0], sums[6] / number, sums[7] / number
    return TargetMoments(shift + mean, (square - mean.square()).clamp(min=0.0))


def target_moments(target_TB: Tensor, experience: Experience, ranks: Ranks = ALONE) -> TargetMoments:
    """Return the moments of all trained value targets of a batch over all ranks, in two passes."""
    trained_TB, number = experience.trained_TB, max(1, experience.num_trained)
    mean = ranks.sum(torch.where(trained_TB, target_TB, 0.0).sum()) / number
    centred_TB = torch.where(trained_TB, target_TB - mean, 0.0)
    return TargetMoments(mean, ranks.sum(centred_TB.square().sum()) / number)


def moments_by_task(
    target_TB: Tensor, trained_TB: Tensor, task_B: Tensor, num_tasks: int, ranks: Ranks = ALONE
) -> TargetMoments:
    """Return the moments of each task's trained value targets over all ranks, f64 [K].

    Args:
      target_TB, trained_TB: value targets in units of reward, f32 [T, B], and which are trained on, bool [T, B].
      task_B: number of each lane's task, i64 [B], below `num_tasks`.
    """
    is_task_KB = torch.arange(num_tasks, device=task_B.device).unsqueeze(-1) == task_B
    lanes_KB = is_task_KB.double()
    number_K = ranks.sum(lanes_KB @ trained_TB.sum(0).double())
    mean_K = ranks.sum(lanes_KB @ torch.where(trained_TB, target_TB, 0.0).double().sum(0)) / number_K.clamp(min=1.0)
    centred_TB = torch.where(trained_TB, target_TB - mean_K[task_B], 0.0)
    variance_K = ranks.sum(lanes_KB @ centred_TB.square().sum(0)) / number_K.clamp(min=1.0)
    return TargetMoments(mean_K, variance_K, number_K > 0)


def describe_update(
    scalars: Sequence[float], sums: Sequence[float], experience: Experience, value_tasks: Sequence[str]
) -> dict[str, float]:
    """Return the metrics of an update by name.

    The explained variance of a run with several tasks is the mean of those within each task. One over all rows would
    be that of the tasks with the largest rewards, and high as soon as values tell tasks apart; in the units of the
    value head it could still not be told which task's value is not learned, and would depend on statistics that lag.

    Args:
      scalars: policy loss, value loss, entropy and its cost.
      sums: from `ActorCritic._sums`.
      value_tasks: the tasks that have a value output and its units of their own.
    """
    policy_loss, value_loss, entropy, entropy_cost = scalars
    number = max(1, experience.num_trained)
    shift, *totals = sums[:NUM_SUMS]
    clipped, omega, omega_square, kl, log_rho, target, target_square, error, error_square, advantage_square = (
        total / number for total in totals[:10]
    )
    variances, units = sums[NUM_SUMS:][: 2 * len(experience.tasks)], sums[NUM_SUMS + 2 * len(experience.tasks) :]
    explained = _explained_by_task(experience.tasks, variances) if experience.tasks else {}
    target_variance = max(0.0, target_square - target**2)
    error_variance = max(0.0, error_square - error**2)
    figures = {
        columns.POLICY_LOSS.name: policy_loss,
        columns.VALUE_LOSS.name: value_loss,
        columns.ENTROPY.name: entropy,
        columns.ENTROPY_COST.name: entropy_cost,
        columns.RHO_CLIPPED_SHARE.name: clipped,
        columns.EFFECTIVE_SAMPLE_SIZE.name: omega**2 / omega_square if omega_square > 0 else 0.0,  # share of the batch
        columns.KL.name: kl,
        columns.LOG_RHO_MEAN_ABS.name: log_rho,
        columns.VALUE_TARGET_MEAN.name: shift + target,
        columns.VALUE_ERROR_MEAN.name: error,
        columns.ADVANTAGE_RMS.name: math.sqrt(max(0.0, advantage_square)),
    }
    if explained:
        figures[columns.EXPLAINED_VARIANCE.name] = sum(explained.values()) / len(explained)
        figures |= {columns.EXPLAINED_VARIANCE.of(task): share for task, share in explained.items()}
    elif not experience.tasks and target_variance > MIN_VARIANCE:
        figures[columns.EXPLAINED_VARIANCE.name] = 1.0 - error_variance / target_variance
    for column, values in zip(columns.VALUE_UNITS, _halves(units), strict=True):
        names = [column.of(task) for task in value_tasks] or [column.name]
        figures |= dict(zip(names, values, strict=False))  # none without units
    if experience.num_current:
        figures[columns.LOG_RHO_LAG0.name] = totals[10] / experience.num_current
    return figures


def _explained_by_task(tasks: Sequence[str], variances: Sequence[float]) -> dict[str, float]:
    """Return the explained variance within each task whose targets differ."""
    explained = zip(tasks, *_halves(variances), strict=True)
    return {task: 1.0 - error / target for task, target, error in explained if target > MIN_VARIANCE}


def _halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


class AdaptiveEntropyCost:
    """An entropy cost exp(m·p), in which p follows the gradient of cost·(H - H*) towards the target H*; |p| ≤ 20/m."""

    def __init__(self, config: ActorCriticConfig, target: float, device: torch.device) -> None:
        self._speed, self._target = config.entropy_adjustment_speed, target
        start = math.log(config.entropy_cost) / self._speed
        self._parameter = torch.full((1,), start, device=device)
        self._gradient = torch.zeros(1, device=device)
        self._optimiser = FlatOptimiser(config, self._parameter, self._gradient)

    def cost(self) -> Tensor:
        """Return the present cost, a constant for the network's gradient."""
        return (self._speed * self._parameter[0]).exp()

    def measure(self, entropy: Tensor) -> None:
        """Store the gradient from the batch just evaluated: m·cost·(H - H*)."""
        self._gradient[0] = self._speed * self.cost() * (entropy - self._target)

    def step(self, learning_rate: float) -> None:
        """Update the cost by one step of its optimiser."""
        self._optimiser.step(learning_rate)
        bound = ENTROPY_PARAMETER_BOUND / self._speed
        self._parameter.clamp_(-bound, bound)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resume needs, without a copy."""
        return {"parameter": self._parameter} | {f"optimiser.{k}": v for k, v in self._optimiser.state().items()}


def standardise(
    advantage_TB: Tensor, trained_TB: Tensor, number: int, *, least: float = 0.0, ranks: Ranks = ALONE
) -> Tensor:
    """Scale advantages to mean 0 and deviation 1 over the `number` trained transitions of all ranks, 0 elsewhere.

    They are divided by at least `least`.
    """
    mean = ranks.sum(torch.where(trained_TB, advantage_TB, 0.0).sum()) / number
    centred_TB = torch.where(trained_TB, advantage_TB - mean, 0.0)
    deviation = (ranks.sum(centred_TB.square().sum()) / number).sqrt()
    return centred_TB / (deviation + 1e-6).clamp(min=least)


def kl_to_behaviour(log_rho: Tensor) -> Tensor:
    """Estimate KL(μ‖π) for each action drawn from μ as ω - 1 - log ω ≥ 0, linear in log ω where ω is very large.

    Its gradient, (ω - 1)·∇log π, is 0 on-policy; that of the estimate -log ω is 0 only on average.
    """
    bounded = log_rho.clamp(max=MAX_KL_LOG_RHO)
    return torch.expm1(bounded) - bounded + math.expm1(MAX_KL_LOG_RHO) * (log_rho - bounded)
