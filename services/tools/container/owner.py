"""As whom a learner writes its run, and what is in its way where it cannot.

A run belongs to the owner of the folder of runs, so that whoever looks at it can move and delete it. In a container
that starts as root for this (`--as-owner` in compose/compose.yaml), `settle` finds out who that is and hands over what
only root may write there, and `command_as` gives up root for good. Any other learner writes as who it was started as.

In a user namespace, such as a rootless engine's, this container's root is an ordinary user of the machine, and the
folder's owner may be one who has no number in here at all.
"""

import contextlib
import errno
import os
import shlex
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from seedbed.shared.errors import ConfigError

UNKNOWN = 65534  # how the kernel shows an owner who has no number in this user namespace
HOST_VARIABLE = "SEEDBED_HOST_RUNS"  # the folder of runs on the host; as in compose.yaml, relative to compose/
BLOCK = 4096  # bytes that are written for a trial: a full disk takes an empty file


class ReadOnlyMountError(ConfigError):
    """A container sees what is mounted, and how, as it was when it started: it must be started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Numbers of a user and a group, as this container sees them."""

    uid: int
    gid: int

    @classmethod
    def current(cls) -> Self:
        """The user and group of this process."""
        return cls(uid=os.getuid(), gid=os.getgid())

    @classmethod
    def owner(cls, folder: Path) -> Self:
        """The user and group that a folder belongs to."""
        seen = folder.stat()
        return cls(uid=seen.st_uid, gid=seen.st_gid)

    @property
    def on_host(self) -> str:
        """UID:GID, as `chown` outside takes it."""
        return f"{number_on_host(self.uid, 'uid')}:{number_on_host(self.gid, 'gid')}"


IMAGE_USER = User(uid=1000, gid=1000)  # whom the images run as, and whose group may read the keys


def number_on_host(number: int, kind: str) -> int:
    """A user's or group's number outside this user namespace; the number itself where nobody knows.

    Args:
      kind: uid or gid.
    """
    try:
        lines = Path(f"/proc/self/{kind}_map").read_text().splitlines()
    except OSError:
        return number
    for inside, outside, count in (map(int, line.split()) for line in lines):
        if inside <= number < inside + count:
            return outside + number - inside
    return number


def settle(runs: Path, run_dir: Path, project: Path, *, as_owner: bool) -> User:
    """As whom the run is written: this process's user, or whom `choose_user` finds, who then gets what is root's there.

    Args:
      runs: where the folder of runs is mounted.
      run_dir: this run's, which need not be there yet.
      project: a folder of the clone's.
      as_owner: find the owner, where this process is root's.
    Raises: ConfigError if the run cannot be written, with what to do; ReadOnlyMountError if a restart must come, too.
    """
    if not runs.is_dir():
        raise ConfigError(f"{runs} is not there: mount a folder of the host's there, for the runs")
    user = User.current()
    if as_owner and user.uid == 0:
        is_machines_root = number_on_host(0, "uid") == 0
        user = choose_user([User.owner(runs), User.owner(project)], is_machines_root=is_machines_root)
        if is_machines_root:
            hand_over(runs, run_dir, user)
    is_seen = os.path.isdir(run_dir)  # False also where `runs` is closed to whom this process still is
    check_writable(run_dir if is_seen else runs, runs, user)
    return user


def choose_user(owners: Sequence[User], *, is_machines_root: bool) -> User:
    """The first of these who is neither the machine's root nor unknown in here; else the images' user.

    Args:
      is_machines_root: whether 0 is the machine's root, and not an ordinary user as in a rootless engine's containers.
    """
    forbidden = {UNKNOWN, 0} if is_machines_root else {UNKNOWN}
    for owner in owners:
        if owner.uid not in forbidden:
            return replace(owner, gid=owner.uid) if owner.gid in forbidden else owner
    return IMAGE_USER


def hand_over(runs: Path, run_dir: Path, user: User) -> None:
    """Give root's files of this run, and the folder of runs itself if it is root's, to a user.

    Docker makes a folder that is missing as root, and so does whoever trained as root. What cannot be given away, as on
    a file system that knows no owners, stays as it is.
    """
    for folder in (runs, run_dir):
        _give(folder, user)
    with contextlib.suppress(OSError):  # such as no run there yet
        for _, folders, files, place in os.fwalk(run_dir):
            for name in (*folders, *files):
                _give(name, user, place)


def _give(name: str | Path, user: User, place: int | None = None) -> None:
    """Change the owner of a file of root's; no link is followed, and no file that has other names is touched.

    Args:
      place: descriptor of the folder that it is in.
    """
    with contextlib.suppress(OSError):  # `check_writable` tells what this keeps from working
        seen = os.stat(name, dir_fd=place, follow_symlinks=False)
        if seen.st_uid == 0 and (stat.S_ISDIR(seen.st_mode) or seen.st_nlink == 1):
            os.chown(name, user.uid, user.gid, dir_fd=place, follow_symlinks=False)


def check_writable(folder: Path, runs: Path, user: User) -> None:
    """Refuse a folder in which this user cannot write a file, with what to do.

    Args:
      folder: the one to try, `runs` or the run's own.
    Raises: ConfigError.
    """
    if code := try_to_write(folder, user):
        mounted = os.environ.get(HOST_VARIABLE)
        host = os.path.normpath(os.path.join("compose", mounted)) if mounted else runs.name
        shown = host if folder == runs else f"{host}/{folder.name}"
        error = ReadOnlyMountError if code == errno.EROFS else ConfigError
        raise error(describe(code, shown, User.owner(folder), user))


def try_to_write(folder: Path, user: User) -> int:
    """The number of the error that this user meets when writing a file there; 0 if none."""
    if user == User.current():
        return _write_and_delete(folder)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([IMAGE_USER.gid])
            os.setgid(user.gid)
            os.setuid(user.uid)
            os._exit(_write_and_delete(folder))
        except OSError as error:
            os._exit(error.errno or errno.EIO)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _write_and_delete(folder: Path) -> int:
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".trial-", buffering=0) as file:
            file.write(bytes(BLOCK))
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def describe(code: int, shown: str, owner: User, user: User) -> str:
    """Why a user cannot write in a folder, and what to do about it.

    Args:
      code: the error's number.
      shown: the folder's path on the host; a relative one starts in the clone.
    """
    if code in (errno.EACCES, errno.EPERM):
        whose = f"user {number_on_host(owner.uid, 'uid')}"
        if owner.uid == UNKNOWN:
            whose = "a user who has no number in this engine's containers"
        remedy = f"sudo chown -R {user.on_host} {shlex.quote(shown)}"
        if owner.uid == user.uid:
            remedy = f"chmod -R u+rwX {shlex.quote(shown)}"
        elif owner.uid == 0 == os.getuid():  # root in here could not give it away
            remedy += f"\nOr, if its file system knows no owners, mount it with uid={user.uid},gid={user.gid}"
        who = f"user {number_on_host(user.uid, 'uid')}, as whom the learner runs"
        return f"{shown} belongs to {whose} and cannot be written by {who}. On the host:\n{remedy}"
    causes = {
        errno.EROFS: "is mounted read-only: mount it for writing",
        errno.ENOSPC: "is on a disk that is full: make room there",
        errno.EDQUOT: "is on a disk where the quota is used up: make room there",
    }
    cause = causes.get(code, f"cannot be written ({os.strerror(code)}): fix that")
    return f"{shown} {cause}, or put RUNS=/path/to/ANOTHER_FOLDER into .env and start again"


def command_as(user: User, command: Sequence[str]) -> list[str]:
    """A command as another user, for good: without a capability, and without a way to gain one.

    It keeps the group of the images' user, which may read the keys.
    """
    become = ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", f"--groups={IMAGE_USER.gid}"]
    return [*become, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", "--", *command]
