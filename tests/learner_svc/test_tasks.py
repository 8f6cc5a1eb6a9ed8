"""What a run counts for each of its tasks."""

import math
from dataclasses import replace

import pytest

from seedbed.learner_svc.run.measure import RETURN_WINDOW, EvaluationResult
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.run.tasks import TaskBook, lane_tasks, task_environments
from seedbed.shared.protocol.messages import RunState, pack_version
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RunConfig
from seedbed.shared.runtime.tasks import TaskConfig
from tests.support.finished_episodes import episodes

V = pack_version(1, 3)


def a_task(env_id: str = "e", **settings: float) -> TaskConfig:
    return TaskConfig(env=EnvConfig(id=env_id), **settings)


def a_book(**scores: float) -> TaskBook:
    return TaskBook({"easy": a_task("E", weight=3.0, **scores), "hard": a_task("H", **scores)}, EvalConfig())


def a_result(mean: float, *, episodes: int = 10, version: int = V) -> EvaluationResult:
    return EvaluationResult(
        version=version, episodes=episodes, return_mean=mean, return_std=0.0, return_median=mean, return_min=mean,
        return_max=mean, length_mean=4.0,
    )  # fmt: skip


def test_episodes_and_steps_are_counted_by_task() -> None:
    """The mean over tasks is known once each has an episode, however many one has."""
    book = a_book()
    book.acted("easy", episodes([1.0] * 30, length=5.0), steps=150, aborted=1)
    assert book.means["return"] is None
    book.acted("hard", episodes([4.0], length=9.0), steps=9, aborted=0)
    assert book.means["return"] == 2.5
    summary = book.summary()
    assert (summary["easy"]["env_steps"], summary["easy"]["episodes"], summary["easy"]["aborted_episodes"]) == (
        150,
        30,
        1,
    )
    assert (summary["hard"]["env_steps"], summary["hard"]["episode_return_mean"]) == (9, 4.0)


def test_the_realised_share_is_that_of_the_lanes_trained_on() -> None:
    """Beside the weight that was asked for, over the whole run."""
    book = a_book()
    assert all(math.isnan(share) for share in book.shares().values())
    book.trained("easy", lanes=3, steps=6)
    book.trained("hard", lanes=1, steps=4)
    assert book.shares() == {"easy": 0.75, "hard": 0.25}
    assert (book.records["easy"].trained_steps, book.records["hard"].trained_steps) == (6, 4)
    assert book.row()["share/easy"] == 0.75
    book.trained("hard", lanes=4, steps=4)
    row = book.row()
    assert (row["share/easy"], row["share/hard"]) == (0.375, 0.625)
    summary = book.summary()["easy"]
    assert (summary["weight"], summary["share"], summary["env_id"]) == (0.75, 0.375, "E")


def test_an_evaluation_is_whole_when_every_task_has_played() -> None:
    """One figure for each task, their mean for the run; what comes twice or from nobody changes nothing."""
    book = a_book()
    assert book.evaluated("hard", 7, a_result(2.0)) is None
    assert book.missing() == ["easy"]
    assert book.evaluated("hard", 7, a_result(99.0)) is None
    assert book.evaluated("other", 7, a_result(99.0)) is None
    whole = book.evaluated("easy", 7, a_result(6.0, episodes=30))
    assert whole is not None
    assert (whole.return_mean, whole.return_min, whole.return_max, whole.return_median) == (4.0, 2.0, 6.0, 4.0)
    assert (whole.return_std, whole.episodes, whole.version) == (2.0, 40, V)
    row = book.row()
    assert (row["eval_return_mean/easy"], row["eval_return_mean/hard"]) == (6.0, 2.0)
    assert book.row()["eval_return_mean/easy"] is None, "told once"
    assert book.evaluated("easy", 8, a_result(1.0)) is None, "the next one begins with nobody"


def test_scores_are_normalised_where_all_tasks_have_a_scale() -> None:
    """0 is random play, 1 a person; the capped mean counts nobody for more than a person."""
    book = a_book(random_score=0.0, human_score=4.0)
    book.evaluated("hard", 1, a_result(2.0))
    assert book.normalised_figures() == {}
    book.evaluated("easy", 1, a_result(8.0))
    figures = book.normalised_figures()
    assert (figures["eval_normalised_mean"], figures["eval_normalised_median"]) == (1.25, 1.25)
    assert figures["eval_normalised_capped_mean"] == 0.75
    assert (book.row()["eval_normalised/easy"], book.summary()["hard"]["eval_normalised"]) == (2.0, 0.5)
    assert book.summary()["hard"]["score_scale"] == {"random": 0.0, "human": 4.0, "source": ""}

    mixed = TaskBook({"a": a_task(random_score=0.0, human_score=1.0), "b": a_task()}, EvalConfig())
    mixed.evaluated("a", 1, a_result(0.5))
    mixed.evaluated("b", 1, a_result(0.5))
    assert mixed.row()["eval_normalised/a"] == 0.5
    assert mixed.normalised_figures() == {}


def test_published_scores_need_not_be_given() -> None:
    """Two games by their ids; 1 is a person."""
    book = TaskBook({"pong": a_task("ALE/Pong-v5"), "breakout": a_task("ALE/Breakout-v5")}, EvalConfig())
    book.evaluated("pong", 1, a_result(14.6))
    book.evaluated("breakout", 1, a_result(59.3))
    figures = book.normalised_figures()
    assert figures["eval_normalised_mean"] == pytest.approx(1.5)
    assert figures["eval_normalised_capped_mean"] == pytest.approx(1.0)
    assert "arXiv" in book.summary()["pong"]["score_scale"]["source"]


def test_a_book_goes_on_from_its_checkpoint() -> None:
    """A task that is new begins at zero, one that was dropped is forgotten."""
    book = a_book()
    book.acted("easy", episodes([1.0], length=5.0), steps=5, aborted=0)
    book.trained("easy", lanes=2, steps=6)
    resumed = TaskBook({"easy": a_task(), "new": a_task()}, EvalConfig())
    resumed.restore(book.to_json())
    assert resumed.records["easy"].training.mean == 1.0
    assert (resumed.records["easy"].trained_steps, resumed.records["new"].trained_steps) == (6, 0)
    assert resumed.row()["share/easy"] == 1.0


def test_until_return_judges_the_mean_over_the_tasks() -> None:
    """One task's success is not enough, and one that has hardly begun does not count as played."""
    book = a_book()
    run = Run(RunConfig(until_return=5.0), EvalConfig(), epoch=1, patience_s=100.0, tasks=book)
    run.start(0.0)
    run.trained(1, updates=1)
    run.acted(episodes([9.0] * RETURN_WINDOW), steps=1, aborted=0, task="easy")
    run.acted(episodes([9.0]), steps=1, aborted=0, task="hard")
    run.poll(V, 10.0, is_idle=True)
    assert run.state == RunState.TRAINING
    run.acted(episodes([2.0] * RETURN_WINDOW), steps=1, aborted=0, task="hard")
    assert run.return_mean == 5.5
    run.poll(V, 11.0, is_idle=True)
    assert run.state == RunState.FINISHING
    assert run.evaluation is not None
    number = run.evaluation.id
    assert not run.evaluated(number, a_result(9.0), 12.0, task="easy")
    assert run.state == RunState.FINISHING
    assert run.evaluated(number, a_result(2.0), 13.0, task="hard")
    assert (run.state, run.end_reason) == (RunState.FINISHED, "until_return")
    assert run.last_result is not None
    assert run.last_result.return_mean == 5.5
    assert run.best_return == 5.5


def test_every_lane_of_a_batch_has_the_number_of_its_task() -> None:
    """In the order of the batch's lanes and of the file's tasks; none in a run without tasks."""
    numbers = lane_tasks(["a", "b"], [("b", 1), ("a", 2), ("b", 1)])
    assert numbers is not None
    assert numbers.tolist() == [1, 0, 0, 1]
    assert numbers.dtype == "int64"
    assert lane_tasks([], [("", 3)]) is None


def test_a_run_with_one_environment_has_an_empty_book() -> None:
    """No columns, no summary, nothing counted."""
    book = TaskBook({}, EvalConfig())
    book.acted("", episodes([1.0]), steps=1, aborted=0)
    book.trained("", lanes=3, steps=3)
    assert not book.is_multi_task
    assert (book.row(), book.summary(), book.to_json()) == ({}, {}, {})


def test_every_task_tells_inference_what_its_environments_must_be() -> None:
    """Name, id and settings, in the order of the file."""
    first, second = task_environments({"x": a_task("E"), "y": a_task("ALE/Pong-v5")})
    assert (first.name, first.env_id, second.name) == ("x", "E", "y")
    assert dict(second.settings)["frame_skip"] == "4"
    assert "frame_skip" not in dict(first.settings)


@pytest.mark.parametrize("version", [V, pack_version(1, 2)])
def test_results_of_two_versions_count_as_the_older(version: int) -> None:
    """Several inference services may freeze different ones."""
    book = a_book()
    book.evaluated("easy", 1, a_result(1.0))
    whole = book.evaluated("hard", 1, a_result(1.0, version=version))
    assert whole is not None
    assert whole.version == version


def test_each_task_has_columns_of_the_environments_own_statistics() -> None:
    """Training's in every row, an evaluation's in the row after it; the run's are means over the tasks."""
    book = a_book()
    book.adopt(["success"])
    book.acted("easy", episodes([1.0, 1.0], success=[1.0, 0.0]), steps=2, aborted=0)
    row = book.row()
    assert (row["episode_success_mean/easy"], row["episode_success_mean/hard"]) == (0.5, None)
    assert (row["episode_success_mean"], row["eval_success_mean/easy"]) == (None, None)
    book.acted("hard", episodes([1.0], success=[1.0]), steps=1, aborted=0)
    assert book.evaluated("easy", 7, replace(a_result(1.0), own={"success": 0.25})) is None
    whole = book.evaluated("hard", 7, replace(a_result(1.0), own={"success": 0.75}))
    assert whole is not None
    assert whole.own == {"success": 0.5}
    row = book.row()
    assert (row["episode_success_mean"], row["eval_success_mean/easy"], row["eval_success_mean/hard"]) == (
        0.75, 0.25, 0.75,
    )  # fmt: skip
    assert book.row()["eval_success_mean/easy"] is None
    summary = book.summary()
    assert (summary["easy"]["eval_success_mean"], summary["hard"]["episode_success_mean"]) == (0.25, 1.0)
