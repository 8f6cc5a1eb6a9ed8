"""When to take a snapshot, and as which kinds of checkpoint to keep it. Pure: takes `now`, in seconds."""

from seedbed.learner_svc.run.checkpoint import Kind, Snapshot
from seedbed.learner_svc.run.run import Run


class CheckpointSchedule:
    """Decides about snapshots. Owned by the learner's loop; memory: one snapshot while an evaluation is going on."""

    def __init__(self, run: Run, *, every_s: float, milestone_steps: int) -> None:
        self._run = run
        self._every_s, self._milestone_steps = every_s, milestone_steps
        self._save_at: float | None = None
        self._next_milestone = self._asked_milestone = 0
        self._measured_id = 0  # the evaluation that the candidate is for
        self._candidate: Snapshot | None = None
        self._is_asked = False
        self._owes_best = False  # an evaluation was faster than the snapshot of what it measured

    def start(self, now: float) -> None:
        """There is a policy: the clock of checkpoints runs from now, seconds."""
        self._save_at = now + self._every_s
        self._next_milestone = self._asked_milestone = self._passed() + 1

    def is_due(self, now: float) -> bool:
        """Whether a snapshot should be taken with the next update; says so once for each reason."""
        evaluation = self._run.evaluation
        if evaluation is not None and evaluation.id != self._measured_id:
            self._measured_id, self._candidate, self._is_asked = evaluation.id, None, True
            self._owes_best = False
        if self._save_at is not None and now >= self._save_at:
            self._save_at, self._is_asked = now + self._every_s, True
        if self._milestone_steps and self._passed() >= self._asked_milestone:
            self._asked_milestone, self._is_asked = self._passed() + 1, True
        due, self._is_asked = self._is_asked, False
        return due

    def measured(self, evaluation_id: int, snapshot: Snapshot) -> None:
        """This evaluation is of the very weights in this snapshot."""
        self._measured_id, self._candidate, self._owes_best = evaluation_id, snapshot, False

    def kinds(self, snapshot: Snapshot) -> list[Kind]:
        """As what to keep a snapshot that was just taken. It is also what an evaluation going on measures."""
        if self._run.evaluation is not None and self._candidate is None:
            self._candidate = snapshot
        kinds: list[Kind] = ["latest"]
        if self._owes_best:
            kinds.append("best")
            self._owes_best = False
        if self._milestone_steps and self._passed() >= self._next_milestone:
            kinds.append("milestone")
            self._next_milestone = self._passed() + 1
        return kinds

    def best(self, evaluation_id: int) -> Snapshot | None:
        """The snapshot that this evaluation measured, if no earlier one was better.

        None as well if other weights were played than those that were asked for.
        """
        candidate, self._candidate = self._candidate, None
        result = self._run.last_result
        if evaluation_id != self._measured_id or result is None or result.return_mean != self._run.best_return:
            return None
        if candidate is not None and candidate.version != result.version:
            return None
        self._owes_best = candidate is None
        return candidate

    def _passed(self) -> int:
        return self._run.counters.trained_steps // self._milestone_steps if self._milestone_steps else 0
