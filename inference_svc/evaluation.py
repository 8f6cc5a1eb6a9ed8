"""One evaluation round of a task: frozen weights, whole episodes from fresh resets, a quota for each lane.

A round takes the evaluation groups that are connected when it starts. Each is reset once, with its own seed. Only the
first `quota` episodes of a lane count, so that short episodes are not preferred. If a group is lost before it has
played its quota, the round starts again with the groups that remain.
"""

from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Evaluation
from seedbed.shared.protocol.rows import ENDED

SEED_STRIDE = 1_000_003  # between the seeds of two groups, so that the seeds of their lanes do not overlap


@dataclass(slots=True)
class _Participant:
    """A group's part in a round."""

    seed: int
    remaining: Array  # episodes that each lane has still to play, i64 [L]
    is_reset: bool = False


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A finished round. `statistics` is f32 [episodes, K] in the specification's order."""

    id: int
    version: int
    statistics: Array


class EvaluationRound:
    """The present round of one task, if any. Owned by the service's loop; memory: the episodes requested."""

    def __init__(self) -> None:
        self.request: Evaluation | None = None  # the round that is running or waiting to start
        self.version = 0  # packed, of the frozen weights; 0 before the first round
        self._participants: dict[int, _Participant] = {}
        self._episodes: list[Array] = []
        self._done_id = 0

    @property
    def is_running(self) -> bool:
        """Whether a round is running, so that its groups may act."""
        return bool(self._participants)

    @property
    def progress(self) -> tuple[int, int]:
        """(episodes played, episodes requested) of the present round; (0, 0) without one."""
        if self.request is None:
            return 0, 0
        left = sum(int(member.remaining.sum()) for member in self._participants.values())
        return (self.request.episodes - left if self._participants else 0), self.request.episodes

    def ask(self, request: Evaluation | None) -> bool:
        """Take the evaluation that the learner requests now, or None; one that is finished already is not repeated.

        Returns: whether it is a new one.
        """
        if request is None or request.id == self._done_id:
            self._clear(None)
        elif self.request is None or request.id != self.request.id:
            self._clear(request)
            return True
        return False

    def wants_start(self, version: int) -> bool:
        """Whether a round is requested and not running, and these are the weights to play it with."""
        return self.request is not None and not self._participants and version == self.request.version

    def start(self, request: Evaluation, version: int, lanes: dict[int, int]) -> None:
        """Begin the requested round with these groups, `{session: lanes}`, on weights frozen at `version`."""
        self.version = version
        total = sum(lanes.values())
        share, extra = divmod(request.episodes, total)
        first = 0
        for index, (session, count) in enumerate(sorted(lanes.items())):
            quota = np.full(count, share, np.int64)
            quota[: max(0, min(count, extra - first))] += 1
            self._participants[session] = _Participant(request.seed + index * SEED_STRIDE, quota)
            first += count

    def reset_seed(self, session: int) -> int | None:
        """Return the seed to reset this group with at the first call in a round; None after that."""
        member = self._participants.get(session)
        if member is None or member.is_reset:
            return None
        member.is_reset = True
        return member.seed

    def may_act(self, session: int) -> bool:
        """Whether this group has still episodes to play."""
        member = self._participants.get(session)
        return member is not None and bool(member.remaining.any())

    def record(self, session: int, flags: Array, statistics: Array) -> FinishedRound | None:
        """Count the episodes that ended in this tick; return the finished round if they were the last.

        Args:
          statistics: f32 [ended lanes, K], in ascending order of lanes.
        """
        member = self._participants.get(session)
        if self.request is None or member is None or not member.is_reset:
            return None
        lanes = np.flatnonzero(flags & ENDED)
        counted = member.remaining[lanes] > 0
        member.remaining[lanes[counted]] -= 1
        if counted.any():
            self._episodes.append(statistics[counted])
        if any(other.remaining.any() for other in self._participants.values()):
            return None
        return self._finish(self.request.id)

    def lose(self, session: int) -> None:
        """Remove a group that has left; if it had still episodes to play, the round starts again."""
        if self.may_act(session):
            self._clear(self.request)
        else:
            self._participants.pop(session, None)

    def restart(self) -> None:
        """Discard the episodes played; the round waits to start again."""
        self._clear(self.request)

    def _finish(self, request_id: int) -> FinishedRound:
        result = FinishedRound(request_id, self.version, np.concatenate(self._episodes))
        self._done_id = result.id
        self._clear(None)
        return result

    def _clear(self, request: Evaluation | None) -> None:
        self.request, self.version = request, 0
        self._participants, self._episodes = {}, []
