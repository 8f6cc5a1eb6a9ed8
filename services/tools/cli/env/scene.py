"""What a person sees of a group: lane 0 in one tick, from a group of this process or from a service's STEP."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.actor_svc.group import EnvGroup
from seedbed.actor_svc.pictures import observed_picture, picture_of
from seedbed.services.tools.cli.env.row_checks import Tick
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Step, StepBits
from seedbed.shared.protocol.pictures import PICTURE_HEADER_BYTES, check_picture
from seedbed.shared.protocol.rows import ENDED, EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What lane 0 shows in one tick: what it observed, earned and looks like."""

    spec: EnvSpec
    observation: tuple[Array, ...]  # leaves in canonical order, [1, ...]
    mask: Array | None  # u8 [M]
    reward: float
    flags: int
    ended_return: float | None  # of the episode that this row ended, if that was told
    picture: Array | None  # u8 [height, width, 3]

    @property
    def has_ended(self) -> bool:
        """Whether the row ended the episode."""
        return bool(self.flags & ENDED)


def scene_of_group(group: EnvGroup) -> Scene:
    """The newest rows of a group of this process."""
    views = group.views
    try:
        picture: Array | None = picture_of(group)
    except EnvError:
        picture = None
    has_ended = group.ended_lanes.size and group.ended_lanes[0] == 0
    return Scene(
        spec=group.spec,
        observation=tuple(view[:1].copy() for view in views.observation),
        mask=None if views.mask is None else views.mask[0].copy(),
        reward=float(views.reward[0]),
        flags=int(views.flags[0]),
        ended_return=float(group.ended_statistics[0, 0]) if has_ended else None,
        picture=picture,
    )


def scene_of_step(spec: EnvSpec, step: Step, tick: Tick, payload: Sequence[bytes]) -> Scene:
    """A STEP of a service, with its picture, else with its first image observation.

    Args:
      tick: what was read from the payload.
    Raises: RemoteWireError if the picture is broken.
    """
    flags = int(tick.flags[0])
    statistics = tick.statistics if flags & ENDED else None  # lane 0's stand first
    ended_return = float(statistics[0, 0]) if statistics is not None and len(statistics) else math.nan
    picture = drawn_picture(step, payload)
    if picture is None:
        picture = observed_picture(spec, tick.observation)
    return Scene(
        spec=spec,
        observation=tuple(view[:1] for view in tick.observation),
        mask=None if tick.mask is None else tick.mask[0],
        reward=float(tick.reward[0]),
        flags=flags,
        ended_return=ended_return if math.isfinite(ended_return) else None,
        picture=picture,
    )


def drawn_picture(step: Step, payload: Sequence[bytes]) -> Array | None:
    """The picture that a service sent with a STEP, u8 [height, width, 3], if it sent one. Raises: RemoteWireError."""
    if not step.bits & StepBits.RENDER:
        return None
    height, width = check_picture(payload[-1])
    return np.frombuffer(payload[-1], np.uint8, offset=PICTURE_HEADER_BYTES).reshape(height, width, 3)
