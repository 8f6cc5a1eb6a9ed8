"""Known actors by name: how often each was restarted, and which were lost. Pure: takes `now`, in seconds."""

from collections.abc import Iterable

from seedbed.shared.protocol.sessions import Session

MAX_ACTORS, MAX_LIVES = 1024, 1024  # names, and incarnations of a name, that are remembered; others are not counted
MISSED_S = 600.0  # for how long a lost actor is still reported, with 0 lanes


class ActorRegistry:
    """Counts restarts and losses of actors. Owned by the loop; other threads may read `restarts` and call `lanes`."""

    def __init__(self) -> None:
        self.restarts: dict[str, int] = {}  # by name, where there were any
        self._lives: dict[str, dict[int, bool]] = {}  # name → incarnation → was counted as a restart
        self._lost_at: dict[str, float] = {}

    def register(self, name: str, incarnation: int, *, is_start: bool) -> None:
        """Note that a group of an actor process has opened a session.

        Args:
          is_start: whether the group is the process's group 0 and new to the run. Groups may spread over several
            replicas of inference; only the one that gets group 0 counts a restart, if it has seen an earlier process.
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

    def mark_lost(self, name: str, now: float) -> None:
        """Note that an actor fell silent or was cut off, without a BYE."""
        if name in self._lives:
            self._lost_at[name] = now

    def forget_lost(self, now: float) -> None:
        """Forget the actors that were lost more than `MISSED_S` ago."""
        self._lost_at = {name: at for name, at in self._lost_at.items() if now - at < MISSED_S}

    def lanes(self, sessions: Iterable[Session]) -> dict[str, float]:
        """Return the lanes of each actor that has a session; 0 for those that were lost and have not come back."""
        lanes = dict.fromkeys(list(self._lost_at), 0.0)
        for session in sessions:
            if session.hello.actor in self._lives:
                lanes[session.hello.actor] = lanes.get(session.hello.actor, 0.0) + session.lanes
        return lanes

    @property
    def num_restarts(self) -> int:
        """The number of restarts of all actors together."""
        return sum(self.restarts.values())
