"""Turns errors of writing a run's files into one error that says where, why, and what to do."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from seedbed.shared.errors import StorageError

FREE_SPACE = "free space there"
MAKE_WRITABLE = "make the folder writable for this user, or choose another"
REMEDIES = {
    errno.ENOSPC: FREE_SPACE,
    errno.EDQUOT: FREE_SPACE,
    errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.EACCES: MAKE_WRITABLE,
    errno.EPERM: MAKE_WRITABLE,
    errno.EROFS: MAKE_WRITABLE,
    errno.ENOENT: "the folder was moved or deleted; put it back, or choose another",
    errno.ENOTDIR: "a file is where a folder should be; choose another",
}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context manager around writing or removing `path`. Raises: StorageError for any OSError in it."""
    try:
        yield
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "check the disk")
        raise StorageError(f"cannot write {path}: {error.strerror or error}; {remedy}") from error
