"""The course of a run: its counters, when to evaluate, and when to stop. Pure: takes `now`, in seconds.

| state | training groups | left when |
|---|---|---|
| STARTING | none | the first environment has sent its specification |
| TRAINING | act and are trained on | steps or seconds are used up, or a goal seems reached |
| FINISHING | held; the final weights are evaluated | the result is there; if it misses the goal: TRAINING again |
| FINISHED | held | never |

The goals, `run.until_return` and `run.until`, are checked by a full evaluation of the weights that the run would end
with, so training stops for it. It is tried when the means of training episodes, or an evaluation during training, reach
a goal. With several tasks, these are means over the tasks, once each has a result. In a deterministic
run (`run.deterministic`) only evaluations by `eval.every_steps` can reach a goal, and training waits for their results.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from seedbed.learner_svc.algorithms.lag import NUM_LAG_BUCKETS
from seedbed.learner_svc.run.measure import EvaluationResult, Returns
from seedbed.learner_svc.run.tasks import TaskBook
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Evaluation, RunState
from seedbed.shared.protocol.statistics import GIVEN, Means
from seedbed.shared.runtime.config import EvalConfig, RunConfig
from seedbed.shared.scores.scale import ScoreScale

MIN_PATIENCE_S = 60.0  # least time for the final evaluation, however short the training was
GOALS = ("until_return", "until")  # reasons for the end of a run that has reached what it was asked for
MIN_TRY_S = 5.0  # least time between two attempts at a goal
EVALUATION_SHIFT = 20  # an evaluation's id holds the learner epoch above this, so ids never repeat


@dataclass(slots=True)
class Counters:
    """Totals of a run over all restarts; kept in every checkpoint."""

    updates: int = 0
    trained_steps: int = 0  # valid transitions trained on
    env_steps: int = 0  # valid transitions acted in training
    episodes: int = 0  # finished, in training
    aborted_episodes: int = 0
    dropped_steps: int = 0  # valid transitions that were too old to train on
    lost_epoch_steps: int = 0  # acted by weights that were lost with an earlier learner
    expired_unrolls: int = 0  # lane-unrolls whose transitions were all too old to train on
    lag_steps: float = 0.0  # policy lag, summed over the trained transitions
    lag_max: float = 0.0  # of any trained transition
    lag_histogram: list[int] = field(default_factory=lambda: [0] * NUM_LAG_BUCKETS)  # of all transitions
    lag_sum: int = 0  # over the same transitions
    seconds: float = 0.0  # of training; only final evaluations interrupt it
    evaluation_seconds: float = 0.0  # for which training was held for final evaluations

    @property
    def policy_lag_mean(self) -> float | None:
        """Mean policy lag of all trained transitions, updates."""
        return self.lag_steps / self.trained_steps if self.trained_steps else None

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return asdict(self)


class Run:
    """Decides state, evaluations and the end. Owned by the learner's loop; memory: the last 100 episodes' returns.

    Large because all that decides when a run evaluates and ends is here, with its clocks and counters.
    """

    def __init__(
        self, run: RunConfig, evaluation: EvalConfig, *, epoch: int, patience_s: float, tasks: TaskBook | None = None,
        scale: ScoreScale | None = None,
    ) -> None:  # fmt: skip
        """`scale`: of the normalised scores of a run with one environment; with several, each task has its own."""
        self.counters = Counters()
        self.tasks = tasks or TaskBook({}, evaluation)
        self.scale = None if self.tasks.is_multi_task else scale
        self.training = Returns()
        self.state = RunState.STARTING
        self.evaluation: Evaluation | None = None  # requested at present
        self.last_result: EvaluationResult | None = None
        self.num_evaluations = 0
        self.best_return: float | None = None
        self.end_reason = ""
        self._run, self._eval, self._goals = run, evaluation, run.goals
        self._next_id = (epoch << EVALUATION_SHIFT) + 1
        self._patience_s = patience_s
        self._clock = 0.0  # time up to which `seconds` are counted; set when training begins
        self._asked_at = 0.0
        self._evaluated_at = 0.0
        self._evaluated_s = 0.0  # `seconds` when the last evaluation ended
        self._evaluation_s = 0.0  # how long the last evaluation took
        self._evaluated_passed = 0  # `_passed_steps` when the last evaluation was requested
        self._tried_at = -math.inf
        self._tried_updates = -1

    def restore(self, meta: dict[str, Any]) -> None:
        """Restore what `to_json` returned, before `start`."""
        self.counters = Counters(**meta["counters"])
        self.training.restore(meta)
        self.best_return = meta["best_return"]
        self._evaluated_s = meta.get("evaluated_s", self.counters.seconds)
        self._evaluated_passed = self._passed_steps()
        last = meta.get("last_result")
        self.last_result = None if last is None else EvaluationResult(**last)
        self.tasks.restore(meta.get("tasks", {}))

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the run, for `restore`."""
        return {
            "counters": self.counters.to_json(),
            **self.training.to_json(),
            "best_return": self.best_return,
            "evaluated_s": self._evaluated_s,
            "last_result": None if self.last_result is None else asdict(self.last_result),
            "tasks": self.tasks.to_json(),
        }

    def beat(self, return_mean: float | None) -> None:
        """Note the mean return of an evaluation, which a later one must reach to be the best."""
        if return_mean is not None:
            self.best_return = max(return_mean, -math.inf if self.best_return is None else self.best_return)

    @property
    def means(self) -> Means:
        """Mean of each statistic over the last training episodes; with tasks, over their means once all have one."""
        return self.tasks.means if self.tasks.is_multi_task else self.training.means

    @property
    def return_mean(self) -> float | None:
        """Mean return of the last training episodes; with tasks, the mean of their means."""
        return self.means["return"]

    @property
    def normalised_figures(self) -> dict[str, float | int | None]:
        """The columns of the last evaluation's normalised score, or of those of all tasks; none without a scale."""
        if self.tasks.is_multi_task:
            return self.tasks.normalised_figures()
        if self.scale is None or self.last_result is None:
            return {}
        return {columns.EVAL_NORMALISED.name: self.scale.normalise(self.last_result.return_mean)}

    @property
    def may_train(self) -> bool:
        """Whether batches are trained on. False as soon as the end is decided; updates under way are completed."""
        return self.state == RunState.TRAINING and not self.end_reason

    def adopt(self, statistics: Sequence[str]) -> None:
        """Set the environments' own statistics. Raises: ConfigError if `run.until` names another."""
        known = (*GIVEN, *statistics)
        for reason, goal in self._goals.items():
            if goal.statistic not in known:
                raise ConfigError(
                    f"run.{reason}: the environment reports no statistic {goal.statistic!r}; it reports "
                    f"{', '.join(known)}"
                )
        self.training.adopt(statistics)
        self.tasks.adopt(statistics)

    def start(self, now: float) -> None:
        """Begin training and its clock, when there is a policy."""
        self.state = RunState.TRAINING
        self._clock = self._evaluated_at = now

    def trained(
        self,
        valid_steps: int,
        *,
        updates: int,
        dropped_steps: int = 0,
        lost_epoch_steps: int = 0,
        expired_unrolls: int = 0,
        lag_mean: float = 0.0,
        lag_max: float = 0.0,
        lag_histogram: Sequence[int] = (),
        lag_sum: int = 0,
    ) -> None:
        """Count the updates on one batch; `lag_mean` and `lag_max` are of its trained transitions."""
        self.counters.updates += updates
        self.counters.trained_steps += valid_steps
        self.counters.dropped_steps += dropped_steps
        self.counters.lost_epoch_steps += lost_epoch_steps
        self.counters.expired_unrolls += expired_unrolls
        self.counters.lag_steps += lag_mean * valid_steps
        self.counters.lag_max = max(self.counters.lag_max, lag_max)
        if lag_histogram:
            now = zip(self.counters.lag_histogram, lag_histogram, strict=True)
            self.counters.lag_histogram = [before + more for before, more in now]  # a new list: /metrics reads it
            self.counters.lag_sum += lag_sum

    def acted(self, statistics: Array, *, steps: int, aborted: int, task: str = "") -> None:
        """Count an EPISODES message of training groups: statistics f32 [N, K] of the episodes that ended."""
        self.tasks.acted(task, statistics, steps=steps, aborted=aborted)
        self.training.add(statistics)
        self.counters.episodes += len(statistics)
        self.counters.env_steps += steps
        self.counters.aborted_episodes += aborted

    def poll(self, version: int, now: float, *, is_idle: bool) -> None:
        """Advance the state of the run as far as time and counters require.

        Args:
          version: packed version of the newest published weights.
          is_idle: no update is under way and the newest weights are published: they may be the final ones.
        """
        if self.state in (RunState.STARTING, RunState.FINISHED):
            return
        passed_s, self._clock = now - self._clock, now
        if self.state == RunState.FINISHING:
            self.counters.evaluation_seconds += passed_s
            if now - self._asked_at > self._final_patience_s:
                if self.end_reason in self._goals:  # nothing has ended: steps may be left
                    self._train_on(now + self._final_patience_s)
                else:
                    self._finish("no_evaluation")
            return
        self.counters.seconds += passed_s
        self.end_reason = self.end_reason or self._find_end(now)
        if self.end_reason and is_idle:
            self.state, self._tried_at = RunState.FINISHING, now
            self.ask(version, now)

    @property
    def waits_for_evaluation(self) -> bool:
        """Whether training stands still during the present evaluation, whose result may end a deterministic run."""
        return self.evaluation is not None and self._run.deterministic and self._eval.every_steps > 0

    def wants_evaluation(self) -> bool:
        """Whether an evaluation during training is due; if so, call `ask` with the version of weights kept for it."""
        if not self.may_train or self.evaluation is not None:
            return False
        if self._run.deterministic and self._eval.every_steps:  # none by the clock beside them
            return self._passed_steps() > self._evaluated_passed
        pause_s = max(self._eval.every_s, self._evaluation_s * (1 / self._eval.max_share - 1))
        is_time = bool(self._eval.every_s) and self.counters.seconds - self._evaluated_s >= pause_s
        return is_time or (bool(self._eval.every_steps) and self._passed_steps() > self._evaluated_passed)

    def _passed_steps(self) -> int:
        """Return how many times `eval.every_steps` have been trained."""
        return self.counters.trained_steps // self._eval.every_steps if self._eval.every_steps else 0

    def evaluated(
        self, evaluation_id: int, result: EvaluationResult, now: float, *, task: str = ""
    ) -> EvaluationResult | None:
        """Take a result. Returns: the result over all tasks if it completes the requested evaluation, else None."""
        if self.evaluation is None or evaluation_id != self.evaluation.id:
            return None
        if self.tasks.is_multi_task:
            combined = self.tasks.evaluated(task, evaluation_id, result)
            if combined is None:  # other tasks are still playing
                return None
            result = combined
        self.evaluation = None
        self.last_result = result
        self.num_evaluations += 1
        self._evaluated_at, self._evaluated_s = now, self.counters.seconds
        self._evaluation_s = now - self._asked_at
        self.beat(result.return_mean)
        if self.state != RunState.FINISHING:
            return result
        if self.end_reason not in self._goals:
            self._finish(self.end_reason)
        elif reached := self._reached(result.means):
            self._finish(reached)
        else:
            self._train_on(now)
        return result

    def _train_on(self, tried_at: float) -> None:
        """Go on after a goal was not shown to be reached; the next attempt is `MIN_TRY_S` after this time at least."""
        self.state, self.end_reason, self.evaluation, self._tried_at = RunState.TRAINING, "", None, tried_at
        self._tried_updates = self.counters.updates

    def final_evaluation_wait(self, now: float) -> tuple[float, float] | None:
        """Return (seconds waited for the final evaluation, seconds that it may take); None if there is none."""
        if self.state != RunState.FINISHING:
            return None
        return now - self._asked_at, self._final_patience_s

    @property
    def _final_patience_s(self) -> float:
        """How long the final evaluation may take: no longer than training, unless it decides about a goal."""
        if self.end_reason not in ("steps", "seconds"):
            return self._patience_s
        return min(self._patience_s, max(MIN_PATIENCE_S, self.counters.seconds))

    def _find_end(self, now: float) -> str:
        if self._run.steps and self.counters.trained_steps >= self._run.steps:
            return "steps"
        if self._run.seconds and self.counters.seconds >= self._run.seconds:
            return "seconds"
        if not self._goals or now - self._tried_at < MIN_TRY_S or self.counters.updates == self._tried_updates:
            return ""  # the same weights are not tried again
        is_full = self.tasks.have_returns if self.tasks.is_multi_task else self.training.is_full
        if self._run.deterministic:  # episodes are reported by the clock, and so are evaluations without every_steps
            if not self._eval.every_steps:
                return ""
            is_full = False
        result = self.last_result if self.num_evaluations else None  # only of this process
        evaluated = result.means if result is not None and self._evaluated_at > self._tried_at else {}
        return (self._reached(self.means) if is_full else "") or self._reached(evaluated)

    def _reached(self, means: Means) -> str:
        """Return the first goal that these means reach; empty if none."""
        return next((reason for reason, goal in self._goals.items() if goal.holds(means)), "")

    def ask(self, version: int, now: float) -> Evaluation:
        """Request an evaluation of the weights of this packed version, while no other is under way."""
        self._evaluated_passed = self._passed_steps()
        self.evaluation = evaluation = Evaluation(
            id=self._next_id, version=version, episodes=self._eval.episodes, seed=self._eval.seed,
            greedy=self._eval.greedy,
        )  # fmt: skip
        self._next_id += 1
        self._asked_at = now
        return evaluation

    def _finish(self, reason: str) -> None:
        self.state, self.end_reason, self.evaluation = RunState.FINISHED, reason, None


def is_used_up(run: RunConfig, counters: Counters, *, reason: str, means: Means) -> bool:
    """Whether a run that ended for `reason` has nothing left to do under this configuration.

    `means`: of its last evaluation.
    """
    if not reason:
        return False
    steps_left = not run.steps or counters.trained_steps < run.steps
    seconds_left = not run.seconds or counters.seconds < run.seconds
    if not (steps_left and seconds_left):
        return True
    return reason in GOALS and any(goal.holds(means) for goal in run.goals.values())
