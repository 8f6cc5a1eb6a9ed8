"""Evaluation rounds."""

import numpy as np

from seedbed.inference_svc.evaluation import EvaluationRound
from seedbed.inference_svc.evaluations import Evaluations
from seedbed.shared.protocol.messages import Evaluation
from seedbed.shared.protocol.rows import Flags

ENDED = np.array([Flags.TERMINATED, 0], np.uint8)


def request(number: int = 1, episodes: int = 3) -> Evaluation:
    return Evaluation(id=number, version=7, episodes=episodes, seed=100, greedy=True)


def stats(*returns: float) -> np.ndarray:
    return np.array([[value, 1.0] for value in returns], np.float32)


def test_each_lane_counts_its_first_episodes_only() -> None:
    """Three episodes over two lanes: two of lane 0, one of lane 1; a lane with a full quota adds nothing."""
    rounds = EvaluationRound()
    rounds.ask(request())
    assert rounds.wants_start(7)
    assert not rounds.wants_start(6)
    assert not rounds.wants_start(8)
    rounds.start(rounds.request, 7, {5: 2})
    assert rounds.reset_seed(5) == 100
    assert rounds.reset_seed(5) is None
    assert rounds.record(5, ENDED, stats(1)) is None
    assert rounds.record(5, ENDED, stats(2)) is None
    assert rounds.record(5, ENDED, stats(99)) is None
    result = rounds.record(5, ENDED[::-1], stats(3))
    assert result is not None
    assert (result.id, result.version) == (1, 7)
    assert result.statistics[:, 0].tolist() == [1, 2, 3]
    assert not rounds.may_act(5)


def test_a_round_says_how_far_it_has_come() -> None:
    """From the moment when it is asked for; a lost group's episodes count no more."""
    rounds = EvaluationRound()
    assert rounds.progress == (0, 0)
    rounds.ask(request(episodes=4))
    assert rounds.progress == (0, 4)
    rounds.start(rounds.request, 7, {5: 2, 6: 2})
    rounds.reset_seed(5)
    rounds.record(5, ENDED, stats(1))
    assert rounds.progress == (1, 4)
    rounds.lose(6)
    assert rounds.progress == (0, 4)
    rounds.ask(None)
    assert rounds.progress == (0, 0)


def test_an_evaluation_that_nobody_plays_is_known() -> None:
    """By task, for people; none once it is answered or a group is there."""
    evaluations = Evaluations()
    evaluations.ask("", request(episodes=4))
    assert evaluations.without_groups([]) == {"": 4}
    evaluations.ask("", None)
    assert evaluations.without_groups([]) == {}


def test_rows_before_the_reset_do_not_count() -> None:
    """An episode that was under way when the round began is not one of it."""
    rounds = EvaluationRound()
    rounds.ask(request(episodes=1))
    rounds.start(rounds.request, 7, {5: 2})
    assert rounds.record(5, ENDED, stats(50)) is None
    assert rounds.may_act(5)


def test_losing_a_group_starts_the_round_again() -> None:
    """Returns of a broken round are forgotten, so that a result is always one version's whole quota."""
    rounds = EvaluationRound()
    rounds.ask(request(episodes=4))
    rounds.start(rounds.request, 7, {5: 2, 6: 2})
    assert rounds.reset_seed(5) != rounds.reset_seed(6)
    rounds.record(5, ENDED, stats(1))
    rounds.lose(6)
    assert not rounds.is_running
    assert rounds.wants_start(7)


def test_a_finished_round_is_not_repeated() -> None:
    """The learner repeats its request until it has the result; the same id runs once."""
    rounds = EvaluationRound()
    rounds.ask(request(episodes=1))
    rounds.start(rounds.request, 7, {5: 2})
    rounds.reset_seed(5)
    assert rounds.record(5, ENDED, stats(1)) is not None
    rounds.ask(request(episodes=1))
    assert not rounds.wants_start(7)
    rounds.ask(request(number=2))
    assert rounds.wants_start(7)
