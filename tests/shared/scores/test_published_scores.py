"""Published scores: their numbers, the environments that have them, and those that must not be measured by them."""

from typing import Any

import pytest

from seedbed.actor_svc.backends import pool
from seedbed.services.dmlab import levels
from seedbed.services.dmlab.env import make as make_dmlab
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.scores.atari import ATARI_57
from seedbed.shared.scores.dmlab import DMLAB_30, ENV_ID
from seedbed.shared.scores.published import published_scale


def scale(env_id: str, **settings: Any) -> tuple[float, float] | None:
    """Random and human score of an environment, None if it has none."""
    found = published_scale(EnvConfig.model_validate({"id": env_id, **settings}))
    return None if found is None else (found.random, found.human)


def level(name: Any, **kwargs: Any) -> tuple[float, float] | None:
    """Random and human score of a level of DeepMind Lab."""
    return scale(ENV_ID, kwargs={"level": name, **kwargs})


def test_there_are_57_games_and_30_levels() -> None:
    """In each, a person does better than random play."""
    assert (len(ATARI_57), len(DMLAB_30)) == (57, 30)
    assert all(random < human for table in (ATARI_57, DMLAB_30) for random, human in table.values())


@pytest.mark.parametrize(
    ("game", "expected"),
    [
        ("Pong", (-20.7, 14.6)),
        ("Breakout", (1.7, 30.5)),
        ("MontezumaRevenge", (0.0, 4753.3)),
        ("Skiing", (-17098.1, -4336.9)),
        ("MsPacman", (307.3, 6951.6)),
        ("Seaquest", (68.4, 42054.7)),
    ],
)
def test_games_have_the_scores_of_the_papers(game: str, expected: tuple[float, float]) -> None:
    """Those for starts with no-ops, under every id of the game."""
    ids = (f"ALE/{game}-v5", f"{game}-v5", f"{game}NoFrameskip-v4", f"{game}Deterministic-v4", f"{game}-v0")
    assert [scale(env_id) for env_id in ids] == [expected] * len(ids)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rooms_watermaze", (4.065, 54.0)),
        ("language_execute_random_task", (-5.913, 254.05)),
        ("rooms_collect_good_objects_train", (0.073, 10.0)),
        ("rooms_collect_good_objects_test", (0.073, 10.0)),
        ("contributed/dmlab30/explore_goal_locations_small", (7.66, 267.5)),
        (["psychlab_visual_search"], (0.085, 78.5)),
    ],
)
def test_levels_have_the_scores_of_the_paper(name: Any, expected: tuple[float, float]) -> None:
    """By name or path; the training variant of a level has those of the held-out one."""
    assert level(name) == expected


def test_every_level_of_dmlab_30_has_scores() -> None:
    """By the name under which the service makes it, for training and held out."""
    assert f"{make_dmlab.__module__}:{make_dmlab.__name__}" == ENV_ID
    assert all(level(name) is not None for name in (*levels.DMLAB_30, *levels.HELD_OUT))
    assert {name.replace("_train", "_test") for name in levels.DMLAB_30} == set(DMLAB_30)


def test_every_game_has_an_environment_and_no_other_simulator_is_taken_for_one() -> None:
    """Each of the 57 is EnvPool's by that id; of EnvPool's other environments none has scores."""
    pytest.importorskip("envpool")
    found = {env_id for env_id in pool.known_ids() if scale(env_id) is not None}
    assert found == {f"ALE/{game}-v5" for game in ATARI_57}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Kaboom-v5", "MinAtar/Breakout-v1", "Pong-v1", "pong:make"])
def test_other_environments_have_none(env_id: str) -> None:
    """A game beyond the 57, and another simulator's game of the same name."""
    assert scale(env_id) is None


@pytest.mark.parametrize(
    ("settings", "is_known"),
    [
        ({"max_episode_steps": 27_000}, True),
        ({"max_episode_steps": 26_999}, False),
        ({"max_episode_steps": 54_000, "frame_skip": 2}, True),
        ({"frame_skip": 1}, False),  # 27 000 frames
        ({"repeat_action_probability": 0.25, "life_loss": False, "noop_max": 1}, True),
        ({"backend": "ale_sync"}, True),
        ({"kwargs": {"mode": 1}}, False),
        ({"kwargs": {"use_fire_reset": True}}, True),
        ({"service": "atari"}, False),  # whatever that program plays
    ],
)
def test_only_whole_games_in_raw_rewards_are_measured(settings: dict[str, Any], is_known: bool) -> None:
    """30 minutes of the game as it is: shorter episodes, other modes and clipped rewards have no scale."""
    assert (scale("ALE/Pong-v5", **settings) is not None) == is_known


def test_only_whole_episodes_of_one_level_are_measured() -> None:
    """Neither all thirty in turn, nor episodes of another length."""
    assert level("dmlab30") is None
    assert level(["rooms_watermaze", "rooms_keys_doors_puzzle"]) is None
    assert level("rooms_watermaze", config={"episodeLengthSeconds": 10}) is None
    assert level("rooms_watermaze", config={"mixerSeed": 1}) is not None
    assert scale(ENV_ID, kwargs={"level": "rooms_watermaze"}, max_episode_steps=100) is None
    assert scale("other.env:make", kwargs={"level": "rooms_watermaze"}) is None
