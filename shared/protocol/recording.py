"""What a step leaves behind: one ordered list of fields, from which acting, UNROLL and batches are laid out.

An unroll stores R rows of some lanes, R = overlap + T + 1. Row t of a lane holds what came with its observation, and
but for the last row what was decided at it. Consecutive unrolls of a lane share the last row, and `overlap` rows before
it. Nothing knows a field by its position: whoever needs one asks by name, the others iterate.

Shape suffixes: R rows, L lanes.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from seedbed.shared.protocol.layout import Field, Layout
from seedbed.shared.protocol.rows import EnvSpec, step_layout
from seedbed.shared.protocol.spaces import own_action_size

OBSERVATION, MASK, REWARD, FLAGS = "observation", "mask", "reward", "flags"
ACTION, LOG_PROB, VERSION = "action", "log_prob", "version"


class Per(StrEnum):
    """How many values of a field there are."""

    ROW = "row"  # [R, L, ...]: what comes with an observation
    TRANSITION = "transition"  # [R-1, L, ...]: what is decided at a row
    TICK = "tick"  # one for all lanes
    LANE = "lane"  # [L, ...]: once, before row 0


@dataclass(frozen=True, slots=True)
class RecordField:
    """One array of an unroll's record: what is kept of each row and lane."""

    name: str
    dtype: str  # a NumPy name from `spaces.DTYPES`
    shape: tuple[int, ...]  # of one lane's value
    per: Per

    def array_shape(self, rows: int, lanes: int) -> tuple[int, ...]:
        """Of the whole field for so many rows R and lanes."""
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
    """What is recorded of the environments of one specification. Immutable; equal ones have equal layouts.

    `fields` are in the order in which they travel: observation leaves, mask, reward and flags as in a STEP, the action
    (the policy's own: zero-based index, or before squashing), what the acting rule decided besides, the version that
    acted (packed), the policy's state before row 0.
    """

    spec: EnvSpec
    unroll_length: int  # T, transitions that no other unroll of the lane has
    overlap: int = 0  # transitions of the unroll before that are stored again; at most T
    decided: tuple[RecordField, ...] = (RECORDED_LOG_PROB,)  # beside the action
    state: tuple[RecordField, ...] = ()
    fields: tuple[RecordField, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= self.unroll_length:
            raise ValueError(f"an overlap of {self.overlap} rows with unrolls of {self.unroll_length}")
        if any(item.per is not Per.TRANSITION for item in self.decided):
            raise ValueError("what is decided beside an action is recorded for each transition")
        action = RecordField(ACTION, "float32", (own_action_size(self.spec.action),), Per.TRANSITION)
        version = RecordField(VERSION, "int64", (), Per.TICK)
        fields = (*step_fields(self.spec), action, *self.decided, version, *self.state)
        object.__setattr__(self, "fields", fields)
        if len({item.name for item in fields}) < len(fields):
            raise ValueError(f"two fields of a record have one name: {[item.name for item in fields]}")

    @property
    def num_rows(self) -> int:
        """R, the rows of an unroll."""
        return self.overlap + self.unroll_length + 1

    @property
    def step_names(self) -> tuple[str, ...]:
        """The fields that a STEP brings, in its order."""
        return tuple(item.name for item in self.fields if item.per is Per.ROW)

    def layout(self, lanes: int) -> Layout:
        """UNROLL's arrays, time first, in one frame."""
        fields = [Field(item.name, item.dtype, item.array_shape(self.num_rows, lanes)) for item in self.fields]
        return Layout(fields, single_frame=True)


def step_fields(spec: EnvSpec) -> list[RecordField]:
    """A STEP's arrays as fields of a record."""
    paths = [leaf.path for leaf in spec.observation.leaves()]
    names = [f"{OBSERVATION}/{path}" if path else OBSERVATION for path in paths]
    names += [MASK, REWARD, FLAGS] if spec.mask_size else [REWARD, FLAGS]
    arrays = step_layout(spec, 1).fields
    return [RecordField(name, item.dtype, item.shape[1:], Per.ROW) for name, item in zip(names, arrays, strict=True)]
