"""The experiments that come with seedbed: every service can read them, and they fit together."""

from pathlib import Path

import pytest

from actor_svc.config import ActorSettings
from learner_svc.config import LearnerSettings, check_lag
from services.cli.experiment import LaunchSettings
from shared.runtime.config import load_settings

EXPERIMENTS = sorted((Path(__file__).parents[2] / "compose" / "experiments").glob("*.toml"))


def test_the_experiments_are_found():
    """The six of the documentation are among them."""
    assert {"acrobot", "breakout", "cartpole", "memory", "pendulum", "pong"} <= {path.stem for path in EXPERIMENTS}


@pytest.mark.parametrize("file", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_service_reads_it(file):
    """No unknown key, a name, an end, and fewer lanes in flight than the lag that the learner accepts."""
    actor = load_settings(ActorSettings, file)
    learner = load_settings(LearnerSettings, file)
    launch = load_settings(LaunchSettings, file).launch
    assert actor.run.name == file.stem
    assert actor.run.steps > 0
    assert actor.run.until_return is not None
    check_lag(learner.learner, launch.actors * sum(actor.group_lanes()))
