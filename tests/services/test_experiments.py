"""The experiments that come with seedbed: every service can read them, and they fit together."""

from pathlib import Path

import pytest

from seedbed.actor_svc.config import ActorSettings
from seedbed.learner_svc.config import LearnerSettings
from seedbed.services.dmlab.levels import DMLAB_30
from seedbed.services.tools.cli.experiment import LaunchSettings, check_lanes
from seedbed.shared.runtime.load_config import load_settings

EXPERIMENTS = sorted((Path(__file__).parents[2] / "compose" / "experiments").glob("*.toml"))


def test_the_experiments_are_found():
    """The six of the documentation are among them."""
    assert {"acrobot", "breakout", "cartpole", "memory", "pendulum", "pong"} <= {path.stem for path in EXPERIMENTS}


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_service_reads_it(file):
    """No unknown key, a name, an end, and fewer lanes in flight than the lag that the learner accepts."""
    actor = load_settings(ActorSettings, file)
    learner = load_settings(LearnerSettings, file)
    assert list(learner.tasks) == list(actor.tasks)
    assert actor.run.name == file.stem
    assert actor.run.steps > 0
    assert actor.run.until_return is not None or actor.tasks
    check_lanes(load_settings(LaunchSettings, file))


def test_a_set_of_games_has_one_action_space_and_a_scale_for_each():
    """All 18 actions, whatever a game needs, and the published scores of each."""
    settings = load_settings(LearnerSettings, next(path for path in EXPERIMENTS if path.stem == "atari_set"))
    tasks = settings.tasks
    assert all(task.env.is_atari and task.env.full_action_space for task in tasks.values())
    assert all(task.scale(settings.eval) is not None for task in tasks.values())


def test_dmlab_30_is_thirty_tasks():
    """One for each level, in the page's order, each with the settings that all share, and with published scores."""
    settings = load_settings(LearnerSettings, next(path for path in EXPERIMENTS if path.stem == "dmlab30"))
    tasks = settings.tasks
    assert tuple(tasks) == DMLAB_30
    assert tuple(task.env.kwargs["level"] for task in tasks.values()) == DMLAB_30
    assert {task.env.kwargs["level_cache"] for task in tasks.values()} == {"level_cache"}
    assert all(task.scale(settings.eval) is not None for task in tasks.values())
