"""Files that are whole or not there, whatever kills the writer: written aside, fsynced, renamed, the folder fsynced."""

import os
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"  # what an interrupted write leaves


def write_durably(path: Path, content: str | bytes) -> None:
    """The whole content under its name, or what was there before. Blocking."""
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
