"""What `seedbed train` says before it begins."""

import pytest

from seedbed.services.tools.cli.experiment import load_experiment
from seedbed.services.tools.cli.training import describe_ranks


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["launch.learners=2", "learner.batch=6"], ""),
        (["launch.learners=4"], "learner.batch=3 actor.groups=8 actor.lanes=2"),
        (["launch.learners=3"], ""),
    ],
)
def test_who_adds_learners_is_told_how_large_their_updates_are(tmp_path, words, hint):
    """And what would keep those of one learner, unless the user has chosen, or batch or lanes cannot be shared out."""
    file = tmp_path / "twelve.toml"
    file.write_text(
        '[run]\nrecipe = "none"\n[env]\nid = "CartPole-v1"\n[learner]\nbatch = 12\n[actor]\ngroups = 2\nlanes = 8\n'
    )
    experiment = load_experiment(file, words, run_dir=tmp_path / "run", resume=False)
    settings = experiment.settings
    said, _, hinted = describe_ranks(experiment).partition(": ")
    assert f"trains on {settings.launch.learners * settings.learner.batch}" in said
    assert hinted == hint
