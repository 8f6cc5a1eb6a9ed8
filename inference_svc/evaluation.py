"""One evaluation round: frozen weights, whole episodes from fresh resets, a quota for each lane.

A round takes the evaluation groups that are there when it starts. Each is reset once, with a seed of its own; every
lane's first `quota` episodes count, later ones do not, so that short episodes are not preferred. A group that is lost
in mid-round is missing its episodes: the round starts again with whoever is there.
"""

from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Evaluation
from seedbed.shared.protocol.rows import ENDED

SEED_STRIDE = 1_000_003  # between the groups of one evaluation, so that their lanes' seeds do not meet


@dataclass(slots=True)
class _Seat:
    """A group's part in a round."""

    seed: int
    remaining: Array  # episodes that each lane still owes, i64 [L]
    is_reset: bool = False


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """A finished round. `statistics` is f32 [episodes, K] in the specification's order."""

    id: int
    version: int
    statistics: Array


class EvaluationRound:
    """At most one round at a time. Owned by the service's loop; memory: the episodes asked for."""

    def __init__(self) -> None:
        self.request: Evaluation | None = None  # what is running or waited for
        self.version = 0  # pinned, packed; 0 until the weights are frozen
        self._seats: dict[int, _Seat] = {}
        self._episodes: list[Array] = []
        self._done_id = 0

    @property
    def is_running(self) -> bool:
        """Whether an evaluation is under way, so that its groups may act."""
        return bool(self._seats)

    @property
    def progress(self) -> tuple[int, int]:
        """(episodes played, episodes asked for) of the round that is running or waited for; (0, 0) without one."""
        if self.request is None:
            return 0, 0
        left = sum(int(seat.remaining.sum()) for seat in self._seats.values())
        return (self.request.episodes - left if self._seats else 0), self.request.episodes

    def ask(self, request: Evaluation | None) -> None:
        """The learner wants this evaluation now (or none); one that is finished already is not repeated."""
        if request is None or request.id == self._done_id:
            self._clear(None)
        elif self.request is None or request.id != self.request.id:
            self._clear(request)

    def wants_start(self, version: int) -> bool:
        """Whether a round is asked for, not running, and these are the weights that it is of."""
        return self.request is not None and not self._seats and version == self.request.version

    def start(self, request: Evaluation, version: int, lanes: dict[int, int]) -> None:
        """Begin what is asked for with these groups, `{session: lanes}`, on weights frozen at `version`."""
        self.version = version
        total = sum(lanes.values())
        share, extra = divmod(request.episodes, total)
        first = 0
        for index, (session, count) in enumerate(sorted(lanes.items())):
            quota = np.full(count, share, np.int64)
            quota[: max(0, min(count, extra - first))] += 1
            self._seats[session] = _Seat(request.seed + index * SEED_STRIDE, quota)
            first += count

    def reset_seed(self, session: int) -> int | None:
        """The seed to reset this group with, the first time that it is asked; None when it needs no reset."""
        seat = self._seats.get(session)
        if seat is None or seat.is_reset:
            return None
        seat.is_reset = True
        return seat.seed

    def may_act(self, session: int) -> bool:
        """Whether this group still owes episodes."""
        seat = self._seats.get(session)
        return seat is not None and bool(seat.remaining.any())

    def record(self, session: int, flags: Array, statistics: Array) -> PlayedRound | None:
        """Count the episodes that ended in this tick; the result when they were the last.

        `statistics` is f32 [ended lanes, K], lanes ascending.
        """
        seat = self._seats.get(session)
        if self.request is None or seat is None or not seat.is_reset:
            return None
        lanes = np.flatnonzero(flags & ENDED)
        counted = seat.remaining[lanes] > 0
        seat.remaining[lanes[counted]] -= 1
        if counted.any():
            self._episodes.append(statistics[counted])
        if any(other.remaining.any() for other in self._seats.values()):
            return None
        return self._finish(self.request.id)

    def lose(self, session: int) -> None:
        """A group is gone: if it still owed episodes, the round starts again."""
        if self.may_act(session):
            self._clear(self.request)
        else:
            self._seats.pop(session, None)

    def restart(self) -> None:
        """What was played is worth nothing any more: the round is still asked for, and not running."""
        self._clear(self.request)

    def _finish(self, request_id: int) -> PlayedRound:
        result = PlayedRound(request_id, self.version, np.concatenate(self._episodes))
        self._done_id = result.id
        self._clear(None)
        return result

    def _clear(self, request: Evaluation | None) -> None:
        self.request, self.version = request, 0
        self._seats, self._episodes = {}, []
