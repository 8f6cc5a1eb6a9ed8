"""A batch: rows of B lanes as tensors, and functions of its flags.

Shape suffixes: R rows, T = R-1 transitions, B lane-unrolls, A columns of the raw action, M mask columns.
Row t holds x_t, the reward and flags that came with it, and the action taken at it. Transition t leads from row t to
row t+1; it is a step unless row t+1 is a reset row: valid_t = 1 - first_{t+1}.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from seedbed.shared.policy.policy import RowStates
from seedbed.shared.policy.transfers import to_device
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.recording import (
    ACTION,
    FLAGS,
    LOG_PROB,
    MASK,
    OBSERVATION,
    REWARD,
    VERSION,
    Per,
    RecordSpec,
)
from seedbed.shared.protocol.rows import Flags

ON_HOST = frozenset({VERSION})  # fields that stay on the host


class Batch:
    """The experience of one update: the fields of a record as tensors, by name and in the order of the record.

    A field is [R, B, ...] for each row, [R-1, B, ...] for each transition or tick, or [B, ...] for each lane. Tensors
    share the memory of the arrays that they were made from. Versions stay on the host.
    """

    __slots__ = ("record", "tensors")

    def __init__(self, record: RecordSpec, tensors: Mapping[str, Tensor]) -> None:
        """Raises: ValueError naming a field that is missing or has the wrong shape."""
        self.record, self.tensors = record, dict(tensors)
        rows, lanes = self.reward.shape[:2]
        for item in record.fields:
            wanted = (lanes,) if item.per is Per.LANE else (rows if item.per is Per.ROW else rows - 1, lanes)
            tensor = self.tensors.get(item.name)
            if tensor is None or tensor.shape != (*wanted, *item.shape):
                found = None if tensor is None else tuple(tensor.shape)
                raise ValueError(f"{item.name} is {found}, expected {[*wanted, *item.shape]}")

    @classmethod
    def from_arrays(cls, record: RecordSpec, arrays: Sequence[Array]) -> "Batch":
        """Make a batch on the memory of writable arrays, in the order of the record."""
        pairs = zip(record.fields, arrays, strict=True)
        return cls(record, {item.name: torch.from_numpy(array) for item, array in pairs})

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def observation(self) -> tuple[Tensor, ...]:
        """Observation leaves, each [R, B, ...] in its wire dtype."""
        names = self.record.step_names
        return tuple(self.tensors[name] for name in names if name.partition("/")[0] == OBSERVATION)

    @property
    def mask(self) -> Tensor | None:
        """Permitted actions, u8 [R, B, M]; None without masks."""
        return self.tensors.get(MASK)

    @property
    def reward(self) -> Tensor:
        """Rewards as the environments gave them, f32 [R, B]."""
        return self.tensors[REWARD]

    @property
    def flags(self) -> Tensor:
        """Flags of each row, u8 [R, B], bits of seedbed.shared.protocol.rows.Flags."""
        return self.tensors[FLAGS]

    @property
    def action(self) -> Tensor:
        """Raw actions, f32 [R-1, B, A]."""
        return self.tensors[ACTION]

    @property
    def log_prob(self) -> Tensor:
        """Log-probabilities under the behaviour policy, f32 [R-1, B]; 0 where a transition is not a step."""
        return self.tensors[LOG_PROB]

    @property
    def version(self) -> Tensor:
        """Packed policy_version that acted, i64 [R-1, B]."""
        return self.tensors[VERSION]

    @property
    def state(self) -> tuple[Tensor, ...]:
        """Policy state before row 0, each [B, ...]."""
        return tuple(self.tensors[item.name] for item in self.record.state)

    @property
    def num_transitions(self) -> int:
        """R-1, which is T plus the overlap of the record."""
        return self.action.shape[0]

    @property
    def num_lanes(self) -> int:
        """B, the number of lane-unrolls."""
        return self.action.shape[1]

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the batch itself if it is there already."""
        if self.reward.device == device:
            return self
        moved = {
            name: tensor if name in ON_HOST else tensor.to(device, non_blocking=True)
            for name, tensor in self.tensors.items()
        }
        return Batch(self.record, moved)

    @contextmanager
    def on(self, device: torch.device) -> Iterator["Batch"]:
        """Enter a context with the batch on a device, for an update that is over when the context is left."""
        yield self.to(device)

    def lanes(self, index: Tensor) -> "Batch":
        """Return a copy of the lanes of `index`, i64 [N] on the host."""
        there = to_device(index.numpy(), self.reward.device)
        cut = {}
        for item in self.record.fields:
            axis = 0 if item.per is Per.LANE else 1
            cut[item.name] = self.tensors[item.name].index_select(axis, index if item.name in ON_HOST else there)
        return Batch(self.record, cut)

    def transitions(self, index: Tensor, states: RowStates) -> "Batch":
        """Return a copy of N transitions, each as a lane of two rows.

        Args:
          index: t·B + b of each, i64 [N] on the host.
          states: of the batch's rows.
        """
        there = to_device(index.numpy(), self.reward.device)
        cut = dict(zip((item.name for item in self.record.state), states.of(there), strict=True))
        for item in self.record.fields:
            tensor = self.tensors[item.name]
            chosen = index if item.name in ON_HOST else there
            if item.per is Per.ROW:
                rows = torch.stack([chosen, chosen + self.num_lanes]).flatten()
                cut[item.name] = tensor.flatten(0, 1).index_select(0, rows).reshape(2, -1, *item.shape)
            elif item.per is not Per.LANE:
                cut[item.name] = take_transitions(tensor, chosen)
        return Batch(self.record, cut)

    def named_tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name, on the host, to save a batch whose loss is not finite."""
        return {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}


def take_lanes(tensor: Tensor, index: Tensor) -> Tensor:
    """Return a copy [T, N, ...] of some lanes of [T, B, ...]."""
    return tensor.index_select(1, index)


def take_transitions(tensor: Tensor, index: Tensor) -> Tensor:
    """Return a copy [1, N, ...] of some transitions of [T, B, ...], as `Batch.transitions` has them."""
    return tensor.flatten(0, 1).index_select(0, index).unsqueeze(0)


def valid_transitions(flags: Array) -> Array:
    """Return which transitions are steps, bool [T, B], from the flags u8 [T+1, B] of all rows.

    False where the next row is a reset row, or either row has no agent.
    """
    absent = (flags & Flags.ABSENT) != 0
    valid: Array = (flags[1:] & Flags.FIRST) == 0
    if absent.any():
        valid &= ~absent[1:] & ~absent[:-1]
    return valid


def first_rows(flags: Tensor) -> Tensor:
    """Return which rows begin an episode, bool [T+1, B]."""
    return (flags & int(Flags.FIRST)) != 0


def discounts(flags: Tensor, discount: float) -> Tensor:
    """Return discount_t = γ·(1 - terminated_{t+1})·(1 - life_lost_{t+1}), f32 [T, B], from the flags u8 [T+1, B]."""
    cut = (flags[1:] & int(Flags.TERMINATED | Flags.LIFE_LOST)) != 0
    return torch.where(cut, 0.0, discount)


def present_rows(flags: Array) -> Array | None:
    """Return which of rows 1…T have an agent, bool [T, B]; None if all have."""
    absent = (flags[1:] & Flags.ABSENT) != 0
    return np.logical_not(absent) if absent.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A batch on the device with its masks: the input of an algorithm's loss. The counts need no synchronisation."""

    batch: Batch
    valid_TB: Tensor  # bool: the transition is a step
    trained_TB: Tensor  # bool: valid, and fresh enough to train on
    current_TB: Tensor  # bool: trained, and acted by the weights that this update starts from
    num_trained: int
    num_current: int
    reward_TB: Tensor  # f32: what each transition earned, scaled, clipped and transformed as the settings say
    task_B: Tensor | None = None  # i64: number of each lane's task; None in a run without tasks
    tasks: tuple[str, ...] = ()  # names of the run's tasks, in the order of their numbers
    weight_B: Tensor | None = None  # f32: factor for the loss of each lane; None: 1

    def minibatch(
        self, index: Array, *, num_trained: int, num_current: int, states: RowStates | None = None
    ) -> "Experience":
        """Return a copy of some lanes; with the states of all rows, of some transitions, each as a lane of its own.

        Args:
          index: their numbers, i64 [N]; that of a transition is t·B + b.
          num_trained, num_current: how many of them are so, over all ranks.
        """
        chosen = torch.from_numpy(index)
        there = to_device(index, self.reward_TB.device)
        lanes = there if states is None else there % self.batch.num_lanes
        take = take_lanes if states is None else take_transitions
        return Experience(
            batch=self.batch.lanes(chosen) if states is None else self.batch.transitions(chosen, states),
            valid_TB=take(self.valid_TB, there),
            trained_TB=take(self.trained_TB, there),
            current_TB=take(self.current_TB, there),
            num_trained=num_trained,
            num_current=num_current,
            reward_TB=take(self.reward_TB, there),
            task_B=None if self.task_B is None else self.task_B.index_select(0, lanes),
            tasks=self.tasks,
            weight_B=None if self.weight_B is None else self.weight_B.index_select(0, lanes),
        )

    def moved(self) -> "Experience":
        """Return the experience after an optimiser step: no transition was acted by the present weights."""
        if not self.num_current:
            return self
        return replace(self, current_TB=torch.zeros_like(self.current_TB), num_current=0)

    @property
    def lane_tasks(self) -> Tensor:
        """The number of each lane's task, i64 [B]. Raises: ValueError in a run without tasks."""
        if self.task_B is None:
            raise ValueError("this policy has a value for each task, and the batch does not say whose lanes it has")
        return self.task_B
