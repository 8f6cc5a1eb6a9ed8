"""The actors that inference has met, by name: their lives, and which were lost. Pure: takes `now`, in seconds."""

from collections.abc import Iterable

from seedbed.shared.protocol.sessions import Session

MAX_ACTORS, MAX_LIVES = 1024, 1024  # what is remembered; names and lives beyond are not counted
MISSED_S = 600.0  # for how long a lost actor is missed


class ActorRegistry:
    """Owned by the loop; others may read `restarts` and `lanes`."""

    def __init__(self) -> None:
        self.restarts: dict[str, int] = {}  # lives beyond the first, of names that had any
        self._lives: dict[str, dict[int, bool]] = {}  # name → incarnation → was counted as a restart
        self._lost_at: dict[str, float] = {}

    def met(self, name: str, incarnation: int, *, is_start: bool) -> None:
        """An actor process has a session.

        is_start: its group 0, new to the run. A life's groups may spread over several replicas of inference, and move:
        only there it is counted, provided that an earlier life has been met there.
        """
        self._lost_at.pop(name, None)
        if name not in self._lives and len(self._lives) >= MAX_ACTORS:
            return
        lives = self._lives.setdefault(name, {})
        if incarnation not in lives and len(lives) >= MAX_LIVES:
            return
        is_counted = lives.setdefault(incarnation, False)
        if is_start and not is_counted and len(lives) > 1:
            lives[incarnation] = True
            self.restarts[name] = self.restarts.get(name, 0) + 1

    def lost(self, name: str, now: float) -> None:
        """It fell silent or was cut off, without a BYE."""
        if name in self._lives:
            self._lost_at[name] = now

    def forget(self, now: float) -> None:
        """Miss nobody for longer than `MISSED_S`."""
        self._lost_at = {name: at for name, at in self._lost_at.items() if now - at < MISSED_S}

    def lanes(self, sessions: Iterable[Session]) -> dict[str, float]:
        """Lanes of each known actor that is here; 0 for those that were lost and have not come back."""
        lanes = dict.fromkeys(list(self._lost_at), 0.0)
        for session in sessions:
            if session.hello.actor in self._lives:
                lanes[session.hello.actor] = lanes.get(session.hello.actor, 0.0) + session.lanes
        return lanes

    @property
    def num_restarts(self) -> int:
        """Process lives of actors beyond the first of each name."""
        return sum(self.restarts.values())
