"""[tasks.NAME]: what a file may say, and what a mistake is told as."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EvalConfig, RunConfig
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.tasks import RunSettings, TaskConfig, normalised_weights

FILE = """
[env]
backend = "vector"
kwargs = { a = 1, b = 1 }

[tasks.one]
env.id = "E1"

[tasks.two]
weight = 3.0
lanes = 4
env = { id = "E2", backend = "auto", kwargs = { b = 2 } }
"""


class Settings(RunSettings):
    """As a service reads them."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@pytest.fixture
def load(tmp_path: Path):
    def load_text(text: str = FILE, *words: str) -> Settings:
        file = tmp_path / "set.toml"
        file.write_text(text)
        return load_settings(Settings, file, words)

    return load_text


def test_a_task_has_what_env_says_and_its_own_over_it(load) -> None:
    """Keyword arguments are joined key by key; [env] itself needs no id."""
    settings = load()
    one, two = settings.tasks["one"], settings.tasks["two"]
    assert (one.env.id, one.env.backend, one.env.kwargs) == ("E1", "vector", {"a": 1, "b": 1})
    assert (two.env.id, two.env.backend, two.env.kwargs) == ("E2", "auto", {"a": 1, "b": 2})
    assert (two.lanes, two.weight, one.lanes) == (4, 3.0, None)
    assert normalised_weights(settings.tasks) == {"one": 0.25, "two": 0.75}
    assert settings.policy_env_id == "tasks"
    assert settings.env_of("two").id == "E2"


def test_words_and_variables_reach_one_task_or_add_one(load, monkeypatch) -> None:
    """By its name, like any other key."""
    monkeypatch.setenv("SEEDBED_TASKS__ONE__WEIGHT", "7")
    settings = load(FILE, "tasks.two.env.kwargs={b=9}", "tasks.three.env.id=E3")
    assert settings.tasks["one"].weight == 7.0
    assert settings.tasks["two"].env.kwargs == {"a": 1, "b": 9}
    assert list(settings.tasks) == ["one", "two", "three"]


def test_what_is_said_for_all_tasks_outside_the_file_holds_for_all(load, monkeypatch) -> None:
    """A word or variable for [env] goes over what a task's table says, key by key; other keys stay the task's own."""
    settings = load(FILE, "env.backend=gymnasium", "env.kwargs.b=9")
    assert [task.env.backend for task in settings.tasks.values()] == ["gymnasium", "gymnasium"]
    assert [task.env.kwargs for task in settings.tasks.values()] == [{"a": 1, "b": 9}, {"a": 1, "b": 9}]
    assert [task.env.id for task in settings.tasks.values()] == ["E1", "E2"]
    assert load(FILE, "env.kwargs={c=3}").tasks["two"].env.kwargs == {"b": 2, "c": 3}
    assert load(FILE, "env.kwargs={b=3}").tasks["two"].env.kwargs == {"b": 3}
    monkeypatch.setenv("SEEDBED_ENV__BACKEND", "ale_sync")
    assert load().tasks["two"].env.backend == "ale_sync"


def test_the_later_of_two_words_wins_whether_for_all_tasks_or_one(load, monkeypatch) -> None:
    """And a word over a variable, as everywhere."""
    settings = load(FILE, "env.id=E3", "tasks.two.env.id=E4")
    assert [task.env.id for task in settings.tasks.values()] == ["E3", "E4"]
    settings = load(FILE, "tasks.two.env.id=E4", "env.id=E3")
    assert [task.env.id for task in settings.tasks.values()] == ["E3", "E3"]
    monkeypatch.setenv("SEEDBED_TASKS__TWO__ENV__ID", "E4")
    assert load().tasks["two"].env.id == "E4"
    assert load(FILE, "env.id=E3").tasks["two"].env.id == "E3"


def test_a_file_without_tasks_is_what_it_was(load) -> None:
    """One environment, with an id of its own."""
    settings = load('[env]\nid = "E"\n')
    assert (settings.tasks, settings.env_of("").id, settings.policy_env_id) == ({}, "E", "E")
    assert normalised_weights(settings.tasks) == {"": 1.0}
    with pytest.raises(ConfigError, match=r"\[env\] id: must be set"):
        load("[run]\n")


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (FILE + "\n[tasks.one]\nweight = 2\n", (), r"set\.toml: not valid TOML: .*twice"),
        (FILE, ("tasks.two.weight=0",), r"'tasks.two.weight=0'.* two.weight: .*greater than 0"),
        (FILE.replace("weight = 3.0", "weight = -1"), (), r"set\.toml: \[tasks\] two.weight: .*greater than 0, not -1"),
        (FILE.replace("weight = 3.0", "weightt = 3"), (), r"set\.toml: \[tasks\] two.weightt: .*did you mean 'weight'"),
        (FILE.replace("backend = \"auto\", ", "backendd = 1, "), (), r"two.env.backendd: .*did you mean 'backend'"),
        ("[tasks.one]\nweight = 1\n", (), r"set\.toml: \[tasks\] one.env.id: must be set"),
        ("[[tasks]]\nname = 'one'\n", (), r"set\.toml: tasks is a table: write \[tasks\.NAME\]"),
        ("[tasks]\none = 3\n", (), r"set\.toml: \[tasks\] one: "),
        ("[tasks]\none = 3\n", ("env.id=E",), r"set\.toml: \[tasks\] one: "),
        (FILE.replace("{ b = 2 }", "2"), ("env.kwargs.b=1",), r"set\.toml: \[tasks\] two.env.kwargs: "),
        (FILE, ("tasks.a/b.env.id=E",), r"\[tasks\]: a task cannot be named 'a/b'"),
        (FILE, ("tasks.one.random_score=1",), r"\[tasks\] one: random_score and human_score must both be set"),
        (FILE, ("tasks.one.random_score=1", "tasks.one.human_score=1"), r"must both be set"),
    ],
)  # fmt: skip
def test_a_mistake_names_file_and_key(load, text: str, words: tuple[str, ...], told: str) -> None:
    """And what to write instead, where it can be guessed."""
    with pytest.raises(ConfigError, match=told) as caught:
        load(text, *words)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_env_is_told_once(load) -> None:
    """Not again for every task that inherits it; a task's own mistake is told beside it."""
    with pytest.raises(ConfigError) as caught:
        load(FILE.replace("[env]\n", "[env]\nframe_skp = 3\n"), "tasks.one.env.frame_skip=0")
    told = str(caught.value).splitlines()
    assert len(told) == 2
    assert any("[env] frame_skp: unknown key" in line for line in told)
    assert any("[tasks] one.env.frame_skip" in line for line in told)


def test_what_a_run_kept_is_read_back_the_same(load, tmp_path: Path) -> None:
    """The run folder's config.toml has every task in full."""
    from seedbed.learner_svc.run.folder import to_toml

    settings = load()
    again = load(to_toml(settings.model_dump(mode="json")))
    assert again.tasks == settings.tasks
    assert again.run == RunConfig()


def test_scores_lie_between_random_and_human() -> None:
    """None without a scale; a task's own scores win over the published ones."""

    def normalise(score: float, env: dict[str, Any], **scores: float) -> float | None:
        scale = TaskConfig.model_validate({"env": env, **scores}).scale(EvalConfig())
        return None if scale is None else scale.normalise(score)

    own = {"random_score": -20.0, "human_score": 20.0}
    assert normalise(0.0, {"id": "E"}, **own) == 0.5
    assert normalise(0.0, {"id": "E"}) is None
    assert normalise(14.6, {"id": "ALE/Pong-v5"}) == 1.0
    assert normalise(0.0, {"id": "ALE/Pong-v5"}, **own) == 0.5


def test_the_environment_of_evaluations_decides_about_published_scores() -> None:
    """It may cut episodes that training plays to their end, or the other way round."""
    task = TaskConfig.model_validate({"env": {"id": "ALE/Pong-v5", "max_episode_steps": 100}})
    assert task.scale(EvalConfig()) is None
    assert task.scale(EvalConfig(env={"max_episode_steps": 27_000})) is not None


@pytest.mark.parametrize(("name", "told"), [("", r"has the tasks one, two"), ("tow", r"did you mean 'two'")])
def test_a_task_that_is_none_is_named_with_those_there_are(load, name: str, told: str) -> None:
    """Nobody has to look into the file."""
    with pytest.raises(ConfigError, match=told):
        load().env_of(name)
