"""`seedbed keys` as its user meets it: files are made, listed and revoked, and no secret is shown."""

import shutil

import pytest

from seedbed.services.tools.cli.app import main
from seedbed.shared.net.keys import read_pair


@pytest.fixture
def folder(tmp_path, capsys):
    """The keys of a first deployment, in a folder whose name looks like markup."""
    assert main(["keys", "init", str(tmp_path / "[b]keys")]) == 0
    return tmp_path / "[b]keys"


def test_init_names_the_secret_files_and_shows_none(tmp_path, capsys):
    """One line for each, and what to do with them."""
    folder = tmp_path / "[b]keys"
    assert main(["keys", "init", str(folder)]) == 0
    said = capsys.readouterr().out
    files = sorted(folder.rglob("*.key"))
    assert len(files) == 5
    for file in files:
        assert f"made {file}\n" in said
        assert read_pair(file).secret not in said
    assert f"runtime.keys={folder}" in said


def test_a_new_key_is_listed_until_it_is_revoked(folder, capsys):
    """By role, name and what it opens."""
    assert main(["keys", "new", "environment", "robot-7", "--folder", str(folder)]) == 0
    assert f"Take {folder}/environment/robot-7" in capsys.readouterr().out
    public = read_pair(folder / "environment" / "robot-7" / "client.key").public
    assert main(["keys", "list", "--folder", str(folder)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "robot-7" in line]
    assert line.split() == ["environment", "robot-7", f"{public[:8]}…", "opens", "inference"]
    assert main(["keys", "revoke", "robot-7", "--folder", str(folder)]) == 0
    assert "environment:robot-7 is revoked" in capsys.readouterr().out
    assert main(["keys", "list", "--folder", str(folder)]) == 0
    assert "robot-7" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["init", "FOLDER"], 78, "never overwritten"),
        (["new", "environment", "default", "--folder", "FOLDER"], 78, "never overwritten"),
        (["new", "environment", "a/b", "--folder", "FOLDER"], 78, "no name for a key"),
        (["new", "king", "x", "--folder", "FOLDER"], 2, "'environment'"),
        (["revoke", "nobody", "--folder", "FOLDER"], 78, "there are: environment:default"),
        (["list", "--folder", "FOLDER/nowhere"], 78, "seedbed keys init"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_way_out(folder, capsys, words, code, complaint):
    """One error, no traceback."""
    assert main(["keys", *(word.replace("FOLDER", str(folder)) for word in words)]) == code
    said = capsys.readouterr().err
    assert complaint in said
    assert "Traceback" not in said


def test_init_that_keeps_makes_what_is_missing_and_nothing_else(tmp_path, capsys):
    """For a deployment that starts again: all at first, nothing the second time, a new key after a revocation."""
    keys = tmp_path / "keys"
    assert main(["keys", "init", str(keys), "--keep"]) == 0
    assert capsys.readouterr().out.count("made ") == 5
    before = {file: file.read_bytes() for file in keys.rglob("*.key")}
    assert main(["keys", "init", str(keys), "--keep"]) == 0
    assert "made " not in capsys.readouterr().out
    assert {file: file.read_bytes() for file in keys.rglob("*.key")} == before
    assert main(["keys", "revoke", "environment:default", "--folder", str(keys)]) == 0
    assert main(["keys", "init", str(keys), "--keep"]) == 0
    assert f"made {keys}/environment/default/client.key" in capsys.readouterr().out
    after = {file: file.read_bytes() for file in keys.rglob("*.key")}
    assert {file for file in before if before[file] != after[file]} == {keys / "environment/default/client.key"}


@pytest.mark.parametrize(
    ("lost", "remedy"),
    [("learner", "Remove the keys of all roles"), ("inference", "seedbed keys revoke inference:main")],
)
def test_keys_that_do_not_belong_together_are_refused(tmp_path, capsys, lost, remedy):
    """A server's folder was lost: what others know of it is worthless."""
    keys = tmp_path / "keys"
    assert main(["keys", "init", str(keys), "--keep"]) == 0
    shutil.rmtree(keys / lost)
    assert main(["keys", "init", str(keys), "--keep"]) == 78
    assert remedy in capsys.readouterr().err
