"""`seedbed settings`: what a user may set, from the models that check it."""

import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.experiment import LaunchSettings
from seedbed.services.tools.cli.settings import list_settings
from seedbed.shared.errors import ConfigError


def test_every_setting_of_every_section_is_there_and_explained():
    """With the values that it may take."""
    found = {item.name: item for item in list_settings()}
    for section, field in LaunchSettings.model_fields.items():
        for key in getattr(field.annotation, "model_fields", {}):
            assert found[f"{section}.{key}"].description
    assert found["learner.batch"].values == "integer"
    assert found["policy.hidden"].values == "list of integer"
    assert found["actor.mode"].values == "train | eval | play"
    assert found["tasks.NAME.weight"].default == "1.0"


def test_a_section_or_a_single_setting_may_be_asked_for(capsys):
    """Nothing else is printed then."""
    assert {item.name.partition(".")[0] for item in list_settings("eval")} == {"eval"}
    assert main(["settings", "learner.batch"]) == 0
    said = capsys.readouterr().out
    assert "lane-unrolls of an update" in said
    assert "learner.reuse" not in said


def test_symbols_and_values_keep_their_case():
    """A γ made a Γ is another quantity; the first word of a sentence is written large."""
    said = {item.name: item.description for item in list_settings()}
    assert "γ, for each agent step" in said["algorithm.discount"]
    assert said["policy.hidden"].startswith("mlp")
    assert said["inference.bind"].startswith("Address")


def test_an_unknown_name_gets_the_nearest():
    """As everywhere."""
    with pytest.raises(ConfigError, match=r"did you mean learner.batch\?"):
        list_settings("learner.bach")
