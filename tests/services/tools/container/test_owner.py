"""As whom a run is written, and what is said where it cannot be; as root with real owners, else with one's own."""

import errno
import os
import re
import stat

import pytest
import typer

from seedbed.services.tools.cli.app import app
from seedbed.services.tools.container.owner import (
    HOST_VARIABLE,
    IMAGE_USER,
    UNKNOWN,
    User,
    check_writable,
    choose_user,
    command_as,
    describe,
    hand_over,
    settle,
    try_to_write,
)
from seedbed.shared.errors import ConfigError

SOMEBODY, ANOTHER = User(uid=4321, gid=4322), User(uid=1234, gid=1235)
ROOT, NOBODY_KNOWN = User(uid=0, gid=0), User(uid=UNKNOWN, gid=UNKNOWN)
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")


def _let_others_through(folder):
    for path in (folder, *folder.parents[:2]):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXGRP | stat.S_IXOTH)


@pytest.mark.parametrize(
    ("owners", "is_machines_root", "expected"),
    [
        ([SOMEBODY, ANOTHER], True, SOMEBODY),
        ([ROOT, ANOTHER], True, ANOTHER),  # Docker made the folder
        ([ROOT, ROOT], True, IMAGE_USER),
        ([ROOT, ANOTHER], False, ROOT),  # rootless: who cloned it
        ([NOBODY_KNOWN, ANOTHER], False, ANOTHER),
        ([NOBODY_KNOWN, NOBODY_KNOWN], False, IMAGE_USER),
        ([User(uid=4321, gid=0)], True, User(uid=4321, gid=4321)),
        ([User(uid=4321, gid=0)], False, User(uid=4321, gid=0)),
    ],
)
def test_a_run_belongs_to_the_owner_of_the_runs_or_else_of_the_clone_and_never_to_the_machines_root(
    owners, is_machines_root, expected
):
    """Whoever looks at a run can delete it, and no service is root."""
    assert choose_user(owners, is_machines_root=is_machines_root) == expected


@as_root
def test_what_is_roots_is_handed_over_and_nothing_else(tmp_path):
    """No other run, no other user's file, no target of a link, and nothing that has a second name elsewhere."""
    run, other, outside = tmp_path / "runs" / "pong", tmp_path / "runs" / "other", tmp_path / "outside"
    for folder in (run, other, outside):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    (run / "link").symlink_to(outside)
    (run / "same").hardlink_to(outside / "file")
    (run / "theirs").touch()
    os.chown(run / "theirs", ANOTHER.uid, ANOTHER.gid)
    hand_over(tmp_path / "runs", run, SOMEBODY)
    assert [User.owner(path) for path in (tmp_path / "runs", run, run / "file")] == [SOMEBODY] * 3
    assert [User.owner(path) for path in (other, other / "file", outside, outside / "file")] == [ROOT] * 4
    assert User.owner(run / "theirs") == ANOTHER


@as_root
def test_it_is_tried_as_the_user_who_will_write(tmp_path):
    """Root itself could write everywhere."""
    assert try_to_write(tmp_path, SOMEBODY) == errno.EACCES
    os.chown(tmp_path, SOMEBODY.uid, SOMEBODY.gid)
    _let_others_through(tmp_path.parent)
    assert try_to_write(tmp_path, SOMEBODY) == 0
    assert list(tmp_path.iterdir()) == []


def test_runs_of_ones_own_are_written_and_those_that_are_not_mounted_are_told(tmp_path):
    """A run that is not there yet will be made; the folder of runs must be."""
    assert settle(tmp_path, tmp_path / "pong", tmp_path, as_owner=False) == User.current()
    with pytest.raises(ConfigError, match="mount a folder"):
        settle(tmp_path / "nowhere", tmp_path / "nowhere" / "pong", tmp_path, as_owner=False)


@pytest.fixture
def closed_runs(tmp_path):
    """A folder that the present user may not read; no root, who may, for as long as the test takes."""
    runs, users = tmp_path / "runs", os.getresuid()
    runs.mkdir(0o000)
    if users[1] == 0:
        _let_others_through(tmp_path)
        os.setresuid(1000, 1000, 0)
    yield runs
    os.setresuid(*users)


def test_runs_that_their_owner_closed_to_others_are_told_with_what_to_do(closed_runs):
    """As in a clone with umask 077, where whoever looks may not even see whether the run is there."""
    with pytest.raises(ConfigError, match=r"ch(mod|own) -R"):
        settle(closed_runs, closed_runs / "pong", closed_runs.parent, as_owner=False)


def test_the_command_line_leaves_it_to_the_owner_whether_runs_can_be_read(closed_runs):
    """The learner's container starts as a root without rights, and becomes the owner later."""
    container = typer.main.get_command(app).commands["container"]
    given = container.make_context("container", ["learner", "cartpole", "--runs", str(closed_runs)]).params
    assert given["runs"] == closed_runs


@pytest.mark.parametrize(
    ("code", "owner", "remedy"),
    [
        (errno.EACCES, ANOTHER, "sudo chown -R 4321:4322 data/pong"),
        (errno.EACCES, NOBODY_KNOWN, "sudo chown -R 4321:4322 data/pong"),
        (errno.EPERM, SOMEBODY, "chmod -R u+rwX data/pong"),
        (errno.EROFS, SOMEBODY, "RUNS="),
        (errno.ENOSPC, SOMEBODY, "RUNS="),
        (errno.EIO, SOMEBODY, os.strerror(errno.EIO)),
    ],
)
def test_what_is_in_the_way_is_told_with_what_to_do(code, owner, remedy):
    """For the folder as it is called on the host."""
    said = describe(code, "data/pong", owner, SOMEBODY)
    assert said.startswith("data/pong ")
    assert remedy in said


@as_root
@pytest.mark.parametrize(
    ("mounted", "on_host"),
    [("../runs", "runs"), ("../../data", "../data"), ("./data", "compose/data"), ("/srv/my runs", "'/srv/my runs'")],
)
def test_the_command_that_helps_names_the_folder_as_it_is_called_in_the_clone(mounted, on_host, tmp_path, monkeypatch):
    """RUNS is relative to compose/, and commands are typed in the folder around it."""
    monkeypatch.setenv(HOST_VARIABLE, mounted)
    with pytest.raises(ConfigError, match=rf"\nsudo chown -R 4321:4322 {re.escape(on_host)}\n"):
        check_writable(tmp_path, tmp_path, SOMEBODY)


def test_root_is_given_up_for_good():
    """Nothing that the new user could take back."""
    words = command_as(SOMEBODY, ["python", "-m", "x"])
    assert words[-4:] == ["--", "python", "-m", "x"]
    assert {"--reuid=4321", "--regid=4322", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"} <= set(words)
