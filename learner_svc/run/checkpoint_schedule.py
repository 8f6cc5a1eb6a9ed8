"""Decides when to take a snapshot, and as which kinds of checkpoint to save it. Pure: takes `now`, in seconds."""

from seedbed.learner_svc.run.checkpoint import Kind, Snapshot
from seedbed.learner_svc.run.run import Run


class CheckpointSchedule:
    """The schedule of a run's snapshots. Owned by the learner's loop; memory: one snapshot during an evaluation."""

    def __init__(self, run: Run, *, every_s: float, milestone_steps: int) -> None:
        self._run = run
        self._every_s, self._milestone_steps = every_s, milestone_steps
        self._save_at: float | None = None
        self._next_milestone = self._asked_milestone = 0
        self._measured_id = 0  # id of the evaluation that measures the candidate
        self._candidate: Snapshot | None = None
        self._is_asked = False
        self._owes_best = False  # an evaluation ended before the snapshot of its weights was taken

    def start(self, now: float) -> None:
        """Start the time between checkpoints, when there is a policy to save."""
        self._save_at = now + self._every_s
        self._next_milestone = self._asked_milestone = self._passed() + 1

    def is_due(self, now: float) -> bool:
        """Whether to take a snapshot with the next update. True once for each reason."""
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
        """Note that this evaluation measures the weights of this snapshot."""
        self._measured_id, self._candidate, self._owes_best = evaluation_id, snapshot, False

    def kinds(self, snapshot: Snapshot) -> list[Kind]:
        """Return the kinds of checkpoint to save a new snapshot as; it may also become the evaluation's candidate."""
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
        """Return the snapshot that this evaluation measured, if it is the best so far.

        None also if other weights were played than those requested.
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
