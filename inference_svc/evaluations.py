"""When evaluation groups may act: each task's round of whole episodes, all on one frozen version of the weights.

| an evaluation group waits for | unblocked by |
|---|---|
| a round of its task | CREDIT that asks for one, of one version of the weights |
| these weights, frozen once for all tasks | the compute thread: the live ones or, if newer, some from the learner |
| the end of the round, its own quota played | the other groups of its task |
"""

from collections.abc import Iterable, Sequence

from seedbed.inference_svc.evaluation import EvaluationRound, PlayedRound
from seedbed.inference_svc.group import Group
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Evaluation


class Evaluations:
    """The rounds of all tasks. Owned by the service's loop; memory: a round for each task, see `EvaluationRound`.

    A task that joins late plays the version that the others are playing: the engine has one frozen copy.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, EvaluationRound] = {}
        self._frozen_version = 0  # packed
        self._is_freezing = False  # while the compute thread is at it

    @property
    def progress(self) -> tuple[int, int]:
        """(episodes played, episodes asked for) of all tasks' rounds that are running or waited for."""
        rounds = [item.progress for item in self._rounds.values()]
        return sum(played for played, _ in rounds), sum(asked for _, asked in rounds)

    def ask(self, task: str, request: Evaluation | None) -> None:
        """The learner wants this evaluation of a task now, or none."""
        self._round(task).ask(request)

    def without_groups(self, groups: Iterable[Group]) -> dict[str, int]:
        """Episodes that are wanted of a task that none of these groups plays, by task."""
        played = {group.task for group in groups}
        asked = {task: item.request for task, item in self._rounds.items() if task not in played}
        return {task: request.episodes for task, request in asked.items() if request is not None}

    def wanted_version(self, groups: Iterable[Group]) -> int:
        """The version that has to be frozen now, for a round that waits for it; 0 if none, or while one is."""
        if self._is_freezing:
            return 0
        waiting = [self._round(task) for task in _by_task(groups)]
        requests = [item.request for item in waiting if item.request is not None and not item.is_running]
        newest = max(requests, key=lambda request: request.id, default=None)
        return 0 if newest is None or newest.version == self._frozen_version else newest.version

    def freezing(self) -> None:
        """The compute thread is asked to freeze what is wanted."""
        self._is_freezing = True

    def frozen(self, version: int) -> None:
        """The weights that are frozen now; 0: none."""
        self._frozen_version, self._is_freezing = version, False

    def forget_frozen(self) -> None:
        """The policy was built anew and the frozen copy is gone: running rounds start again."""
        self._frozen_version = 0
        for item in self._rounds.values():
            item.restart()

    def start(self, groups: Iterable[Group]) -> list[Group]:
        """Begin the rounds that the frozen weights are for; their groups, which may act now."""
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
        """The seed to reset a group with, the first time in its round; None when it needs no reset."""
        return self._of(group).reset_seed(group.session.id)

    def version(self, group: Group) -> int:
        """Of the frozen weights that a group's round is played with, packed."""
        return self._of(group).version

    def may_act(self, group: Group) -> bool:
        """Whether a group still owes episodes."""
        return self._of(group).may_act(group.session.id)

    def record(self, group: Group, statistics: Array) -> PlayedRound | None:
        """Count the episodes that ended in a group's newest tick; the task's result when they were the last."""
        return self._of(group).record(group.session.id, group.flags, statistics)

    def lose(self, group: Group) -> None:
        """A group is gone: a round in which it owed episodes starts again."""
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
