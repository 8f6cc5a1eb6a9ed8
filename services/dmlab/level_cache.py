"""Compiled maps in a directory, shared by all actors of a machine; compiling one takes DeepMind Lab seconds."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from seedbed.shared.errors import ConfigError


class LevelCache:
    """A cache of compiled maps with the methods that `deepmind_lab.Lab` calls. Files are named by a digest of the key.

    Files appear whole or not at all, so actors may share the directory. No file is ever changed or removed.

    Raises: ConfigError if nothing can be written to the directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
        except OSError as error:
            raise ConfigError(f"env.kwargs.level_cache: {directory}: {error.strerror or error}") from error

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy a cached map to `pk3_path`; return False if it is not in the cache."""
        try:
            shutil.copyfile(self._path(key), pk3_path)
        except OSError:  # not there, or not to be read: it is compiled again
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Store a map that the simulator compiled. If the disk refuses it, the map is compiled again another time."""
        path = self._path(key)
        if path.exists():
            return
        with contextlib.suppress(OSError), contextlib.ExitStack() as undo:
            path.parent.mkdir(exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
            os.close(handle)
            undo.callback(Path(name).unlink, missing_ok=True)
            shutil.copyfile(pk3_path, name)
            Path(name).replace(path)

    def _path(self, key: str) -> Path:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return self._directory / digest[:2] / f"{digest[2:]}.pk3"
