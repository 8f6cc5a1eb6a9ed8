"""Names of an environment's own statistics, their columns, and conditions on their means."""

import pytest

from seedbed.shared.protocol.statistics import (
    Condition,
    evaluation_column,
    name_problem,
    own_statistics,
    read_condition,
    training_column,
)


@pytest.mark.parametrize("name", ["", "9lives", "a b", "a,b", "a/b", 'a"b', "é", "x" * 65, "_hidden"])
def test_a_name_that_a_table_or_label_would_misread_is_refused(name):
    """With the rule."""
    assert f"{name!r}: use a letter" in name_problem(["score", name])


@pytest.mark.parametrize("name", ["return", "length", "normalised", "normalised_capped"])
def test_a_name_whose_columns_every_run_has_is_refused(name):
    """By its name, for two figures cannot share a column."""
    assert f"{name!r}, which every run has already" in name_problem([name])


def test_a_name_is_given_once():
    """Twice the same would be one column for two figures; others are fine."""
    assert "'score' is named twice" in name_problem(["score", "success", "score"])
    assert name_problem(["score", "success-rate", "level.2", "Kills_total"]) is None


def test_the_statistics_are_found_again_in_a_tables_columns():
    """Those of the environment alone, each once, without tasks'."""
    own = [column(name) for name in ("success", "kills_mean") for column in (training_column, evaluation_column)]
    columns = ["return_mean", "eval_return_mean", "episode_return_mean", *own, "episode_success_mean/pong"]
    assert own_statistics(columns) == ["success", "kills_mean"]


def test_a_condition_is_a_statistic_a_sign_and_a_number():
    """It holds from its bound on, and never for a mean that nobody knows."""
    condition = read_condition("success >= 0.9")
    assert condition == Condition("success", ">=", 0.9)
    assert [condition.holds({"success": mean}) for mean in (0.89, 0.9, 1.0, None)] == [False, True, True, False]
    assert not condition.holds({})
    assert read_condition("crashes<=1e-1").holds({"crashes": 0.1})
    assert not read_condition("crashes <= -2").holds({"crashes": 0.1})


@pytest.mark.parametrize(
    "text", ["success", "success > 0.9", "success >= much", "0.9 <= success", "a b >= 1", "a >= inf"]
)
def test_what_is_no_condition_is_refused_with_an_example(text):
    """Before anything starts."""
    with pytest.raises(ValueError, match=r"'success >= 0\.9'"):
        read_condition(text)
