"""Recipes: settings by name, below all that an experiment says itself."""

import itertools

import pytest

from seedbed.services.tools.cli.experiment import LaunchSettings
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.recipes import FACETS, KINDS, lay, read_recipe

TEXT = """
[run]
recipe = "vector-discrete"
[env]
id = "CartPole-v1"
[learner]
batch = 48
"""


@pytest.fixture
def file(tmp_path):
    """An experiment that names a recipe."""
    path = tmp_path / "small.toml"
    path.write_text(TEXT)
    return path


NAMES = [f"{kind}{plus}" for kind, plus in itertools.product(KINDS, ("", *(f"+{facet}" for facet in FACETS)))]


@pytest.mark.parametrize("name", [*NAMES, "image-discrete+atari+memory"])
def test_every_recipe_is_a_valid_experiment(name):
    """Nothing in the files is refused by our own checks, with any facet on top."""
    settings = load_settings(LaunchSettings, None, ["env.id=CartPole-v1", f"run.recipe={name}"])
    assert settings.run.recipe == name
    assert settings.run.steps > 0
    assert ("memory" in name) == bool(settings.policy.lstm)


def test_whatever_an_experiment_says_counts_more_than_its_recipe(file, monkeypatch):
    """File, variable and word, each over the recipe; the rest is the recipe's."""
    recipe = read_recipe("vector-discrete")
    monkeypatch.setenv("SEEDBED_ACTOR__LANES", "3")
    settings = load_settings(LaunchSettings, file, ["algorithm.lam=0.5"])
    assert (settings.learner.batch, settings.actor.lanes, settings.algorithm.lam) == (48, 3, 0.5)
    assert settings.learner.unroll_length == recipe["learner"]["unroll_length"]
    assert settings.algorithm.learning_rate == recipe["algorithm"]["learning_rate"]


def test_settings_of_another_algorithm_are_left_out(file):
    """A recipe's are of the algorithm that it names: with another one its defaults hold."""
    other = next(name for name in ("vtrace", "appo") if name != read_recipe("vector-discrete")["algorithm"]["name"])
    settings = load_settings(LaunchSettings, file, [f"algorithm.name={other}"])
    plain = load_settings(LaunchSettings, None, ["env.id=CartPole-v1", f"algorithm.name={other}"])
    assert settings.algorithm == plain.algorithm
    assert (settings.learner.reuse, settings.learner.batch) == (plain.learner.reuse, 48)


def test_a_policy_that_is_given_a_memory_gives_up_what_does_not_go_with_it():
    """And another network its own arguments."""
    below = {"policy": {"value_network": "separate", "network": "a", "network_kwargs": {"x": 1}, "stack": 2}}
    assert lay({"policy": {"lstm": 8}}, over=below)["policy"].keys() == {"network", "network_kwargs", "stack", "lstm"}
    assert lay({"policy": {"network": "b"}}, over=below)["policy"] == {
        "value_network": "separate", "network": "b", "stack": 2,
    }  # fmt: skip


def test_facets_are_laid_over_their_kind_in_an_order_of_their_own():
    """However they are written."""
    assert read_recipe("image-discrete+memory+atari") == read_recipe("image-discrete+atari+memory")
    assert read_recipe("image-discrete+atari")["policy"]["stack"] == 4


@pytest.mark.parametrize("name", ["vector", "vector-discrete+grids", "none+memory", "auto+atari"])
def test_a_name_that_is_none_is_refused(file, name):
    """With what is known."""
    with pytest.raises(ConfigError, match="known: "):
        load_settings(LaunchSettings, file, [f"run.recipe={name}"])


@pytest.mark.parametrize("name", ["auto", "auto+memory"])
def test_a_service_refuses_a_recipe_that_is_still_to_be_chosen(file, name):
    """It has no environment to look at; what to do is told."""
    with pytest.raises(ConfigError, match="seedbed recipes"):
        load_settings(LaunchSettings, file, [f"run.recipe={name}"])
