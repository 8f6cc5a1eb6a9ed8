"""What `seedbed plan` refuses to measure, before anything is trained."""

import pytest

from seedbed.services.tools.cli.bench import costs
from seedbed.shared.errors import ConfigError


@pytest.mark.parametrize(
    ("experiment", "words"),
    [("memory_tasks", []), ("cartpole", ["launch.learners=2"]), ("cartpole", ["launch.actors=0"])],
)
def test_what_one_step_cannot_stand_for_is_refused_at_once(monkeypatch, tmp_path, experiment, words):
    """Several tasks or learners, or no actors: the figures would be wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(costs, "run_for", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(ConfigError, match="a plan"):
        costs.measure_costs(experiment, 5.0, words)
