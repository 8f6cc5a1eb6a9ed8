"""Decides when evaluation groups may act: each task's round of whole episodes, all on one frozen version of weights.

| an evaluation group waits for | unblocked by |
|---|---|
| a round of its task | CREDIT that requests one, for one version of the weights |
| these weights, frozen once for all tasks | the compute thread; if the live ones are newer, the learner too |
| the end of the round, after its own quota | the other groups of its task |
"""

from collections.abc import Iterable, Sequence

from seedbed.inference_svc.evaluation import EvaluationRound, FinishedRound
from seedbed.inference_svc.group import Group
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Evaluation


class Evaluations:
    """The rounds of all tasks. Owned by the service's loop; memory: a round for each task, see `EvaluationRound`.

    The engine has one frozen copy, so a task that joins late plays the same version as the others.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, EvaluationRound] = {}
        self._frozen_version = 0  # packed
        self._is_freezing = False  # the compute thread was asked to freeze weights and has not answered

    @property
    def progress(self) -> tuple[int, int]:
        """(episodes played, episodes requested) of all tasks' present rounds together."""
        rounds = [item.progress for item in self._rounds.values()]
        return sum(played for played, _ in rounds), sum(asked for _, asked in rounds)

    def ask(self, task: str, request: Evaluation | None) -> bool:
        """Take the evaluation of a task that the learner requests now, or None. Returns: whether it is a new one."""
        return self._round(task).ask(request)

    def without_groups(self, groups: Iterable[Group]) -> dict[str, int]:
        """Return the requested episodes of each task that none of these groups plays."""
        played = {group.task for group in groups}
        asked = {task: item.request for task, item in self._rounds.items() if task not in played}
        return {task: request.episodes for task, request in asked.items() if request is not None}

    def wanted_version(self, groups: Iterable[Group]) -> int:
        """Return the version to freeze for a round that waits for it; 0 if there is none, or while freezing."""
        if self._is_freezing:
            return 0
        waiting = [self._round(task) for task in _by_task(groups)]
        requests = [item.request for item in waiting if item.request is not None and not item.is_running]
        newest = max(requests, key=lambda request: request.id, default=None)
        return 0 if newest is None or newest.version == self._frozen_version else newest.version

    def freezing(self) -> None:
        """Note that the compute thread was asked to freeze the wanted weights."""
        self._is_freezing = True

    def frozen(self, version: int) -> None:
        """Note the version of the weights that are frozen now; 0 for none."""
        self._frozen_version, self._is_freezing = version, False

    def forget_frozen(self) -> None:
        """Restart all rounds, because another policy was built and the frozen copy is gone."""
        self._frozen_version = 0
        for item in self._rounds.values():
            item.restart()

    def start(self, groups: Iterable[Group]) -> list[Group]:
        """Begin the rounds that wait for the frozen weights, and return their groups, which may act now."""
        started: list[Group] = []
        for task, members in _by_task(groups).items():
            item = self._round(task)
            request = item.request
            if request is None or not item.wants_start(self._frozen_version):
                continue
            for group in members:
                group.lanes.greedy = request.greedy
            item.start(request, self._frozen_version, {group.session.id: group.lanes.count for group in members})
            started += members
        return started

    def reset_seed(self, group: Group) -> int | None:
        """Return the seed to reset a group with at the first call in its round; None after that."""
        return self._of(group).reset_seed(group.session.id)

    def version(self, group: Group) -> int:
        """Return the packed version of the weights that a group's round is played with."""
        return self._of(group).version

    def may_act(self, group: Group) -> bool:
        """Whether a group has still episodes to play."""
        return self._of(group).may_act(group.session.id)

    def record(self, group: Group, statistics: Array) -> FinishedRound | None:
        """Count the episodes that ended in a group's newest tick; return its finished round if they were the last."""
        return self._of(group).record(group.session.id, group.flags, statistics)

    def lose(self, group: Group) -> None:
        """Remove a group that has left; a round in which it had still episodes to play starts again."""
        self._of(group).lose(group.session.id)

    def _of(self, group: Group) -> EvaluationRound:
        return self._round(group.task)

    def _round(self, task: str) -> EvaluationRound:
        return self._rounds.setdefault(task, EvaluationRound())


def _by_task(groups: Iterable[Group]) -> dict[str, Sequence[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.task, []).append(group)
    return dict(found)
