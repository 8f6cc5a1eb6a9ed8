"""The record of experience: an ordered list of fields, which defines the layout of acting, UNROLL and batches.

An unroll stores R rows of some lanes, R = overlap + T + 1. Row t of a lane holds its observation, reward and flags and,
except in the last row, what was decided at it. Consecutive unrolls of a lane share the last row and `overlap` rows
before it. Code finds fields by name, never by position.

Shape suffixes: R rows, L lanes.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from seedbed.shared.protocol.layout import Field, Layout
from seedbed.shared.protocol.rows import EnvSpec, step_layout
from seedbed.shared.protocol.spaces import raw_action_size

OBSERVATION, MASK, REWARD, FLAGS = "observation", "mask", "reward", "flags"
ACTION, LOG_PROB, VERSION = "action", "log_prob", "version"


class Per(StrEnum):
    """How often a field is recorded, which gives the leading axes of its array."""

    ROW = "row"  # [R, L, ...]: what comes with an observation
    TRANSITION = "transition"  # [R-1, L, ...]: what is decided at a row
    TICK = "tick"  # one for all lanes
    LANE = "lane"  # [L, ...]: once, before row 0


@dataclass(frozen=True, slots=True)
class RecordField:
    """One array of an unroll."""

    name: str
    dtype: str  # a NumPy name from `spaces.DTYPES`
    shape: tuple[int, ...]  # of one lane's value
    per: Per

    def array_shape(self, rows: int, lanes: int) -> tuple[int, ...]:
        """Return the shape of the whole field for this many rows R and lanes."""
        match self.per:
            case Per.ROW:
                return (rows, lanes, *self.shape)
            case Per.TRANSITION:
                return (rows - 1, lanes, *self.shape)
            case Per.TICK:
                return (rows - 1, *self.shape)
            case Per.LANE:
                return (lanes, *self.shape)


RECORDED_LOG_PROB = RecordField(LOG_PROB, "float32", (), Per.TRANSITION)  # of the action, where it was sampled


@dataclass(frozen=True)
class RecordSpec:
    """The fields that are recorded for environments of one specification. Immutable; equal ones have equal layouts.

    `fields` are in the order of the wire: observation leaves, mask, reward and flags as in a STEP, the raw action (a
    zero-based index, or the value before squashing), other fields of the acting rule, the packed version that acted,
    the policy's state before row 0.
    """

    spec: EnvSpec
    unroll_length: int  # T, transitions that no other unroll of the lane has
    overlap: int = 0  # transitions of the unroll before that are stored again; at most T
    decided: tuple[RecordField, ...] = (RECORDED_LOG_PROB,)  # fields of the acting rule besides the action
    state: tuple[RecordField, ...] = ()
    fields: tuple[RecordField, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= self.unroll_length:
            raise ValueError(f"overlap is {self.overlap}, expected 0 to unroll_length = {self.unroll_length}")
        if any(item.per is not Per.TRANSITION for item in self.decided):
            raise ValueError("a field in `decided` must be recorded for each transition")
        action = RecordField(ACTION, "float32", (raw_action_size(self.spec.action),), Per.TRANSITION)
        version = RecordField(VERSION, "int64", (), Per.TICK)
        fields = (*step_fields(self.spec), action, *self.decided, version, *self.state)
        object.__setattr__(self, "fields", fields)
        if len({item.name for item in fields}) < len(fields):
            raise ValueError(f"two fields of a record have one name: {[item.name for item in fields]}")

    @property
    def num_rows(self) -> int:
        """R, the number of rows of an unroll."""
        return self.overlap + self.unroll_length + 1

    @property
    def step_names(self) -> tuple[str, ...]:
        """The names of the fields in a STEP, in its order."""
        return tuple(item.name for item in self.fields if item.per is Per.ROW)

    def layout(self, lanes: int) -> Layout:
        """Return the layout of UNROLL's arrays, time first, in one frame."""
        return _layout(self.fields, self.num_rows, lanes)


@lru_cache(maxsize=256)
def _layout(fields: tuple[RecordField, ...], rows: int, lanes: int) -> Layout:
    return Layout([Field(item.name, item.dtype, item.array_shape(rows, lanes)) for item in fields], single_frame=True)


def step_fields(spec: EnvSpec) -> list[RecordField]:
    """Return the arrays of a STEP as fields of a record."""
    paths = [leaf.path for leaf in spec.observation.leaves()]
    names = [f"{OBSERVATION}/{path}" if path else OBSERVATION for path in paths]
    names += [MASK, REWARD, FLAGS] if spec.mask_size else [REWARD, FLAGS]
    arrays = step_layout(spec, 1).fields
    return [RecordField(name, item.dtype, item.shape[1:], Per.ROW) for name, item in zip(names, arrays, strict=True)]
