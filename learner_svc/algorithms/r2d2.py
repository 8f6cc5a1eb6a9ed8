"""R2D2: recurrent Q-learning from prioritised replay of sequences.

A stored sequence is `burn_in` transitions, which lead the memory up to it from the state that acting had before its
first row, and `unroll_length` transitions that are trained on. With online weights θ and target weights θ⁻

    y_t = h(Σ_{i<n} γ^i r_{t+i+1} + γ^n h⁻¹(Q_θ⁻(x_{t+n}, argmax_a Q_θ(x_{t+n}, a)))),  δ_t = y_t - Q_θ(x_t, a_t)
    loss = Σ_b w_b Σ_t ½ δ_t² / number of trained transitions,  priority_b = η·max_t|δ_t| + (1 - η)·mean_t|δ_t|

A target stops at the first row that ends an episode, or at the sequence's last row, and takes Q's word there unless the
end is terminal. Sequences go on over ends of episodes: the memory is reset at `first` rows. Actions are chosen
ε-greedily.
Sources: Kapturowski et al. 2019 (R2D2); van Hasselt et al. 2016, arXiv 1509.06461 (double Q); Pohlen et al. 2018, arXiv
1805.11593 (h); Schaul et al. 2016, arXiv 1511.05952 (priorities).

Shape suffixes: R rows, T trained transitions, B lane-unrolls, L lanes of an unroll.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from seedbed.learner_svc.algorithms.algorithm import Algorithm, LossOutput, Prepared
from seedbed.learner_svc.algorithms.config import R2D2Config
from seedbed.learner_svc.algorithms.returns import n_step, rescale_value, unrescale_value
from seedbed.learner_svc.learning.rewards import TrainingRewards
from seedbed.learner_svc.sources.batch import Batch, Experience, discounts, first_rows, valid_transitions
from seedbed.learner_svc.sources.replay import ReplaySource
from seedbed.learner_svc.sources.source import K, Source, SourcePlan
from seedbed.shared.figures import columns
from seedbed.shared.policy.acting import MAX_Q, Q, Recording
from seedbed.shared.policy.policy import Policy, PolicyOutput
from seedbed.shared.policy.q_values import DuellingQ
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import FLAGS, REWARD, RecordSpec


class R2D2(Algorithm):
    """The loss, the target network and the priorities. Owned by the update thread."""

    Settings = R2D2Config
    config: R2D2Config

    def __init__(self, config: R2D2Config, policy: Policy) -> None:
        """Raises: ConfigError if the environment's actions are no choices among categories."""
        super().__init__(config, policy)
        self._q = DuellingQ(policy.distribution)
        device = next(policy.parameters()).device
        self._target = Policy(policy.spec, policy.config, policy.tasks)
        self._target.use(policy.precision)
        self._target.to(device).requires_grad_(False)
        self._num_steps = torch.zeros((), dtype=torch.int64)  # on the host
        self._copy_weights()

    @classmethod
    def recording(cls, config: R2D2Config, unroll_length: int) -> Recording:
        """ε-greedy acting, and what first priorities are made of."""
        return Recording(
            rule="epsilon_greedy", parameters={"base": config.epsilon_base, "alpha": config.epsilon_alpha},
            decided=(Q, MAX_Q), unroll_length=unroll_length, overlap=config.burn_in,
        )  # fmt: skip

    @classmethod
    def make_source(cls, config: R2D2Config, record: RecordSpec, plan: SourcePlan) -> Source[K]:
        """A replay of sequences, whose first priorities come of the Q that acting recorded. Raises: ConfigError."""
        rewards = TrainingRewards(config, plan.tasks)
        return ReplaySource(
            record, plan, capacity=config.replay_sequences, max_bytes=config.replay_bytes, start=config.replay_start,
            ratio=config.replay_ratio, priority_exponent=config.priority_exponent,
            importance_exponent=config.importance_exponent, is_file=config.replay_file,
            first_priorities=lambda arrays, task: first_priorities(config, record.overlap, arrays, rewards, task),
        )  # fmt: skip

    @property
    def value_units(self) -> str:
        """Those of h where Q is rescaled."""
        return "rescaled rewards" if self.config.value_rescaling else "rewards"

    def networks(self) -> Mapping[str, nn.Module]:
        """The target network, which no gradient moves."""
        return {"target": self._target}

    def loss(self, experience: Experience, prepared: Prepared) -> LossOutput:
        """The loss of one batch, its diagnostics, and the new priorities of its sequences."""
        config, batch, burn_in = self.config, experience.batch, experience.batch.record.overlap
        online = self._output(self.policy, batch)
        mask = None if batch.mask is None else batch.mask[burn_in + 1 :]
        flags_RB, trained_TB, valid_TB = (
            batch.flags[burn_in:],
            experience.trained_TB[burn_in:],
            experience.valid_TB[burn_in:],
        )
        number = max(1, experience.num_trained)
        q_TB = self._q.of(online.params[:-1], online.value[:-1], batch.action[burn_in:])
        with torch.no_grad():
            target = self._output(self._target, batch)
            best = self.policy.distribution.mode(online.params[1:], mask)
            next_TB = self._q.of(target.params[1:], target.value[1:], best)
            target_TB = _target(config, flags_RB, experience.reward_TB[burn_in:], valid_TB, next_TB)
        error_TB = torch.where(trained_TB, target_TB - q_TB, 0.0)
        loss_B = 0.5 * error_TB.square().sum(0)
        loss = (loss_B if experience.weight_B is None else experience.weight_B * loss_B).sum() / number
        with torch.no_grad():
            absolute_TB = error_TB.abs()
            mean_q = torch.where(trained_TB, q_TB, 0.0).sum() / number
            mean_target = torch.where(trained_TB, target_TB, 0.0).sum() / number
            largest = self.ranks.max(absolute_TB.max()) / self.ranks.size  # this rank's part of it
            diagnostics = torch.stack([mean_q, mean_target, absolute_TB.sum() / number, largest])
            priorities_B = _priorities(config, absolute_TB, trained_TB)
        return LossOutput(loss, diagnostics, priorities_B)

    def _output(self, policy: Policy, batch: Batch) -> PolicyOutput:
        """A forward pass over the T+1 rows after the burn-in, whose gradient stops there."""
        burn_in, state = batch.record.overlap, batch.state
        first = first_rows(batch.flags)
        if self.config.stored_state == "zero":
            state = policy.blank(state)
        if burn_in:
            with torch.no_grad():
                leading = tuple(leaf[:burn_in] for leaf in batch.observation)
                found = policy(leading, batch.reward[:burn_in], first[:burn_in], batch.action[: burn_in - 1], state)
                state = policy.remember(found.state, batch.action[burn_in - 1])
        rows = tuple(leaf[burn_in:] for leaf in batch.observation)
        output: PolicyOutput = policy(rows, batch.reward[burn_in:], first[burn_in:], batch.action[burn_in:], state)
        return output

    def after_step(self, learning_rate: float) -> None:
        """Copy the weights into the target network when it is time."""
        self._num_steps += 1
        if int(self._num_steps) % self.config.target_every == 0:
            self._copy_weights()

    def weights_replaced(self) -> None:
        """The target network begins with the same weights."""
        self._copy_weights()

    @torch.no_grad()
    def _copy_weights(self) -> None:
        ours = self.policy.state_dict()
        for name, tensor in self._target.state_dict().items():
            tensor.copy_(ours[name])

    def report(self, diagnostics: Sequence[float], experience: Experience) -> dict[str, float]:
        """The figures that people look at, by name, from the host's copy of the diagnostics."""
        names = (columns.Q_MEAN, columns.Q_TARGET_MEAN, columns.TD_ERROR_MEAN, columns.TD_ERROR_MAX)
        return {column.name: value for column, value in zip(names, diagnostics, strict=True)}

    def state(self) -> dict[str, Tensor]:
        """The tensors that a resume needs, not copied."""
        return {"num_steps": self._num_steps}


def _target(config: R2D2Config, flags_RB: Tensor, reward_TB: Tensor, valid_TB: Tensor, next_q_TB: Tensor) -> Tensor:
    """y [T, B] for the Q of the rows that follow, next_q [T, B], as the network speaks it."""
    value_TB = unrescale_value(next_q_TB) if config.value_rescaling else next_q_TB
    found = n_step(discounts(flags_RB, config.discount), reward_TB, valid_TB, value_TB, config.n_step)
    return rescale_value(found) if config.value_rescaling else found


def _priorities(config: R2D2Config, absolute_TB: Tensor, trained_TB: Tensor) -> Tensor:
    """η·max|δ| + (1 - η)·mean|δ| of each sequence, f32 [B], for |δ| [T, B] that is 0 where nothing is trained."""
    share, number_B = config.priority_max_share, trained_TB.sum(0).clamp(min=1)
    return share * absolute_TB.amax(0) + (1.0 - share) * absolute_TB.sum(0) / number_B


@torch.no_grad()
def first_priorities(
    config: R2D2Config, burn_in: int, arrays: Mapping[str, Array], rewards: TrainingRewards, task: int = 0
) -> Array:
    """Priorities f32 [L] of an unroll's lanes by the Q that acting recorded, without a forward pass.

    The last transition is left out: Q of the row after it was not known yet. Acting knows no target network, so these
    are estimates; the first update on a sequence measures its priority anew.

    Args:
      arrays: the unroll's fields by name, time first, burn-in included.
      task: number of the unroll's task, in the order of `rewards`.
    """
    flags, reward, q, best = (torch.tensor(arrays[name][burn_in:]) for name in (FLAGS, REWARD, Q, MAX_Q))
    if len(q) < 2:
        return torch.ones(q.shape[1]).numpy()
    valid_TB = torch.from_numpy(valid_transitions(arrays[FLAGS][burn_in:-1]))
    reward_TB = rewards.of(reward[1:-1], torch.full(reward.shape[1:], task))
    error_TB = _target(config, flags[:-1], reward_TB, valid_TB, best[1:]) - q[:-1]
    absolute_TB = torch.where(valid_TB, error_TB.abs(), 0.0)
    found: Array = _priorities(config, absolute_TB, valid_TB).numpy()
    return found
