"""`seedbed keys` as its user meets it: files are made, listed and revoked, and no secret is shown."""

import pytest

from services.cli.app import main
from shared.net.keys import read_pair


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
