"""`docker-compose up` in a fresh clone, whoever typed it: nothing is set before it, and nothing is typed after it."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.compose_stack import COMMANDS, START_S, USER, Clone, compose_commands
from tests.support.deployment import PATIENCE, wait_until

ROOT, SOMEBODY, ANOTHER = 0, 1000, 1001
SEVERAL = pytest.mark.skipif(os.getuid() != ROOT, reason="only root can be several users")
V2 = pytest.mark.skipif(COMMANDS[1] not in compose_commands(), reason="no docker compose")


@pytest.fixture
def clone():
    """Make a clone for a user, where that user can get at it; everything is gone afterwards."""
    places = []

    def make(user: int, command: tuple[str, ...] = ()) -> Clone:
        places.append(Path(tempfile.mkdtemp(prefix="seedbed-clone-", dir="/tmp")))
        places[-1].chmod(0o755)
        return Clone("seedbedclone", places[-1] / "seedbed", user, command)

    yield make
    for place in places:
        shutil.rmtree(place)


@pytest.mark.parametrize(
    ("user", "owner", "command"),
    [
        pytest.param(ROOT, USER, COMMANDS[0], marks=SEVERAL),
        pytest.param(SOMEBODY, SOMEBODY, COMMANDS[0], marks=SEVERAL),
        pytest.param(ANOTHER, ANOTHER, COMMANDS[0], marks=SEVERAL),
        pytest.param(ANOTHER, ANOTHER, COMMANDS[1], marks=[SEVERAL, V2]),
        pytest.param(os.getuid(), os.getuid() or USER, (), marks=pytest.mark.skipif(os.getuid() == ROOT, reason="")),
    ],
)
def test_up_in_a_fresh_clone_solves_cartpole_and_shows_it(clone, user, owner, command):
    """The run belongs to whoever cloned, or, where that is root, to the images' user."""
    with clone(user, command) as stack:
        stack.watch()
        wait_until(lambda: stack.is_finished("cartpole"), "CartPole is solved", START_S * PATIENCE)
        assert stack.summary("cartpole")["eval_return_mean"] >= 475
        wait_until(lambda: stack.page("/api/runs/cartpole") == 200, "the page shows it", START_S)
        run = stack.runs / "cartpole"
        assert {path.stat().st_uid for path in (stack.runs, run, *run.rglob("*"))} == {owner}


@SEVERAL
def test_runs_that_may_not_be_written_are_told_and_the_run_goes_on_once_they_may(clone):
    """Where docker-compose up is watched, and again and again."""
    with clone(ANOTHER) as stack:
        stack.runs.chmod(0o555)
        stack.watch()
        wait_until(lambda: stack.said().count("chmod -R u+rwX") > 1, "it is told twice", START_S)
        stack.runs.chmod(0o755)
        wait_until(lambda: stack.is_finished("cartpole"), "CartPole is solved", START_S * PATIENCE)


@pytest.fixture
def disk():
    """Mount a small disk at a folder; it is gone afterwards."""
    mounted = []

    def mount(folder: Path) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "disk", folder], check=True)
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "--lazy", folder], check=True)


@SEVERAL
def test_a_disk_that_is_read_only_and_then_full_is_told_and_the_run_goes_on_once_there_is_room(clone, disk):
    """A container sees a mount as it was when it started, so it is started again."""
    with clone(ROOT) as stack:
        disk(stack.runs)
        with (stack.runs / "filler").open("wb") as filler:
            seen = os.statvfs(stack.runs)
            os.posix_fallocate(filler.fileno(), 0, seen.f_bavail * seen.f_frsize)
        subprocess.run(["mount", "-o", "remount,ro", stack.runs], check=True)
        stack.watch()
        wait_until(lambda: "is mounted read-only" in stack.said(), "it is told that it is read-only", START_S)
        subprocess.run(["mount", "-o", "remount,rw", stack.runs], check=True)
        wait_until(lambda: "is on a disk that is full" in stack.said(), "it is told that it is full", START_S)
        (stack.runs / "filler").unlink()
        wait_until(lambda: stack.is_finished("cartpole"), "CartPole is solved", START_S * PATIENCE)
