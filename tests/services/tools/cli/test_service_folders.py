"""Folders of services: what each says about itself is true."""

import importlib.util
import tomllib
from pathlib import Path

import pytest

FOLDERS = sorted(path.parent for path in (Path(__file__).parents[4] / "services").glob("*/service.toml"))


def test_the_folders_are_found():
    """EnvPool's simulators are among them."""
    assert {"atari", "doom", "football", "mujoco", "procgen"} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_service_says_how_it_starts(folder):
    """Its name is its folder's, a Python command is a module that is there, and a page says how to use it."""
    said = tomllib.loads((folder / "service.toml").read_text())
    assert said["name"] == folder.name
    assert said["description"]
    assert said["env_id"]
    command = said["command"]
    if command[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(f"{command[2]}.__main__") is not None
        assert (folder / "requirements.txt").is_file()
    assert f"# {folder.name}" in (folder / "README.md").read_text()
