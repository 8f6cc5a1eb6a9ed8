"""A group's rows: what an environment specification is, and how STEP, ACT and UNROLL lay out their arrays.

Row t of a lane: the observation, the reward and the flags that came with it, then the action taken at it.
`terminated` and `truncated` mark the row with an episode's final observation; the next row is the reset row (`first`),
its reward is 0 and the action before it is ignored. The transition into a `first` row is no step:
valid_t = 1 - first_{t+1}.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache

import msgpack

from shared.protocol.layout import Field, Layout
from shared.protocol.spaces import Space, space_to_wire


class Flags(IntFlag):
    """One byte per lane and row."""

    TERMINATED = 1
    TRUNCATED = 2
    FIRST = 4
    LIFE_LOST = 8  # cuts the discount in training; no reset, no state change
    ABSENT = 16  # no agent in this lane at this row


ENDED = Flags.TERMINATED | Flags.TRUNCATED


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What a policy must know of an environment; agreed at HELLO, digested with unrolls and weights."""

    env_id: str
    settings: tuple[tuple[str, str], ...] = ()  # (name, value as JSON), sorted: frame skip, clipping, …
    observation: Space
    action: Space
    mask_size: int = 0  # summed categories of all discrete action components, or 0 without masks
    statistics: tuple[str, ...] = ("return", "length")  # of an ended episode; the first two are always these

    def digest(self) -> str:
        """Sixteen hex digits that differ when anything of the specification does."""
        parts = [
            self.env_id, [list(item) for item in self.settings], space_to_wire(self.observation),
            space_to_wire(self.action), self.mask_size, list(self.statistics),
        ]  # fmt: skip
        return hashlib.sha256(msgpack.packb(parts)).hexdigest()[:16]


@lru_cache(maxsize=256)
def step_layout(spec: EnvSpec, lanes: int) -> Layout:
    """STEP's arrays: observation leaves, then `mask` u8 [L, M] if masked, `reward` f32 [L], `flags` u8 [L]."""
    fields = [Field(leaf.path, leaf.wire_dtype, (lanes, *leaf.wire_shape)) for leaf in spec.observation.leaves()]
    if spec.mask_size:
        fields.append(Field("mask", "uint8", (lanes, spec.mask_size)))
    fields += [Field("reward", "float32", (lanes,)), Field("flags", "uint8", (lanes,))]
    return Layout(fields)


@lru_cache(maxsize=256)
def act_layout(spec: EnvSpec, lanes: int) -> Layout:
    """ACT's arrays: action leaves as the environment takes them."""
    return Layout([Field(leaf.path, leaf.wire_dtype, (lanes, *leaf.wire_shape)) for leaf in spec.action.leaves()])


def unroll_layout(
    spec: EnvSpec, action_size: int, state_fields: Sequence[Field], unroll_length: int, lanes: int
) -> Layout:
    """UNROLL's arrays, time first, in one frame.

    Observation leaves [T+1, L, ...], mask [T+1, L, M] if masked, reward f32 [T+1, L], flags u8 [T+1, L],
    action f32 [T, L, A] (the policy's own: zero-based index, or before squashing), log_prob f32 [T, L],
    version i64 [T] (packed policy_version per tick), then the policy state before row 0, each [L, ...].
    """
    rows = unroll_length + 1
    fields = [Field(leaf.path, leaf.wire_dtype, (rows, lanes, *leaf.wire_shape)) for leaf in spec.observation.leaves()]
    if spec.mask_size:
        fields.append(Field("mask", "uint8", (rows, lanes, spec.mask_size)))
    fields += [
        Field("reward", "float32", (rows, lanes)),
        Field("flags", "uint8", (rows, lanes)),
        Field("action", "float32", (unroll_length, lanes, action_size)),
        Field("log_prob", "float32", (unroll_length, lanes)),
        Field("version", "int64", (unroll_length,)),
    ]
    fields += [Field(item.name, item.dtype, (lanes, *item.shape)) for item in state_fields]
    return Layout(fields, single_frame=True)
