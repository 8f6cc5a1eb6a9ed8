"""A growing file of lines, read piece by piece: each byte once, however often somebody looks. Blocking.

The writer may append, replace the file (a resumed run drops rows, a new column rewrites the table), cut it or delete
it. What was read before is then void, and reading begins anew.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

GUARD_BYTES = 64  # the last bytes that were read, compared before more is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole lines. `restarted`: what earlier pieces held is void. `share`: of the file that has been read, 0 to 1."""

    data: bytes
    restarted: bool
    share: float


class LineTail:
    """Owned by one thread at a time. Memory: `GUARD_BYTES`; the file is not kept open."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._identity = (0, 0)  # device and inode
        self._offset = 0
        self._guard = b""

    def read(self, max_bytes: int) -> Piece:
        """The next lines that are complete; a last line without its line break is left for later.

        Raises: OSError if the file cannot be read; one that is not there (any more) is empty.
        """
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe may not hold us
        except FileNotFoundError:
            return Piece(data=b"", restarted=self._begin_anew((0, 0)), share=1.0)
        try:
            return self._read(descriptor, max_bytes)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, max_bytes: int) -> Piece:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        identity = (state.st_dev, state.st_ino)
        restarted = False
        seen = os.pread(descriptor, len(self._guard), self._offset - len(self._guard))
        if identity != self._identity or seen != self._guard:
            restarted = self._begin_anew(identity)
        data = os.pread(descriptor, max_bytes, self._offset)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == max_bytes:  # no line is that long: pass over it, its reader counts it as broken
            end = len(data)
        data = data[:end]
        self._offset += end
        self._guard = (self._guard + data)[-GUARD_BYTES:]
        return Piece(data=data, restarted=restarted, share=min(1.0, self._offset / state.st_size if end else 1.0))

    def _begin_anew(self, identity: tuple[int, int]) -> bool:
        """Whether anything had been read before."""
        had_read = self._offset > 0
        self._identity, self._offset, self._guard = identity, 0, b""
        return had_read
