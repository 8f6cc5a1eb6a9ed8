"""Decides when to take a snapshot, and as which kinds of checkpoint to save it. Pure: takes `now`, in seconds."""

from seedbed.learner_svc.run.checkpoint import Kind, Snapshot
from seedbed.learner_svc.run.run import Run
from seedbed.shared.protocol.messages import Evaluation


class CheckpointSchedule:
    """The schedule of a run's snapshots. Owned by the learner's loop; memory: one snapshot during an evaluation."""

    def __init__(self, run: Run, *, every_s: float, milestone_steps: int) -> None:
        self._run = run
        self._every_s, self._milestone_steps = every_s, milestone_steps
        self._save_at: float | None = None
        self._next_milestone = self._asked_milestone = 0
        self._measured_id = self._measured_version = 0  # of the newest evaluation
        self._candidate: Snapshot | None = None  # of the weights that it measures, once there is one
        self._is_asked = False
        self._owes_best = False  # an evaluation ended before the snapshot of its weights was taken

    def start(self, now: float) -> None:
        """Start the time between checkpoints, when there is a policy to save."""
        self._save_at = now + self._every_s
        self._next_milestone = self._asked_milestone = self._passed(self._run.counters.trained_steps) + 1

    def is_due(self, now: float) -> bool:
        """Whether to take a snapshot with the next update. True once for each reason."""
        evaluation = self._run.evaluation
        if evaluation is not None and evaluation.id != self._measured_id:
            self.measured(evaluation)
            self._is_asked = True
        if self._save_at is not None and now >= self._save_at:
            self._save_at, self._is_asked = now + self._every_s, True
        passed = self._passed(self._run.counters.trained_steps)
        if self._milestone_steps and passed >= self._asked_milestone:
            self._asked_milestone, self._is_asked = passed + 1, True
        due, self._is_asked = self._is_asked, False
        return due

    def measured(self, evaluation: Evaluation) -> None:
        """Note that this evaluation measures weights of which a snapshot comes without being asked for."""
        self._measured_id, self._measured_version = evaluation.id, evaluation.version
        self._candidate, self._owes_best = None, False

    def kinds(self, snapshot: Snapshot) -> list[Kind]:
        """Return the kinds of checkpoint to save a new snapshot as; it may also become the evaluation's candidate."""
        is_measured = snapshot.version == self._measured_version
        if self._run.evaluation is not None and self._candidate is None and is_measured:
            self._candidate = snapshot
        kinds: list[Kind] = ["latest"]
        if self._owes_best and is_measured:
            kinds.append("best")
            self._owes_best = False
        passed = self._passed(snapshot.trained_steps)
        if self._milestone_steps and passed >= self._next_milestone:
            kinds.append("milestone")
            self._next_milestone = passed + 1
        return kinds

    def best(self, evaluation_id: int) -> Snapshot | None:
        """Return the snapshot that this evaluation measured, if it is the best so far.

        None also if other weights were played than those requested.
        """
        candidate, self._candidate = self._candidate, None
        result = self._run.last_result
        if evaluation_id != self._measured_id or result is None or result.return_mean != self._run.best_return:
            return None
        if result.version != self._measured_version:
            return None
        self._owes_best = candidate is None
        return candidate

    def _passed(self, trained_steps: int) -> int:
        return trained_steps // self._milestone_steps if self._milestone_steps else 0
