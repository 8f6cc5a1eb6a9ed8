"""Configuration errors name file and key, and suggest what was meant."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from seedbed.actor_svc.config import ActorSettings
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, LaunchConfig, RunConfig, RuntimeConfig, Section
from seedbed.shared.runtime.load_config import KNOWN_SECTIONS, load_settings, parse_value


class LinkConfig(Section):
    """A section with lists and a number, as services have."""

    upstream: list[str] = Field(["tcp://127.0.0.1:5555"], description="Addresses.")
    hidden: list[int] = Field([64, 64], description="Widths.")
    beat_s: float = Field(1.0, gt=0, description="Seconds.")


class Settings(BaseModel):
    """What a service might read."""

    run: RunConfig = RunConfig()
    env: EnvConfig
    actor: LinkConfig = LinkConfig()
    runtime: RuntimeConfig = RuntimeConfig()


@pytest.fixture
def experiment(tmp_path) -> Path:
    """A small experiment file, with a section that the model does not read."""
    file = tmp_path / "tiny.toml"
    file.write_text(
        '[run]\nname = "tiny"\nsteps = 1000\n[env]\nid = "CartPole-v1"\nkwargs = {a = 1}\n'
        "[learner]\nwhatever = 1\n[actor]\nbeat_s = 2\n"
    )
    return file


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    """Tests see only the variables that they set."""
    for name in list(os.environ):
        if name.startswith("SEEDBED_"):
            monkeypatch.delenv(name)


def test_the_file_fills_the_sections_that_the_model_reads(experiment):
    """Other services' sections are ignored; what is not given has its default."""
    settings = load_settings(Settings, experiment)
    assert settings.run.name == "tiny"
    assert settings.run.seed == 1
    assert settings.env.kwargs == {"a": 1}
    assert settings.actor.beat_s == 2.0


def test_variables_overrule_the_file_and_words_overrule_both(experiment, monkeypatch):
    """The precedence is file, variable, word."""
    monkeypatch.setenv("SEEDBED_RUN__STEPS", "2000")
    monkeypatch.setenv("SEEDBED_RUN__SEED", "5")
    settings = load_settings(Settings, experiment, ["run.seed=7", "env.kwargs.b=[1, 2]", "run.dir=/tmp/x"])
    assert (settings.run.steps, settings.run.seed) == (2000, 7)
    assert settings.env.kwargs == {"a": 1, "b": [1, 2]}
    assert settings.run.dir == Path("/tmp/x")


def test_lists_may_be_written_without_brackets(experiment):
    """Addresses and numbers are split at commas."""
    settings = load_settings(Settings, experiment, ["actor.upstream=tcp://a:1, tcp://b:2", "actor.hidden=8,16"])
    assert settings.actor.upstream == ["tcp://a:1", "tcp://b:2"]
    assert settings.actor.hidden == [8, 16]
    assert load_settings(Settings, experiment, ['actor.upstream=["tcp://c:3"]']).actor.upstream == ["tcp://c:3"]


def test_a_name_that_looks_like_a_number_stays_a_name(experiment):
    """run.name=7 is the text 7."""
    assert load_settings(Settings, experiment, ["run.name=7"]).run.name == "7"


def write(tmp_path, text: str) -> Path:
    """An experiment file with this text."""
    file = tmp_path / "broken.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[env]\nid = "x"\n[run]\nstep = 3', ["broken.toml: [run] step: unknown key", "did you mean 'steps'?"]),
        ('[env]\nid = "x"\n[rnu]\nsteps = 3', ["broken.toml: [rnu]: unknown section", "did you mean 'run'?"]),
        ('[env]\nid = "x"\n[run]\nzzz = 3', ["[run] zzz: unknown key; known: name, dir, seed"]),
        (
            '[env]\nid = "x"\nbackend = "fast"',
            ["broken.toml: [env] backend", "'auto', 'gymnasium'", "'fast' is none of"],
        ),
        ('[env]\nid = "x"\n[actor]\nbeat_s = 0', ["broken.toml: [actor] beat_s", "greater than 0", "not 0"]),
        ('[env]\nid = "x"\n[run]\nseconds = nan', ["broken.toml: [run] seconds", "finite"]),
        ('[env]\nid = "x"\n[run]\nsteps = "many"', ["broken.toml: [run] steps", "integer", "not 'many'"]),
        ('[env\nid = "x"', ["broken.toml: not valid TOML", "line 1"]),
        ("run = 3", ["broken.toml: run is a table: write [run]"]),
        ("[run]\nsteps = 3", ["broken.toml: [env] id: must be set", "SEEDBED_ENV__ID", "env.id="]),
    ],
)
def test_an_error_names_file_and_key(tmp_path, text, parts):
    """And what was meant, or what would be right."""
    with pytest.raises(ConfigError) as caught:
        load_settings(Settings, write(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("run.step=3", ["command line 'run.step=3': [run] step: unknown key; did you mean 'steps'?"]),
        ("rum.steps=3", ["command line 'rum.steps=3': unknown section; did you mean 'run'?"]),
        ("run.steps=abc", ["command line 'run.steps=abc': [run] steps", "not 'abc'"]),
        ("run.name.x=1", ["name is a value, not a table"]),
        ("steps=3", ["'steps=3' is not section.key=value"]),
        ("run.steps", ["'run.steps' is not section.key=value"]),
        ("env.kwargs=3", ["[env] kwargs", "dictionary"]),
    ],
)
def test_an_error_names_the_word(experiment, word, parts):
    """A wrong word is quoted, not the file that it overrules."""
    with pytest.raises(ConfigError) as caught:
        load_settings(Settings, experiment, [word])
    for part in parts:
        assert part in str(caught.value)


def test_an_error_names_the_variable(experiment, monkeypatch):
    """Where the wrong key came from is said."""
    monkeypatch.setenv("SEEDBED_RUN__STEP", "3")
    with pytest.raises(
        ConfigError, match=r"environment variable SEEDBED_RUN__STEP: \[run\] step: unknown key; did you"
    ):
        load_settings(Settings, experiment)


def test_other_variables_are_left_alone(experiment, monkeypatch):
    """Only SEEDBED_SECTION__KEY is configuration."""
    monkeypatch.setenv("SEEDBED_DIE_WITH_PARENT", "1")
    monkeypatch.setenv("SEEDBED_LEARNER__NONSENSE", "1")
    monkeypatch.setenv("SEEDBED_LEARNER_PORT_5556_TCP", "tcp://10.0.0.1:5556")
    assert load_settings(Settings, experiment).run.name == "tiny"


def test_all_problems_come_at_once(tmp_path):
    """A user with three mistakes starts the program twice, not four times."""
    with pytest.raises(ConfigError) as caught:
        load_settings(Settings, write(tmp_path, "[run]\nstep = 3\nseed = -1\n"))
    assert len(str(caught.value).splitlines()) == 3


def test_a_missing_file_suggests_its_neighbour(experiment):
    """A typo in the file's name is answered with the right one."""
    with pytest.raises(ConfigError, match=r"tinny.toml: no such file; did you mean 'tiny.toml'\?"):
        load_settings(Settings, experiment.with_name("tinny.toml"))


def test_a_folder_is_no_file(tmp_path):
    """The system's reason is passed on."""
    with pytest.raises(ConfigError, match="directory"):
        load_settings(Settings, tmp_path)


def test_without_a_file_defaults_and_words_are_enough():
    """No file, no error."""
    assert load_settings(Settings, None, ["env.id=CartPole-v1"]).env.id == "CartPole-v1"


def test_settings_cannot_be_changed(experiment):
    """A section is a value."""
    settings = load_settings(Settings, experiment)
    with pytest.raises(ValueError, match="frozen"):
        settings.run.steps = 3


def test_env_settings_are_those_that_actors_must_share():
    """Atari settings count where they apply; order of kwargs does not."""
    cart = EnvConfig(id="CartPole-v1", kwargs={"b": 1, "a": 2})
    assert dict(cart.settings()) == {"kwargs": '{"a": 2, "b": 1}', "max_episode_steps": "null"}
    assert cart.settings() == EnvConfig(id="CartPole-v1", kwargs={"a": 2, "b": 1}, frame_skip=1).settings()
    pong = EnvConfig(id="ALE/Pong-v5")
    assert dict(pong.settings())["frame_skip"] == "4"
    assert list(pong.settings()) == sorted(pong.settings())
    bricks = EnvConfig(id="bricks-js", service=".")  # whose program decides where nothing is said
    assert bricks.settings() == ()
    assert dict(bricks.model_copy(update={"max_episode_steps": 9}).settings()) == {"max_episode_steps": "9"}


@pytest.mark.parametrize("section", [RunConfig, EnvConfig, EvalConfig, LaunchConfig, RuntimeConfig])
def test_every_key_is_described(section):
    """A user can be told what each key means."""
    for name, field in section.model_fields.items():
        assert field.description, name


def test_sections_are_known():
    """The sections of the experiment file, once each."""
    assert len(set(KNOWN_SECTIONS)) == len(KNOWN_SECTIONS) == 12


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("3.5", 3.5), ("true", True), ("[1, 2]", [1, 2]), ('"a"', "a"), ("{a = 1}", {"a": 1}),
        ("abc", "abc"), ("", ""), ("2024-01-01", "2024-01-01"), ("1\nother = 2", "1\nother = 2"), ("a=b", "a=b"),
    ],
)  # fmt: skip
def test_a_words_value_is_toml_or_text(text, value):
    """Dates stay text, and a line break adds no key."""
    assert parse_value(text) == value


@given(st.text())
def test_no_text_breaks_the_parser(text):
    """Any word has a value."""
    assert isinstance(parse_value(text), (bool, int, float, str, list, dict))


def test_keys_are_a_folder_and_an_empty_variable_means_none(monkeypatch):
    """`SEEDBED_RUNTIME__KEYS=` is not the working directory."""

    class Keyed(BaseModel):
        runtime: RuntimeConfig = RuntimeConfig()

    assert load_settings(Keyed, None).runtime.keys is None
    monkeypatch.setenv("SEEDBED_RUNTIME__KEYS", "")
    assert load_settings(Keyed, None).runtime.keys is None
    monkeypatch.setenv("SEEDBED_RUNTIME__KEYS", "keys/inference")
    assert load_settings(Keyed, None).runtime.keys == Path("keys/inference")


def test_a_variable_with_one_underscore_is_no_silent_nothing(experiment, monkeypatch):
    """Whoever sets it means it."""
    monkeypatch.setenv("SEEDBED_RUN_SEED", "7")
    with pytest.raises(ConfigError, match="write SEEDBED_RUN__SEED, with two underscores"):
        load_settings(Settings, experiment)


def test_a_file_may_begin_with_a_mark(tmp_path):
    """As editors on Windows write it."""
    (tmp_path / "marked.toml").write_bytes(b"\xef\xbb\xbf[run]\nname = 'tiny'\n[env]\nid = 'x'\n")
    assert load_settings(Settings, tmp_path / "marked.toml").run.name == "tiny"


def test_a_file_in_another_encoding_is_told_so(tmp_path):
    """With what to do about it."""
    (tmp_path / "latin.toml").write_bytes(b"[run]\nname = 'gr\xfcn'\n")
    with pytest.raises(ConfigError, match="save it as UTF-8"):
        load_settings(Settings, tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("run.seed=99999999999999999999", "at most 64 bits"),
        ("run.name=", "the name must be valid for a folder"),
        ("run.name=../up", "the name must be valid for a folder"),
        ('run.name="a\\u0000b"', "the name must be valid for a folder"),
        ('run.dir="a\\u0000b"', "no zero bytes"),
    ],
)
def test_values_that_nothing_can_be_done_with_are_refused(word, said):
    """Before anything starts, in plain words."""
    with pytest.raises(ConfigError, match=said) as caught:
        load_settings(Settings, None, ["env.id=x", word])
    assert "Value error" not in str(caught.value)


def test_an_empty_run_folder_is_no_choice():
    """And not the working directory."""
    assert load_settings(Settings, None, ["env.id=x", "run.dir="]).run.dir is None


def test_an_evaluation_may_have_settings_of_its_own_and_passes_for_the_runs():
    """Joined over [env]; whoever compares what actors share sees the run's."""
    env = EnvConfig(id="E", kwargs={"levels": 200, "hard": True}, max_episode_steps=100)
    own = EvalConfig(env={"kwargs": {"levels": 0}, "max_episode_steps": 7}).own_env(env)
    assert (own.id, own.kwargs, own.max_episode_steps) == ("E", {"levels": 0, "hard": True}, 7)
    assert own.settings() == env.settings()
    assert EvalConfig().own_env(env) is env


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("eval.env={id = 'F'}", "an evaluation uses the environment"),
        ("eval.env={image_size = 64}", "image_size: cannot differ in evaluations"),
        ("eval.env={frame_skp = 2}", "did you mean 'frame_skip'"),
        ("eval.env.frame_skip=0", "frame_skip: Input should be greater"),
    ],
)
def test_an_evaluations_setting_that_cannot_be_is_refused(experiment, word, said):
    """Before anything starts: the policy could not play there, or the environment not be made."""
    with pytest.raises(ConfigError, match=said):
        load_settings(ActorSettings, experiment, [word])
