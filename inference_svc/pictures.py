"""Keeps the newest picture of an evaluation and decides when to request the next. Pure: takes `now`, in seconds.

While someone watches, it requests four pictures a second; otherwise one every five seconds, so that a new viewer finds
a recent one. Only evaluation and play groups with the capability `render` are asked, so that watching never slows
training. One group is shown for as long as its pictures arrive.
"""

import math
from collections.abc import Sequence

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.reports import ShownPicture
from seedbed.shared.protocol.messages import Step, StepBits
from seedbed.shared.protocol.pictures import check_picture
from seedbed.shared.protocol.sessions import Session

WATCHED_S = 10.0  # how long a request for the picture counts as watching
WATCHED_EVERY_S, IDLE_EVERY_S = 0.25, 5.0
PATIENCE_PICTURES = 3  # another group is asked after this many intervals without a picture
_RENDER = int(StepBits.RENDER)  # a plain integer, because every STEP is tested for it


def read_picture(step: Step, extras: Sequence[bytes]) -> bytes | None:
    """Return the picture frame after a STEP's rows; None if it has none. Raises: RemoteWireError if it is invalid."""
    if not step.bits & _RENDER:
        return None
    place = int(bool(step.bits & StepBits.STATISTICS))
    if len(extras) <= place:
        raise RemoteWireError("picture", "the STEP announces a picture (bit 2) and has no frame for it")
    check_picture(extras[place])
    return extras[place]


class Pictures:
    """The newest picture. Owned by the service's loop; any thread may use `newest` and `looked`."""

    def __init__(self) -> None:
        self.newest: ShownPicture | None = None
        self._looked_at = self._asked_at = -math.inf
        self._shown = 0  # id of the session whose pictures are shown

    def looked(self, now: float) -> None:
        """Note that someone asked for the newest picture."""
        self._looked_at = now

    def wants(self, session: Session, now: float) -> bool:
        """Whether to request a picture with this group's next rows; if so, it counts as requested."""
        every_s = WATCHED_EVERY_S if now - self._looked_at < WATCHED_S else IDLE_EVERY_S
        if now - self._asked_at < every_s or "render" not in session.capabilities:
            return False
        if session.id != self._shown and now - self._shown_at() < PATIENCE_PICTURES * every_s:
            return False
        self._asked_at = now
        return True

    @property
    def count(self) -> int:
        """The number of pictures so far."""
        return self.newest.number if self.newest is not None else 0

    def _shown_at(self) -> float:
        return self.newest.at if self.newest is not None else -math.inf

    def take(self, session: Session, version: int, frame: bytes, now: float) -> None:
        """Take a picture as the newest one; a picture of a group that may not send any is ignored."""
        if "render" in session.capabilities:
            self._shown = session.id
            self.newest = ShownPicture(number=self.count + 1, version=version, at=now, frame=frame)
