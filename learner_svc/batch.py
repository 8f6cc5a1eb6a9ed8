"""A batch: T+1 rows of B lanes as tensors, and what its flags say about each transition.

Shape suffixes: T transitions (rows 0…T), B lane-unrolls, A columns of the policy's own action, M mask columns.
Row t holds x_t, the reward and flags that came with it, and the action taken at it. Transition t leads from row t to
row t+1; it is a step unless row t+1 is a reset row: valid_t = 1 - first_{t+1}.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shared.protocol.layout import Array
from shared.protocol.rows import Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one update trains on. The tensors share the memory of the arrays they came from: do not reuse it before."""

    observation: tuple[Tensor, ...]  # each leaf [T+1, B, ...] in its wire dtype
    mask: Tensor | None  # u8 [T+1, B, M]
    reward: Tensor  # f32 [T+1, B], raw
    flags: Tensor  # u8 [T+1, B], shared.protocol.rows.Flags
    action: Tensor  # f32 [T, B, A], the policy's own
    log_prob: Tensor  # f32 [T, B], under the behaviour policy; 0 where the transition is no step
    version: Tensor  # i64 [T, B], packed policy_version that acted; always on the host
    state: tuple[Tensor, ...]  # policy state before row 0, each [B, ...]

    def __post_init__(self) -> None:
        rows, lanes = self.reward.shape
        for name, tensor in (("flags", self.flags), *((f"observation {i}", x) for i, x in enumerate(self.observation))):
            if tensor.shape[:2] != (rows, lanes):
                raise ValueError(f"{name} is {tuple(tensor.shape)}, expected [{rows}, {lanes}, ...]")
        for name, tensor in (("action", self.action), ("log_prob", self.log_prob), ("version", self.version)):
            if tensor.shape[:2] != (rows - 1, lanes):
                raise ValueError(f"{name} is {tuple(tensor.shape)}, expected [{rows - 1}, {lanes}, ...]")
        if any(tensor.shape[0] != lanes for tensor in self.state):
            raise ValueError(f"policy state of {[tuple(x.shape) for x in self.state]}, expected [{lanes}, ...]")

    @classmethod
    def from_fields(cls, arrays: Sequence[Array], *, num_leaves: int, masked: bool) -> "Batch":
        """A batch on the memory of writable arrays, in the order of `rows.unroll_layout`; `version` is i64 [T, B]."""
        tensors = [torch.from_numpy(array) for array in arrays]
        observation, rest = tensors[:num_leaves], tensors[num_leaves:]
        mask = rest.pop(0) if masked else None
        reward, flags, action, log_prob, version, *state = rest
        return cls(
            observation=tuple(observation), mask=mask, reward=reward, flags=flags, action=action, log_prob=log_prob,
            version=version, state=tuple(state),
        )  # fmt: skip

    @property
    def num_transitions(self) -> int:
        """T."""
        return self.action.shape[0]

    @property
    def num_lanes(self) -> int:
        """B."""
        return self.action.shape[1]

    def to(self, device: torch.device) -> "Batch":
        """The batch on a device (itself if it is there already). Versions stay on the host."""
        if self.reward.device == device:
            return self
        return Batch(
            observation=tuple(x.to(device, non_blocking=True) for x in self.observation),
            mask=None if self.mask is None else self.mask.to(device, non_blocking=True),
            reward=self.reward.to(device, non_blocking=True),
            flags=self.flags.to(device, non_blocking=True),
            action=self.action.to(device, non_blocking=True),
            log_prob=self.log_prob.to(device, non_blocking=True),
            version=self.version,
            state=tuple(x.to(device, non_blocking=True) for x in self.state),
        )

    def lanes(self, index: Tensor) -> "Batch":
        """Some lanes, copied: those of `index`, i64 [N], on the batch's device."""
        host = index.cpu()
        return Batch(
            observation=tuple(x.index_select(1, index) for x in self.observation),
            mask=None if self.mask is None else self.mask.index_select(1, index),
            reward=self.reward.index_select(1, index),
            flags=self.flags.index_select(1, index),
            action=self.action.index_select(1, index),
            log_prob=self.log_prob.index_select(1, index),
            version=self.version.index_select(1, host),
            state=tuple(x.index_select(0, index) for x in self.state),
        )

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor by a unique name, on the host: what is saved when a loss is not finite."""
        named = {f"observation.{i}": x for i, x in enumerate(self.observation)}
        if self.mask is not None:
            named["mask"] = self.mask
        named |= {"reward": self.reward, "flags": self.flags, "action": self.action}
        named |= {"log_prob": self.log_prob, "version": self.version}
        named |= {f"state.{i}": x for i, x in enumerate(self.state)}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}


def valid_transitions(flags: Array) -> Array:
    """Which transitions are steps: bool [T, B] from the flags u8 [T+1, B] of all rows.

    False where the next row is a reset row, and beside rows without an agent.
    """
    absent = (flags & Flags.ABSENT) != 0
    valid: Array = (flags[1:] & Flags.FIRST) == 0
    if absent.any():
        valid &= ~absent[1:] & ~absent[:-1]
    return valid


def first_rows(flags: Tensor) -> Tensor:
    """Which rows begin an episode: bool [T+1, B]."""
    return (flags & int(Flags.FIRST)) != 0


def discounts(flags: Tensor, discount: float) -> Tensor:
    """discount_t = γ·(1 - terminated_{t+1})·(1 - life_lost_{t+1}), f32 [T, B], from the flags u8 [T+1, B]."""
    cut = (flags[1:] & int(Flags.TERMINATED | Flags.LIFE_LOST)) != 0
    return torch.where(cut, 0.0, discount)


def present_rows(flags: Array) -> Array | None:
    """Rows 1…T that have an agent, bool [T, B]; None if all have."""
    absent = (flags[1:] & Flags.ABSENT) != 0
    return np.logical_not(absent) if absent.any() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A batch on the device with its masks: what an algorithm's loss sees. The counts are known without a sync."""

    batch: Batch
    valid_TB: Tensor  # bool: the transition is a step
    trained_TB: Tensor  # bool: valid, and fresh enough to train on
    current_TB: Tensor  # bool: trained, and acted by the very weights that this update starts from
    num_trained: int
    num_current: int
    reward_scale_B: Tensor | None = None  # f32: what a lane's task multiplies its rewards by; None: 1
