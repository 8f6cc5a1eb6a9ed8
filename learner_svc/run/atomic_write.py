"""Writes a file so that it is complete or absent even after a crash: temporary file, fsync, rename, fsync folder."""

import contextlib
import os
from pathlib import Path

from seedbed.shared.runtime.files import writing

TEMPORARY_PREFIX = ".tmp-"  # of the file that an interrupted write leaves


def write_durably(path: Path, content: str | bytes) -> None:
    """Write a file atomically and durably: a reader sees the old content or all of the new. Raises: StorageError."""
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()  # it would occupy space that the next attempt needs
            raise
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
