"""Shares the lanes of a batch among tasks in proportion to their weights, by start-time fair queueing.

Every lane that a task gets advances its virtual time by 1 / weight; the next lane goes to the task with the smallest
virtual time among those that have data. A task without data blocks no other: the others share its turns by their
weights. Once it has data again, it gets back what it missed of the last `catch_up_lanes`. Deterministic: ties go in the
order of the weights. Source: Goyal, Vin and Cheng 1996, start-time fair queueing; Waldspurger 1995, strides.
"""

import heapq
from collections.abc import Mapping


class FairShare:
    """The virtual times of all tasks. Owned by the learner's loop; memory: a number for each task.

    Args:
      weights: by task, summing to 1.
      catch_up_lanes: how much of what a task missed it gets back, in lanes of all tasks together.
    """

    def __init__(self, weights: Mapping[str, float], catch_up_lanes: int) -> None:
        self._strides = {task: 1.0 / weight for task, weight in weights.items()}
        self._order = {task: index for index, task in enumerate(weights)}
        self._pass = dict.fromkeys(weights, 0.0)
        self._now = 0.0  # virtual time of the last lane given
        self._catch_up = float(catch_up_lanes)

    def share_out(self, waiting: Mapping[str, int], lanes: int) -> dict[str, int]:
        """Return how many of the next `lanes` each task gets, at most the number that it has `waiting`."""
        earliest = self._now - self._catch_up
        turns = [(max(self._pass[task], earliest), self._order[task], task) for task, n in waiting.items() if n > 0]
        if len(turns) == 1:  # the usual case: only one task has data
            return self._give_alone(turns[0], min(lanes, waiting[turns[0][2]]))
        heapq.heapify(turns)
        given: dict[str, int] = {}
        for _ in range(lanes):
            if not turns:
                break
            at, order, task = turns[0]
            self._now = max(self._now, at)
            self._pass[task] = at + self._strides[task]
            given[task] = given.get(task, 0) + 1
            if given[task] < waiting[task]:
                heapq.heapreplace(turns, (self._pass[task], order, task))
            else:
                heapq.heappop(turns)
        return given

    def _give_alone(self, turn: tuple[float, int, str], lanes: int) -> dict[str, int]:
        at, _, task = turn
        self._now = max(self._now, at + (lanes - 1) * self._strides[task])
        self._pass[task] = at + lanes * self._strides[task]
        return {task: lanes}
