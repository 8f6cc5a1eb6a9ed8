"""What TARGET may be, and what is said when it is nothing."""

import sys

import pytest

from seedbed.services.tools.cli.env.target import Listen, find_environment, find_target
from seedbed.services.tools.cli.service_folder import ServiceFolder
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig

MANIFEST = 'name = "mine"\ndescription = "a test"\ncommand = ["python", "actor.py"]\nenv_id = "Mine-v0"\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_service(folder, text=MANIFEST):
    """A service's folder."""
    folder.mkdir(parents=True)
    (folder / "service.toml").write_text(text)
    return folder


def test_an_address_is_listened_at():
    """Whoever starts the service names it."""
    assert find_target("tcp://127.0.0.1:5999") == Listen("tcp://127.0.0.1:5999")


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5", "seedbed.services.memory.env:make"])
def test_ids_and_functions_are_stepped_here(env_id):
    """With env.* words."""
    assert find_target(env_id, ["env.max_episode_steps=9"]) == EnvConfig(id=env_id, max_episode_steps=9)


@pytest.mark.parametrize(
    ("at", "text"), [("mine", "mine"), ("services/mine", "mine"), ("services/mine", "services/mine")]
)
def test_a_folder_is_found_by_path_or_by_name(here, at, text):
    """In the working directory and under its services/."""
    write_service(here / at)
    found = find_target(text)
    assert isinstance(found, ServiceFolder)
    assert found.folder == here / at
    assert found.command(["env.kwargs={}"]) == [sys.executable, "actor.py", "env.kwargs={}"]


def test_a_shipped_service_is_found_by_its_name(here):
    """Wherever one stands."""
    found = find_target("minigrid")
    assert isinstance(found, ServiceFolder)
    assert found.manifest.env_id == "seedbed.services.minigrid.env:make"


def test_a_service_stands_for_its_environment_where_that_is_stepped_here(here):
    """With the settings of its command, and words over them."""
    words = '"env.kwargs={level = 3}", "env.max_episode_steps=9", "actor.lanes=4"'
    text = MANIFEST.replace('"actor.py"', f'"actor.py", {words}').replace("Mine-v0", "mine.env:make")
    write_service(here / "mine", text)
    env = find_environment("mine", ["env.max_episode_steps=5"])
    assert env == EnvConfig(id="mine.env:make", kwargs={"level": 3}, max_episode_steps=5)


def test_what_only_a_service_can_step_is_said(here):
    """An environment in another language is played and checked through its service."""
    write_service(here / "mine")
    with pytest.raises(ConfigError, match=r"Mine-v0 is none that Python can make: .* seedbed play mine"):
        find_environment("mine")


def test_an_unknown_name_gets_the_nearest_ones():
    """Of services and environments."""
    with pytest.raises(ConfigError, match=r"did you mean .*'CartPole-v1'"):
        find_target("CartPol-v1")
    with pytest.raises(ConfigError, match="did you mean 'minigrid'"):
        find_target("minigird")


def test_a_folder_without_service_toml_is_named(here):
    """With what is missing."""
    (here / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"no service\.toml in this folder"):
        find_target("empty")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = ", "service.toml: Invalid value"),
        (MANIFEST + 'comand = ["x"]\n', "unknown key; did you mean 'command'"),
        ('name = "mine"\n', "command must be set"),
        (MANIFEST.replace('["python", "actor.py"]', '"python"'), "command: Input should be a valid list"),
    ],
)
def test_a_broken_service_toml_is_named_with_its_key(here, text, said):
    """File, key, what is wrong."""
    write_service(here / "mine", text)
    with pytest.raises(ConfigError, match=said) as caught:
        find_target("mine")
    assert "service.toml" in str(caught.value)


def test_a_build_that_fails_says_what_it_said(here):
    """Its last lines and exit status."""
    build = f'build = ["{sys.executable}", "-c", "import sys; sys.exit(\'no compiler\')"]\n'
    write_service(here / "mine", MANIFEST + build)
    found = find_target("mine")
    assert isinstance(found, ServiceFolder)
    with pytest.raises(ConfigError, match=r"exit status 1:\nno compiler"):
        found.build()


def test_words_of_other_sections_are_refused_in_this_process():
    """They would be without effect."""
    with pytest.raises(ConfigError, match=r"takes env\.key=value only"):
        find_target("CartPole-v1", ["actor.lanes=3"])


def test_an_address_cannot_be_stepped_here():
    """For bench, record and play."""
    with pytest.raises(ConfigError, match="steps the environment itself"):
        find_environment("tcp://127.0.0.1:5999")
