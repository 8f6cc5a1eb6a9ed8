"""The policy: a network from observations and memory to action parameters and value. Acting and learning share it.

    leaves → frame stack → ObservationEncoder → torso (bf16 where it pays) → LSTM → heads (f32) → params, value

With `value_network = "separate"` the value comes from a torso of its own, on the same encoded observations.

The state of a lane before a row has the earlier frames, the LSTM's hidden and cell, and the encoded previous action. It
is part of an unroll. It is reset here at `first` rows, for inference and learner alike, so that log pi - log mu is 0 on
every valid row at equal weights.

In a run with several tasks the policy may have a value output for each (`value_heads`), and see which one it plays
(`task_input`). Then the first part of a lane's state is the number of its task, which no row changes.

Shape suffixes: K tasks, T rows, B lanes, N = T·B, A raw-action columns, E encoded action columns, P parameters.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import MODE, ActingOutputs, ActingRule
from seedbed.shared.policy.config import PolicyConfig, Precision, without_tasks
from seedbed.shared.policy.cores import FrameHistory, FrameStacks, Lstm, stack_frames
from seedbed.shared.policy.distributions import ActionDistribution, bounded_log_std
from seedbed.shared.policy.networks import Torso, dense, initialise, make_torso
from seedbed.shared.policy.observations import LeafNormaliser, ObservationEncoder
from seedbed.shared.protocol.recording import Per, RecordField
from seedbed.shared.protocol.rows import EnvSpec

TASK = "state/task"  # the name of the state field that holds the number of a lane's task
POLICY_GAIN = 0.01  # so that an untrained policy is nearly uniform
State = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class PolicyOutput:
    """The outputs of one forward pass over T rows of B lanes."""

    params: Tensor  # f32 [T, B, P], for `Policy.distribution`
    value: Tensor  # f32 [T, B]
    state: State  # after the last row, each [B, ...]; `Policy.remember` adds the action at that row


@dataclass(frozen=True, slots=True)
class Acted:
    """The result of `Policy.act`: the decisions of one tick for B lanes."""

    action: Tensor  # raw action f32 [B, A]
    recorded: Mapping[str, Tensor]  # field name → [B, ...]
    value: Tensor  # f32 [B]
    state: State  # before the next row


@dataclass(frozen=True, slots=True)
class RowStates:
    """The states before the rows of B lanes, for a policy whose memory is frames alone. From `Policy.row_states`."""

    lanes: int
    task: State  # the state's task, [B]; empty without tasks
    histories: tuple[FrameHistory, ...]  # of each stacked leaf

    def of(self, number_N: Tensor) -> State:
        """Return the states before some rows, as lanes. `number_N`: t·B + b of each, i64 [N]."""
        lane_N = number_N % self.lanes
        return (
            *(item.index_select(0, lane_N) for item in self.task),
            *(history.before(number_N) for history in self.histories),
        )


class Policy(nn.Module):
    """One network for one environment specification.

    Large because everything that a forward pass needs about spaces and state is computed once.

    Attributes: `spec`, `config`, `distribution`, `torso`, `state_fields` (one lane's state arrays), `precision`,
    `tasks` (names, in the order of their numbers; empty if the policy does not tell tasks apart), `num_values`.
    """

    def __init__(self, spec: EnvSpec, config: PolicyConfig, tasks: Sequence[str] = ()) -> None:
        """Make a policy with fresh weights. Raises: ConfigError if it cannot be built for these spaces and tasks."""
        super().__init__()
        self.spec, self.config = spec, config
        self.tasks = tuple(tasks) if config.tells_tasks_apart else ()
        if not self.tasks and (problem := without_tasks(config)):
            raise ConfigError(problem)
        self.num_values = len(self.tasks) if config.value_heads == "per_task" else 1
        self._task_numbers: Tensor
        self.register_buffer("_task_numbers", torch.arange(len(self.tasks)), persistent=False)
        self.distribution = ActionDistribution(spec.action, squash=config.squash)
        self.encoder = ObservationEncoder(
            spec.observation, stack=config.stack, normalise=config.normalise_observation,
            scale_by_bounds=config.scale_observation, grid_codes=config.grid_codes,
        )  # fmt: skip
        vector_size = self.encoder.vector_size + len(self.tasks) * config.task_input
        self.torso = make_torso(config, self.encoder.image_shapes, vector_size)
        self.encoder.patch = getattr(self.torso, "patch", 0)
        features = self.torso.output_size
        self.core: Lstm | None = None
        self._has_previous_action = bool(config.lstm) and config.previous_action
        self._has_previous_reward = bool(config.lstm) and config.previous_reward
        if config.lstm:
            extra = self.distribution.encoded_size * self._has_previous_action + self._has_previous_reward
            self.core = Lstm(features + extra, config.lstm)
            features = config.lstm
        num_normals = self.distribution.num_normals
        is_std_shared = bool(num_normals) and config.std == "shared"
        num_params = self.distribution.param_size - num_normals * is_std_shared
        self.value_torso: Torso | None = None
        if config.value_network == "separate":
            self.head = dense(features, num_params, POLICY_GAIN)
            self.value_torso = make_torso(config, self.encoder.image_shapes, vector_size)
            self.value_head = dense(self.value_torso.output_size, self.num_values, 1.0)
        else:
            self.head = _make_head(features, num_params, self.num_values)
        self.log_std = nn.Parameter(torch.full((num_normals,), math.log(config.initial_std))) if is_std_shared else None
        if num_normals and not is_std_shared:
            with torch.no_grad():
                self.head.bias[num_params - num_normals : num_params] = math.log(config.initial_std)
        self._stacked = tuple(i for i, is_stacked in enumerate(self.encoder.stacked) if is_stacked)
        self.state_fields = self._state_fields()
        self.use(Precision())

    def _state_fields(self) -> tuple[RecordField, ...]:
        """Return the fields of a lane's state that are in use: task, frame stacks, hidden, cell, previous action."""
        fields = [RecordField(TASK, "int64", (), Per.LANE)] if self.tasks else []
        for index in self._stacked:
            leaf = self.encoder.leaves[index]
            name = f"state/stack/{leaf.path}" if leaf.path else "state/stack"
            fields.append(RecordField(name, leaf.wire_dtype, (self.config.stack - 1, *leaf.wire_shape), Per.LANE))
        if self.config.lstm:
            fields += [RecordField(f"state/lstm_{part}", "float32", (self.config.lstm,), Per.LANE) for part in "hc"]
        if self._has_previous_action:
            fields.append(RecordField("state/previous_action", "float32", (self.distribution.encoded_size,), Per.LANE))
        return tuple(fields)

    def initial_state(self, lanes: int, device: torch.device | str = "cpu", task: str = "") -> State:
        """Return a state of zeros, for lanes of a task whose first row comes next.

        Args:
          task: its name; "" for the first one, or where the policy does not tell tasks apart.
        Raises: ValueError if the policy tells tasks apart and this is none of them.
        """
        state = tuple(
            torch.zeros((lanes, *item.shape), dtype=getattr(torch, item.dtype), device=device)
            for item in self.state_fields
        )
        if self.tasks and task:
            state[0].fill_(self.tasks.index(task))
        return state

    def blank(self, state: State) -> State:
        """Return a state without memory for the same lanes: zeros, except for their tasks."""
        kept = len(self.tasks) > 0
        return (*state[:kept], *(torch.zeros_like(item) for item in state[kept:]))

    def use(self, precision: Precision) -> None:
        """Set the precision of the torso. Moves convolution weights: call it before `FlatParameters`."""
        self.precision = precision
        self._dtype: torch.dtype = getattr(torch, precision.dtype)
        self._format = torch.channels_last if precision.channels_last else torch.contiguous_format
        for torso in (self.torso, self.value_torso):
            if torso is not None:
                torso.to(memory_format=self._format)  # type: ignore[call-overload]
        self._has_low_precision = self._dtype != torch.float32

    def forward(
        self, obs: Sequence[Tensor], reward: Tensor, first: Tensor, action: Tensor | None, state: State
    ) -> PolicyOutput:
        """Return action parameters and values of T rows.

        Args:
          obs: leaves [T, B, *wire_shape] in their wire dtypes.
          reward: f32 [T, B], raw.
          first: bool [T, B].
          action: raw actions between the rows, f32 [T-1, B, A]; None for one row, or without memory.
          state: before row 0, as in `state_fields`.
        Raises: ValueError without actions between several rows where the policy sees them.
        """
        rows, lanes = first.shape
        next_state: list[Tensor] = []
        is_task_BK: Tensor | None = None
        if self.tasks:
            is_task_BK = state[0].unsqueeze(-1) == self._task_numbers
            next_state.append(state[0])
            state = state[1:]
        leaves: list[Tensor | FrameStacks] = [leaf.flatten(0, 1) for leaf in obs]
        for slot, index in enumerate(self._stacked):
            leaves[index], earlier = stack_frames(obs[index], first, state[slot])
            next_state.append(earlier)
        task_NK = is_task_BK.repeat(rows, 1) if is_task_BK is not None and self.config.task_input else None
        features, value_features = self.torso_features(leaves, task_NK)
        if self.core is not None:
            features, memory = self._remembered(self.core, features.view(rows, lanes, -1), reward, first, action, state)
            next_state += memory
        params = F.linear(features, self.head.weight, self.head.bias).view(rows, lanes, -1)
        if value_features is None:
            params, values = params[..., : -self.num_values], params[..., -self.num_values :]
        else:
            values = F.linear(value_features, self.value_head.weight, self.value_head.bias).view(rows, lanes, -1)
        if self.num_values > 1 and is_task_BK is not None:
            value = torch.where(is_task_BK, values, 0.0).sum(-1)
        else:
            value = values[..., 0]
        if self.log_std is not None:
            params = torch.cat([params, bounded_log_std(self.log_std).expand(rows, lanes, -1)], -1)
        return PolicyOutput(params, value, tuple(next_state))

    def torso_features(
        self, leaves: Sequence[Tensor | FrameStacks], task_NK: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the features f32 [N, features] of leaves [N, ...] or of stacks, and those of the value's own torso.

        The latter are None where the value has no torso of its own.

        Args:
          task_NK: the task of each row one-hot, bool [N, K]; None where it is no input.
        """
        images, vector = self.encoder(leaves, self._dtype, self._format)
        if task_NK is not None:
            vector = task_NK.float() if vector is None else torch.cat([vector, task_NK.to(vector.dtype)], -1)
        if not self._has_low_precision:
            return self.torso(images, vector), None if self.value_torso is None else self.value_torso(images, vector)
        if vector is not None:
            vector = vector.to(self._dtype)
        # In a policy that only acts, the torso's weights have this dtype already, and autocast casts nothing.
        with torch.autocast(self.head.weight.device.type, self._dtype):
            features: Tensor = self.torso(images, vector)
            value_features = None if self.value_torso is None else self.value_torso(images, vector)
        return features.float(), None if value_features is None else value_features.float()

    def _remembered(
        self, core: Lstm, features_TBF: Tensor, reward: Tensor, first: Tensor, action: Tensor | None, state: State
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the LSTM's outputs [T, B, H] and its part of the next state: hidden, cell, previous action if used."""
        hidden, cell = state[len(self._stacked) : len(self._stacked) + 2]
        keep = first.logical_not().unsqueeze(-1).float()
        inputs = [features_TBF]
        if self._has_previous_reward:
            inputs.append(reward.clamp(-1.0, 1.0).unsqueeze(-1) * keep)
        if self._has_previous_action:
            previous = state[-1].unsqueeze(0)
            if len(first) > 1:
                if action is None:
                    raise ValueError("this policy needs the actions between rows: the previous action is an input")
                previous = torch.cat([previous, self.distribution.encode(action)])
            inputs.append(previous * keep)
        joined = torch.cat(inputs, -1) if len(inputs) > 1 else features_TBF
        output, hidden, cell = core(joined, keep, hidden, cell)
        return output, [hidden, cell, *([state[-1]] if self._has_previous_action else [])]

    @property
    def is_recurrent(self) -> bool:
        """Whether the state between rows is known only from a forward pass over the rows before."""
        return self.core is not None

    def row_states(self, obs: Sequence[Tensor], first: Tensor, state: State) -> RowStates:
        """Return the states before all rows. Arguments: of `forward`. Raises: ValueError if the policy is recurrent."""
        if self.is_recurrent:
            raise ValueError("the state of a recurrent policy between rows is known only from a forward pass")
        has_task = len(self.tasks) > 0
        histories = [
            FrameHistory(obs[index], first, earlier)
            for index, earlier in zip(self._stacked, state[has_task:], strict=True)
        ]
        return RowStates(first.shape[1], tuple(state[:has_task]), tuple(histories))

    def remember(self, state: State, raw_action: Tensor) -> State:
        """Return `forward`'s state completed with the action f32 [B, A] at its last row."""
        if not self._has_previous_action:
            return state
        return (*state[:-1], self.distribution.encode(raw_action))

    def act(
        self,
        obs: Sequence[Tensor],
        reward: Tensor,
        first: Tensor,
        state: State,
        rule: ActingRule = MODE,
        noise: Sequence[Tensor] = (),
        mask: Tensor | None = None,
        *,
        wanted: Collection[str] = (),
    ) -> Acted:
        """Choose the actions of one tick for B lanes.

        Args:
          obs, reward, first: leaves [B, ...], f32 [B] and bool [B].
          rule, noise: how to choose actions, and one tick of the noise that the rule asks for.
          mask: which actions are permitted, u8 [B, M].
          wanted: names of the fields that the rule is to record.
        """
        output = self(tuple(leaf.unsqueeze(0) for leaf in obs), reward.unsqueeze(0), first.unsqueeze(0), None, state)
        row = ActingOutputs(output.params[0], output.value[0])
        action, recorded = rule.decide(self.distribution, row, noise, mask, wanted)
        return Acted(action, recorded, row.value, self.remember(output.state, action))

    def normalisers(self) -> tuple[LeafNormaliser, ...]:
        """Return the live observation statistics, which the learner writes; empty unless normalisation is on."""
        return self.encoder.normalisers()

    @torch.no_grad()
    def rescale_value_(self, scale: float | Tensor, shift: float | Tensor) -> None:
        """Change the value head in place so that it gives scale · value + shift, as PopArt does.

        Args:
          scale, shift: numbers or scalars, or [K] where the policy has a value output for each task.
        """
        head = self.head if self.value_torso is None else self.value_head
        by_row = scale.unsqueeze(-1) if isinstance(scale, Tensor) and scale.dim() else scale
        rows = -1 if self.num_values == 1 else slice(-self.num_values, None)
        head.weight[rows].mul_(by_row)
        head.bias[rows].mul_(scale).add_(shift)


def _make_head(features: int, num_outputs: int, num_values: int) -> nn.Linear:
    """Make one linear layer for the action parameters and, as its last outputs, the values."""
    policy, value = nn.Linear(features, num_outputs), nn.Linear(features, num_values)
    initialise(policy, POLICY_GAIN)
    initialise(value, 1.0)
    head = nn.Linear(features, num_outputs + num_values)
    with torch.no_grad():
        head.weight.copy_(torch.cat([policy.weight, value.weight]))
        head.bias.zero_()
    return head
