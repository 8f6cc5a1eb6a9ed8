"""The state that inference keeps for a group, and how it reads the group's STEPs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.inference_svc.config import OutOfBounds
from seedbed.inference_svc.engine import LaneBlock
from seedbed.inference_svc.episodes import read_statistics
from seedbed.inference_svc.pictures import read_picture
from seedbed.inference_svc.row_check import RowCheck, row_check
from seedbed.inference_svc.unrolls import LatestRow, UnrollWriter
from seedbed.shared.protocol.layout import Array, Layout
from seedbed.shared.protocol.messages import ActBits, Step
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import act_layout, step_layout
from seedbed.shared.protocol.sessions import Session

DECORRELATE_OVER = 8  # groups' first unrolls end at this many different ticks
_BOUNDARY = int(ActBits.BOUNDARY)


@dataclass(slots=True, eq=False)
class Group:
    """A group with a session: its lanes, layouts, and what its newest rows say."""

    session: Session
    lanes: LaneBlock
    layout: Layout  # of a STEP
    check: RowCheck  # of a STEP's values
    flags: Array  # of the newest rows, u8 [L]
    previous_flags: Array
    statistics: Array | None = None  # of the episodes that its newest rows end, f32 [n, K]; None: of none
    version: int = 0  # packed, of the weights that acted when its newest rows came
    wants_boundaries: bool = False  # its HELLO has the capability `boundary`

    @property
    def act_bits(self) -> int:
        """The `ActBits` of its next ACT, as an integer."""
        rows = self.lanes.rows
        is_boundary = self.wants_boundaries and isinstance(rows, UnrollWriter) and rows.is_boundary
        return _BOUNDARY if is_boundary else 0

    @property
    def is_unroll_complete(self) -> bool:
        """Whether it is a training group that waits with a complete unroll."""
        rows = self.lanes.rows
        return isinstance(rows, UnrollWriter) and rows.is_complete

    @property
    def task(self) -> str:
        """The task that it plays; empty in a run with one environment."""
        return self.session.hello.task


def make_group(session: Session, record: RecordSpec, start: int, out_of_bounds: OutOfBounds = "count") -> Group:
    """Make the group of a new session, on the slots from `start` on."""
    hello = session.hello
    rows: UnrollWriter | LatestRow
    if hello.mode == "train":
        skip = (session.number - 1) % DECORRELATE_OVER * record.unroll_length // DECORRELATE_OVER
        rows = UnrollWriter(record, hello.lanes, skip=skip)
    else:
        rows = LatestRow()
    lanes = LaneBlock(
        start=start,
        count=hello.lanes,
        seed=session.seed,
        rows=rows,
        act_layout=act_layout(hello.spec, hello.lanes),
        greedy=False,
        uses_frozen_weights=hello.mode == "eval",
        task=hello.task,
    )
    none = np.zeros(hello.lanes, np.uint8)
    return Group(
        session,
        lanes,
        step_layout(hello.spec, hello.lanes),
        row_check(hello.spec, out_of_bounds, hello.lanes),
        none,
        none,
        wants_boundaries="boundary" in hello.capabilities,
    )


def read_step(group: Group, step: Step, frames: Sequence[bytes]) -> tuple[list[Array], int, Array | None, bytes | None]:
    """Read a STEP's payload.

    Returns: its arrays in the order of the layout; the number of lanes out of bounds; statistics of the ended lanes,
      f32 [ended, K], or None; the frame of a picture, or None.
    Raises: RemoteWireError also for values that would break the forward pass or the loss, so that only their sender
      suffers.
    """
    size = len(group.layout.frame_bytes)
    group.layout.check(frames[:size])
    inputs, extras = group.layout.views(frames[:size]), frames[size:]
    outside = group.check(inputs)
    statistics = read_statistics(group.session.hello.spec, step, inputs[-1], extras)
    return inputs, outside, statistics, read_picture(step, extras)
