"""The run folder."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.run.folder import RunFolder, to_toml
from seedbed.shared.errors import ConfigError, StorageError
from seedbed.shared.runtime.load_config import load_settings


def test_a_second_learner_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    """The lock excludes another process as well as another object, and ends with its holder."""
    imports = "from pathlib import Path; from seedbed.learner_svc.run.folder import RunFolder"
    script = f"{imports}; RunFolder(Path({str(tmp_path)!r}))"
    with RunFolder(tmp_path):
        with pytest.raises(ConfigError, match=r"held by process \d+ on .* since"):
            RunFolder(tmp_path)
        refused = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
        assert "is held by process" in refused.stderr
    subprocess.run([sys.executable, "-c", script], check=True)
    RunFolder(tmp_path).close()


def test_a_folder_that_cannot_be_written_is_told_so(tmp_path: Path) -> None:
    """As a wrong configuration: no restart helps."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run.dir: cannot write .*file/run: Not a directory"):
        RunFolder(tmp_path / "file" / "run")


def test_epochs_rise_with_every_life(tmp_path: Path) -> None:
    """Apart from checkpoints: also a life that saved nothing counts."""
    for expected in (1, 2, 3):
        with RunFolder(tmp_path) as folder:
            assert folder.next_epoch() == expected


def test_a_damaged_epoch_is_not_guessed(tmp_path: Path) -> None:
    """An epoch that went back would let old weights win."""
    (tmp_path / "epoch").write_text("")
    with RunFolder(tmp_path) as folder, pytest.raises(ConfigError, match="epoch"):
        folder.next_epoch()


def test_a_run_keeps_its_id(tmp_path: Path) -> None:
    """Restarts are the same run; another folder is another."""
    with RunFolder(tmp_path / "a") as folder:
        run_id = folder.run_id()
    with RunFolder(tmp_path / "a") as folder, RunFolder(tmp_path / "b") as other:
        assert folder.run_id() == run_id
        assert other.run_id() != run_id


def test_the_kept_configuration_can_be_loaded_again(tmp_path: Path) -> None:
    """What was resolved comes back as it was, without this process's own section."""
    words = ["env.id=e", 'env.kwargs={"a b" = [1, 2.5, true], c = "x\\"y"}', "learner.batch=7", "policy.hidden=[3]"]
    settings = load_settings(LearnerSettings, None, words)
    with RunFolder(tmp_path) as folder:
        folder.write_config(settings)
    file = tmp_path / "config.toml"
    assert "runtime" not in tomllib.loads(file.read_text())
    assert load_settings(LearnerSettings, file) == settings


def test_none_is_left_out_of_toml() -> None:
    """TOML has no null."""
    assert tomllib.loads(to_toml({"run": {"a": None, "b": {"c": None, "d": 1}, "e": "ü"}})) == {
        "run": {"b": {"d": 1}, "e": "ü"}
    }


def test_versions_are_kept_for_every_life(tmp_path: Path) -> None:
    """One entry for each epoch."""
    with RunFolder(tmp_path) as folder:
        for epoch in (1, 2):
            folder.write_versions(epoch)
    text = (tmp_path / "versions.json").read_text()
    assert '"1"' in text
    assert '"2"' in text
    assert "torch" in text


def test_the_summary_comes_back(tmp_path: Path) -> None:
    """And a missing or damaged one is empty."""
    with RunFolder(tmp_path) as folder:
        assert folder.summary() == {}
        folder.write_summary({"finished": True})
        assert folder.summary() == {"finished": True}
        (tmp_path / "summary.json").write_text("{")
        assert folder.summary() == {}


def test_a_folder_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    """Deleted, or another put in its place: what would be written there is nobody's."""
    path = tmp_path / "run"
    with RunFolder(path) as folder:
        folder.check_held()
        path.rename(tmp_path / "moved")
        with pytest.raises(StorageError, match="was deleted or moved while it was in use"):
            folder.check_held()
        with RunFolder(path), pytest.raises(StorageError):
            folder.check_held()
