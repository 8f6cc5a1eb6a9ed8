"""When snapshots are taken and as what they are kept."""

from seedbed.learner_svc.run.checkpoint import Snapshot
from seedbed.learner_svc.run.checkpoint_schedule import CheckpointSchedule
from seedbed.learner_svc.run.measure import EvaluationResult
from seedbed.learner_svc.run.run import Run
from seedbed.shared.runtime.config import EvalConfig, RunConfig


def a_run() -> Run:
    run = Run(RunConfig(), EvalConfig(every_s=1.0), epoch=1, patience_s=1.0)
    run.start(0.0)
    return run


def a_snapshot(step: int, *, trained_steps: int = 0) -> Snapshot:
    return Snapshot(version=step, step=step, trained_steps=trained_steps, arrays={}, meta={})


def evaluate(run: Run, mean: float, now: float, *, version: int = 1) -> int:
    assert run.evaluation is not None
    number = run.evaluation.id
    result = EvaluationResult(
        version=version, episodes=1, return_mean=mean, return_std=0.0, return_median=mean, return_min=mean,
        return_max=mean, length_mean=1.0,
    )  # fmt: skip
    assert run.evaluated(number, result, now)
    return number


def test_a_snapshot_is_due_once_per_interval() -> None:
    """Not before there is a policy."""
    schedule = CheckpointSchedule(a_run(), every_s=30.0, milestone_steps=0)
    assert not schedule.is_due(1000.0)
    schedule.start(0.0)
    assert [schedule.is_due(now) for now in (29.9, 30.0, 30.1, 59.9, 60.1)] == [False, True, False, False, True]


def test_milestones_are_kept_as_they_are_passed() -> None:
    """One for each so many trained steps, also after a restart."""
    run = a_run()
    run.counters.trained_steps = 150
    schedule = CheckpointSchedule(run, every_s=1.0, milestone_steps=100)
    schedule.start(0.0)
    assert schedule.kinds(a_snapshot(1, trained_steps=180)) == ["latest"]
    assert schedule.kinds(a_snapshot(2, trained_steps=420)) == ["latest", "milestone"]
    assert schedule.kinds(a_snapshot(3, trained_steps=440)) == ["latest"]


def test_a_snapshot_that_is_saved_late_is_no_milestone_of_later_steps() -> None:
    """The ledgers of other ranks may come when training is further on."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1.0, milestone_steps=100)
    schedule.start(0.0)
    run.counters.trained_steps = 110
    assert schedule.kinds(a_snapshot(1, trained_steps=90)) == ["latest"]
    assert schedule.kinds(a_snapshot(2, trained_steps=110)) == ["latest", "milestone"]


def test_milestones_do_not_wait_for_the_next_checkpoint() -> None:
    """A fast run passes many between two of them."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=100)
    schedule.start(0.0)
    kept = []
    for update in range(1, 51):
        run.counters.trained_steps = 16 * update
        snapshot = a_snapshot(update, trained_steps=16 * update)
        if schedule.is_due(0.5) and "milestone" in schedule.kinds(snapshot):
            kept.append(run.counters.trained_steps)
    assert kept == [112, 208, 304, 400, 512, 608, 704, 800]


def measure(run: Run, schedule: CheckpointSchedule, version: int, now: float) -> None:
    """Ask for an evaluation of the weights in a snapshot, which then comes."""
    schedule.measured(run.ask(version, now))
    schedule.kinds(a_snapshot(version))


def test_the_best_evaluation_keeps_the_weights_that_it_measured() -> None:
    """Those of its snapshot, not later ones; a worse result keeps nothing."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=0)
    schedule.start(0.0)
    kept = []
    for number, mean in enumerate((5.0, 4.0, 6.0)):
        now = 10.0 * (number + 1)
        measure(run, schedule, 10 * number, now)
        assert not schedule.is_due(now)
        schedule.kinds(a_snapshot(10 * number + 1))
        best = schedule.best(evaluate(run, mean, now + 1.0, version=10 * number))
        kept.append(None if best is None else best.step)
    assert kept == [0, None, 20]


def test_snapshots_of_other_updates_are_not_what_an_evaluation_measures() -> None:
    """One from before it that is saved late, and the next, both while it plays."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=0)
    schedule.measured(run.ask(7, 1.0))
    for version in (6, 7, 8):
        schedule.kinds(a_snapshot(version))
    best = schedule.best(evaluate(run, 5.0, 2.0, version=7))
    assert best is not None
    assert best.version == 7


def test_an_evaluation_that_ends_before_its_snapshot_is_saved_keeps_that_one() -> None:
    """Not another that comes before or after it."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=0)
    schedule.measured(run.ask(7, 1.0))
    assert schedule.best(evaluate(run, 5.0, 2.0, version=7)) is None
    kept = [schedule.kinds(a_snapshot(version)) for version in (6, 7, 8)]
    assert kept == [["latest"], ["latest", "best"], ["latest"]]


def test_a_result_of_other_weights_keeps_none() -> None:
    """An inference of an older version played newer ones than it was asked to."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=0)
    measure(run, schedule, 7, 1.0)
    assert schedule.best(evaluate(run, 5.0, 2.0, version=8)) is None
    assert schedule.kinds(a_snapshot(9)) == ["latest"]


def test_a_final_evaluation_that_is_faster_than_the_snapshot_waits_for_it() -> None:
    """The snapshot was asked for with the evaluation: it is kept as the best when it comes."""
    run = a_run()
    schedule = CheckpointSchedule(run, every_s=1000.0, milestone_steps=0)
    run.ask(1, 10.0)
    assert schedule.is_due(10.0)
    assert schedule.best(evaluate(run, 5.0, 11.0)) is None
    assert schedule.kinds(a_snapshot(1)) == ["latest", "best"]
    assert schedule.kinds(a_snapshot(2)) == ["latest"]
