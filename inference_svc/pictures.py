"""The newest picture of an evaluation, for people who watch. Decides when to ask for the next; pure, takes `now`.

Somebody watches: four pictures a second. Nobody does: one in five seconds, so that who comes finds one, for evaluations
are short and rare. Only evaluation and play groups are asked, and only those that can draw (capability `render`), so
that nobody's looking slows training down. One group is shown for as long as pictures of it come.
"""

import math
from collections.abc import Sequence

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.reports import ShownPicture
from seedbed.shared.protocol.messages import Step, StepBits
from seedbed.shared.protocol.pictures import check_picture
from seedbed.shared.protocol.sessions import Session

WATCHED_S = 10.0  # somebody who looked is watching for so long
WATCHED_EVERY_S, IDLE_EVERY_S = 0.25, 5.0
PATIENCE_PICTURES = 3  # so many late, and another group is asked
_RENDER = int(StepBits.RENDER)  # plain: it is looked for in every STEP


def read_picture(step: Step, extras: Sequence[bytes]) -> bytes | None:
    """The picture's frame among those behind a STEP's rows, if it has one. Raises: RemoteWireError if it is broken."""
    if not step.bits & _RENDER:
        return None
    place = int(bool(step.bits & StepBits.STATISTICS))
    if len(extras) <= place:
        raise RemoteWireError("picture", "a STEP that announces a picture has none")
    check_picture(extras[place])
    return extras[place]


class Pictures:
    """Owned by the service's loop; `newest` and `looked` may be used by any thread. Memory: one picture."""

    def __init__(self) -> None:
        self.newest: ShownPicture | None = None
        self._looked_at = self._asked_at = -math.inf
        self._shown = 0  # session

    def looked(self, now: float) -> None:
        """Somebody asked for the newest picture."""
        self._looked_at = now

    def wants(self, session: Session, now: float) -> bool:
        """Whether to ask this group for a picture with its next rows; counts as asked if so."""
        every_s = WATCHED_EVERY_S if now - self._looked_at < WATCHED_S else IDLE_EVERY_S
        if now - self._asked_at < every_s or "render" not in session.capabilities:
            return False
        if session.id != self._shown and now - self._shown_at() < PATIENCE_PICTURES * every_s:
            return False
        self._asked_at = now
        return True

    @property
    def count(self) -> int:
        """How many pictures have come so far."""
        return self.newest.number if self.newest is not None else 0

    def _shown_at(self) -> float:
        return self.newest.at if self.newest is not None else -math.inf

    def take(self, session: Session, version: int, frame: bytes, now: float) -> None:
        """A picture came; a training group's, which nobody asked for, is passed over."""
        if "render" in session.capabilities:
            self._shown = session.id
            self.newest = ShownPicture(number=self.count + 1, version=version, at=now, frame=frame)
