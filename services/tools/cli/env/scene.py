"""What a person sees of a group: lane 0 in one tick."""

from dataclasses import dataclass

from seedbed.actor_svc.group import EnvGroup
from seedbed.actor_svc.pictures import picture_of
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import ENDED, EnvSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What lane 0 shows in one tick: what it observed, earned and looks like."""

    spec: EnvSpec
    observation: tuple[Array, ...]  # leaves in canonical order, [1, ...]
    mask: Array | None  # u8 [M]
    reward: float
    flags: int
    ended_return: float | None  # of the episode that this row ended
    picture: Array | None  # u8 [height, width, 3]

    @property
    def has_ended(self) -> bool:
        """Whether the row ended the episode."""
        return bool(self.flags & ENDED)


def scene_of_group(group: EnvGroup) -> Scene:
    """Return the newest rows of a group."""
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
