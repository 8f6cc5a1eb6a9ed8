"""A run's counters, evaluations and end, with numbers for time."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from seedbed.learner_svc.run.measure import RETURN_WINDOW, EvaluationResult
from seedbed.learner_svc.run.run import Counters, Run, is_used_up
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.messages import RunState, pack_version
from seedbed.shared.runtime.config import EvalConfig, RunConfig
from tests.support.finished_episodes import episodes

V = pack_version(1, 9)
EVALUATION = ("every_s", "every_steps", "max_share")


def a_run(*, epoch: int = 1, patience_s: float = 100.0, **settings: Any) -> Run:
    evaluation = EvalConfig(**{key: settings.pop(key) for key in EVALUATION if key in settings})
    run = Run(RunConfig(**settings), evaluation, epoch=epoch, patience_s=patience_s)
    run.start(0.0)
    return run


def a_result(mean: float) -> EvaluationResult:
    return EvaluationResult(
        version=V, episodes=10, return_mean=mean, return_std=0.0, return_median=mean, return_min=mean,
        return_max=mean, length_mean=1.0,
    )  # fmt: skip


def move_on(run: Run, now: float) -> None:
    """As the learner does after an update: time passes, and what is due is asked for."""
    run.poll(V, now, is_idle=False)
    if run.wants_evaluation():
        run.ask(V, now)


def answer(run: Run, mean: float, now: float) -> bool:
    assert run.evaluation is not None
    return run.evaluated(run.evaluation.id, a_result(mean), now)


def test_nothing_happens_before_there_is_a_policy() -> None:
    """The clock stands still until the first environment came."""
    run = Run(RunConfig(seconds=1.0), EvalConfig(), epoch=1, patience_s=1.0)
    run.poll(0, 100.0, is_idle=True)
    assert run.state == RunState.STARTING
    assert run.counters.seconds == 0.0


def test_a_run_ends_after_its_steps_with_an_evaluation() -> None:
    """TRAINING → FINISHING at the step limit, FINISHED with the result."""
    run = a_run(steps=100)
    run.trained(99, updates=1)
    run.poll(V, 1.0, is_idle=True)
    assert run.may_train
    run.trained(1, updates=1)
    run.poll(V, 2.0, is_idle=True)
    assert (run.state, run.may_train) == (RunState.FINISHING, False)
    assert run.evaluation is not None
    assert run.evaluation.version == V
    assert answer(run, 5.0, 3.0)
    assert (run.state, run.end_reason, run.evaluation) == (RunState.FINISHED, "steps", None)


def test_updates_under_way_run_out_before_the_final_evaluation() -> None:
    """The weights that are measured are the last ones."""
    run = a_run(steps=100)
    run.trained(100, updates=1)
    run.poll(V, 1.0, is_idle=False)
    assert (run.state, run.may_train, run.evaluation) == (RunState.TRAINING, False, None)
    run.poll(V + 1, 1.1, is_idle=True)
    assert run.evaluation is not None
    assert run.evaluation.version == V + 1


def test_a_run_ends_after_its_seconds() -> None:
    """Time counts while there is a policy, over restarts."""
    run = a_run(seconds=10.0)
    saved = run.to_json() | {"counters": Counters(seconds=8.0).to_json()}
    resumed = Run(RunConfig(seconds=10.0), EvalConfig(), epoch=2, patience_s=1.0)
    resumed.restore(saved)
    resumed.start(50.0)
    resumed.poll(V, 51.0, is_idle=True)
    assert resumed.state == RunState.TRAINING
    resumed.poll(V, 52.5, is_idle=True)
    assert (resumed.state, resumed.end_reason) == (RunState.FINISHING, "seconds")


def test_a_final_evaluation_that_nobody_plays_is_given_up() -> None:
    """A run without evaluation actors ends nevertheless, and says so."""
    run = a_run(steps=1, patience_s=30.0)
    run.trained(1, updates=1)
    run.poll(V, 1.0, is_idle=True)
    run.poll(V, 30.0, is_idle=True)
    assert run.state == RunState.FINISHING
    run.poll(V, 31.5, is_idle=True)
    assert (run.state, run.end_reason) == (RunState.FINISHED, "no_evaluation")


def test_the_final_evaluation_takes_no_time_of_training() -> None:
    """`run.seconds` is of training, and so are the rates of a run; the rest is counted apart."""
    run = a_run(seconds=10.0)
    run.poll(V, 11.0, is_idle=True)
    assert run.state == RunState.FINISHING
    run.poll(V, 40.0, is_idle=True)
    assert run.counters.seconds == pytest.approx(11.0)
    assert run.counters.evaluation_seconds == pytest.approx(29.0)


@pytest.mark.parametrize(("trained_s", "given_up_s"), [(1.0, 60.0), (100.0, 100.0), (1000.0, 300.0)])
def test_the_final_evaluation_may_take_as_long_as_training(trained_s: float, given_up_s: float) -> None:
    """A minute at least, and the patience that is set at most."""
    run = a_run(seconds=trained_s, patience_s=300.0)
    run.poll(V, trained_s, is_idle=True)
    run.poll(V, trained_s + given_up_s - 0.1, is_idle=True)
    assert run.state == RunState.FINISHING
    run.poll(V, trained_s + given_up_s + 0.1, is_idle=True)
    assert (run.state, run.end_reason) == (RunState.FINISHED, "no_evaluation")


def test_until_return_is_judged_by_a_full_evaluation() -> None:
    """A good training return stops training; too low a result goes on training, and it is not tried again at once."""
    run = a_run(until_return=100.0)
    run.acted(episodes([150.0] * (RETURN_WINDOW - 1)), steps=1, aborted=0)
    run.poll(V, 1.0, is_idle=True)
    assert run.may_train, "the window is not full yet"
    run.acted(episodes([150.0]), steps=1, aborted=0)
    run.poll(V, 2.0, is_idle=True)
    assert run.state == RunState.FINISHING
    assert answer(run, 90.0, 3.0)
    assert run.may_train
    run.poll(V, 8.0, is_idle=True)
    assert run.may_train, "the same weights would fall short again"
    run.trained(1, updates=1)
    run.poll(V, 7.9, is_idle=True)
    assert run.may_train, "an evaluation that was long ended just now"
    run.poll(V, 8.0, is_idle=True)
    assert run.state == RunState.FINISHING
    assert answer(run, 100.0, 9.0)
    assert (run.state, run.end_reason) == (RunState.FINISHED, "until_return")


def test_an_evaluation_on_the_way_may_suggest_the_end() -> None:
    """Its weights are not the last: they are measured again, with training stopped."""
    run = a_run(until_return=100.0, every_s=10.0)
    move_on(run, 10.0)
    assert run.may_train
    assert answer(run, 120.0, 12.0)
    run.poll(V, 12.1, is_idle=True)
    assert run.state == RunState.FINISHING
    assert answer(run, 80.0, 14.0)
    run.poll(V, 20.0, is_idle=True)
    assert run.may_train, "only a newer evaluation suggests it again"


def test_evaluations_follow_their_schedule_one_at_a_time() -> None:
    """The next is due so long after the last result."""
    run = a_run(every_s=10.0)
    move_on(run, 9.9)
    assert run.evaluation is None
    move_on(run, 10.0)
    first = run.evaluation
    move_on(run, 40.0)
    assert run.evaluation == first
    assert answer(run, 1.0, 10.5)
    move_on(run, 49.9)
    assert run.evaluation is None
    move_on(run, 50.0)
    assert run.evaluation is not None
    assert run.evaluation != first


def test_evaluations_by_the_clock_keep_to_their_share_of_the_time() -> None:
    """One that took eight seconds is followed by no other for four times as long."""
    run = a_run(every_s=10.0, max_share=0.2)
    move_on(run, 10.0)
    move_on(run, 18.0)
    assert answer(run, 1.0, 18.0)
    move_on(run, 49.9)
    assert run.evaluation is None
    move_on(run, 50.0)
    assert run.evaluation is not None


def test_evaluations_by_steps_wait_for_no_clock() -> None:
    """One for each so many trained steps, also where several are passed at once, and after a restart."""
    run = a_run(every_steps=100)
    asked = []
    for now in range(1, 9):
        run.trained(45, updates=1)
        move_on(run, float(now))
        if run.evaluation is not None:
            asked.append(run.counters.trained_steps)
            assert answer(run, 1.0, float(now))
        if now == 4:
            saved = json.loads(json.dumps(run.to_json()))
            run = a_run(every_steps=100)
            run.restore(saved)
            run.start(4.0)
    assert asked == [135, 225, 315]


def test_a_learner_that_is_often_restarted_evaluates_as_often() -> None:
    """The schedule goes by training time, which a checkpoint keeps."""
    run = a_run(every_s=10.0)
    for life in range(3):
        move_on(run, 4.0)
        assert run.evaluation is None or life == 2
        saved, run = json.loads(json.dumps(run.to_json())), a_run(every_s=10.0)
        run.restore(saved)
    assert run.wants_evaluation()


def test_a_result_nobody_waits_for_is_ignored() -> None:
    """A second inference's answer to the same request, or one from before a restart."""
    run = a_run(every_s=1.0)
    move_on(run, 1.0)
    assert run.evaluation is not None
    wanted = run.evaluation.id
    assert not run.evaluated(wanted - 1, a_result(1.0), 2.0)
    assert run.evaluated(wanted, a_result(1.0), 2.0)
    assert not run.evaluated(wanted, a_result(9.0), 3.0)
    assert run.last_result == a_result(1.0)


def test_ids_of_evaluations_differ_between_lives() -> None:
    """An inference that answered an earlier life's request answers this one's too."""
    ids = set()
    for epoch in (1, 2):
        run = a_run(epoch=epoch, every_s=1.0)
        move_on(run, 1.0)
        assert run.evaluation is not None
        ids.add(run.evaluation.id)
    assert len(ids) == 2


def test_the_training_return_is_that_of_the_last_hundred_episodes() -> None:
    """Older ones are forgotten, and a restart is not."""
    run = a_run()
    assert run.training.mean is None
    run.acted(episodes([0.0] * 50 + [2.0] * 100, length=3.0), steps=450, aborted=2)
    assert run.training.mean == 2.0
    resumed = Run(RunConfig(), EvalConfig(), epoch=2, patience_s=1.0)
    resumed.restore(run.to_json())
    assert resumed.training.mean == 2.0
    assert resumed.counters == Counters(env_steps=450, episodes=150, aborted_episodes=2)


def test_the_last_evaluation_outlives_a_restart_but_ends_no_run() -> None:
    """The summary tells it; whether the target is reached is measured anew."""
    run = a_run(every_s=1.0)
    move_on(run, 1.0)
    assert answer(run, 9.0, 2.0)
    resumed = Run(RunConfig(until_return=8.0), EvalConfig(every_s=0), epoch=2, patience_s=1.0)
    resumed.restore(json.loads(json.dumps(run.to_json())))
    assert resumed.last_result == a_result(9.0)
    resumed.start(10.0)
    resumed.poll(V, 100.0, is_idle=True)
    assert resumed.end_reason == ""


def test_a_try_at_a_goal_that_nobody_evaluates_ends_nothing() -> None:
    """Steps are left, and the goal is not shown to be reached: training goes on, and tries again later."""
    run = a_run(until_return=1.0, steps=1000, patience_s=30.0)
    run.acted(episodes([5.0] * RETURN_WINDOW), steps=500, aborted=0)
    run.trained(1, updates=1)
    run.poll(V, 6.0, is_idle=True)
    assert (run.state, run.end_reason) == (RunState.FINISHING, "until_return")
    run.poll(V, 37.0, is_idle=True)
    assert (run.state, run.end_reason, run.evaluation) == (RunState.TRAINING, "", None)
    run.trained(1, updates=1)
    run.poll(V, 60.0, is_idle=True)
    assert run.state == RunState.TRAINING
    run.poll(V, 80.0, is_idle=True)
    assert run.state == RunState.FINISHING


@pytest.mark.parametrize(
    ("settings", "reason", "used_up"),
    [
        ({"steps": 100}, "steps", True),
        ({"steps": 200}, "steps", False),
        ({}, "steps", False),
        ({"steps": 200, "seconds": 5.0}, "steps", True),
        ({"steps": 100}, "no_evaluation", True),
        ({"steps": 200, "until_return": 3.0}, "until_return", True),
        ({"steps": 200, "until_return": 6.0}, "until_return", False),
        ({"steps": 200, "until": "return >= 3.0"}, "until_return", True),
        ({"steps": 200}, "until_return", False),
        ({"steps": 100, "until_return": 6.0}, "until_return", True),
        ({"steps": 100}, "", False),
    ],
)
def test_a_finished_run_goes_on_only_under_a_longer_configuration(
    settings: dict[str, Any], reason: str, used_up: bool
) -> None:
    """Starting it again as it was says so and ends."""
    counters = Counters(trained_steps=100, seconds=10.0)
    assert is_used_up(RunConfig(**settings), counters, reason=reason, means={"return": 5.0}) is used_up


def test_a_statistic_of_the_environments_own_ends_a_run() -> None:
    """`run.until` is suggested by training episodes and judged by an evaluation, as `run.until_return` is."""
    run = a_run(until="crashes <= 0.1")
    run.adopt(["success", "crashes"])
    run.acted(episodes([0.0] * RETURN_WINDOW, success=[1.0] * RETURN_WINDOW, crashes=[0.0] * RETURN_WINDOW),
              steps=1, aborted=0)  # fmt: skip
    run.poll(V, 10.0, is_idle=True)
    assert (run.state, run.end_reason) == (RunState.FINISHING, "until")
    assert run.evaluation is not None
    run.evaluated(run.evaluation.id, replace(a_result(0.0), own={"success": 1.0, "crashes": 0.5}), 11.0)
    assert (run.state, run.end_reason) == (RunState.TRAINING, "")
    run.trained(1, updates=1)
    run.poll(V, 20.0, is_idle=True)
    assert run.evaluation is not None
    run.evaluated(run.evaluation.id, replace(a_result(0.0), own={"success": 1.0, "crashes": 0.05}), 21.0)
    assert (run.state, run.end_reason) == (RunState.FINISHED, "until")


def test_of_two_goals_the_first_that_is_reached_ends_a_run() -> None:
    """As steps and seconds do."""
    run = a_run(until_return=100.0, until="success >= 0.5", every_s=1.0)
    run.adopt(["success"])
    move_on(run, 1.0)
    assert run.evaluation is not None
    run.evaluated(run.evaluation.id, replace(a_result(3.0), own={"success": 0.6}), 2.0)
    run.trained(1, updates=1)
    run.poll(V, 10.0, is_idle=True)
    assert run.end_reason == "until"


def test_a_goal_that_no_environment_reports_is_an_error_that_names_those_there_are() -> None:
    """Before the first update."""
    with pytest.raises(ConfigError, match=r"run\.until: .*'successes'; it reports return, length, success"):
        a_run(until="successes >= 0.9").adopt(["success"])


def test_a_checkpoint_keeps_the_environments_own_statistics() -> None:
    """Episodes that gave no value count neither as 0 nor as an episode; a statistic that is no more is forgotten."""
    run = a_run()
    run.adopt(["success", "old"])
    run.acted(episodes([1.0, 2.0, 3.0], success=[1.0, math.nan, 0.0], old=[1.0] * 3), steps=3, aborted=0)
    assert run.means["success"] == 0.5
    saved = json.loads(json.dumps(run.to_json(), allow_nan=False))
    resumed = Run(RunConfig(), EvalConfig(), epoch=2, patience_s=1.0)
    resumed.restore(saved)
    resumed.adopt(["success", "new"])
    assert resumed.means == {"return": 2.0, "length": 1.0, "success": 0.5, "new": None}
    resumed.acted(episodes([4.0], success=[1.0], new=[7.0]), steps=1, aborted=0)
    assert (resumed.means["success"], resumed.means["new"]) == (pytest.approx(2 / 3), 7.0)


def test_a_deterministic_run_waits_for_evaluations_by_steps() -> None:
    """Training stands still for them, they alone may end it, and none is by the clock."""
    run = a_run(deterministic=True, until_return=10.0, every_s=1.0, every_steps=100)
    run.acted(episodes([50.0] * RETURN_WINDOW), steps=1, aborted=0)
    run.trained(99, updates=1)
    move_on(run, 60.0)
    assert (run.evaluation, run.end_reason) == (None, "")
    run.trained(1, updates=1)
    move_on(run, 61.0)
    assert run.waits_for_evaluation
    assert answer(run, 5.0, 62.0)
    assert not run.waits_for_evaluation
    run.trained(100, updates=1)
    move_on(run, 63.0)
    assert answer(run, 10.0, 64.0)
    run.poll(V, 65.0, is_idle=True)
    assert run.end_reason == "until_return"


def test_evaluations_by_the_clock_end_no_deterministic_run() -> None:
    """Training does not wait for them, so that the weights that they are of depend on the clock."""
    run = a_run(deterministic=True, until_return=10.0, every_s=1.0)
    run.trained(100, updates=1)
    move_on(run, 60.0)
    assert run.evaluation is not None
    assert not run.waits_for_evaluation
    assert answer(run, 50.0, 61.0)
    run.poll(V, 62.0, is_idle=True)
    assert run.may_train
