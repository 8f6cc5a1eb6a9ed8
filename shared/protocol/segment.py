"""A segment of shared memory, through which unrolls reach a learner on the same machine without a socket, and weights
come back.

1. The producer makes a file that begins with a secret number, and PRODUCER_HELLO names it. The learner opens the file
   if it can, and PRODUCER_WELCOME repeats the secret. Without it the unrolls travel over the socket: the learner is on
   another machine, in a container with another /dev/shm, another user, or has no use for it.
2. Each end removes the file's name as soon as it knows that the learner has it open. A producer that is killed before
   leaves its lock free, and the next one removes the file.
3. The producer copies an unroll to a place, and UNROLL names the place. The learner copies it at once, and judges only
   its copy, so a producer that writes there later spoils nothing. `received_through` in CREDIT frees places.
4. A segment belongs to one WELCOME: after each greeting there is another one. So an UNROLL of an earlier connection
   cannot be taken for one whose rows have replaced it: it names another segment, and is challenged instead of read.
5. An unroll that finds no place travels over the socket, whenever that is: a full segment is no fault.
6. The learner reads by pread, so a producer that truncates the file causes a short read; with a map the learner would
   die by SIGBUS. The producer maps the file, since writing to a map takes a third of the time of pwrite. Its space is
   reserved before it is written to, and only a process of the same user could take it away.
7. GET names a place at the segment's end, once the producer knows how large the weights are, and the learner may put
   them there. A late answer may meet the place while it is read, so it begins with the version of what is there, which
   the learner writes last; the producer reads it before and after, and asks again if the two differ.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from seedbed.shared.errors import RemoteWireError

FOLDER = Path("/dev/shm")
MAX_SEGMENT_BYTES = 1 << 30
_PREFIX = "seedbed-"
_MAGIC = b"seedbed1"
_WORD = 8  # bytes of magic and secret each
_PAGE = 4096
_HEADER_BYTES = _PAGE  # before the first place, which then begins a page


class NoSegmentError(Exception):
    """There is no segment; the text says why, for the log."""


class SharedPlace(NamedTuple):
    """Where in a segment an unroll lies."""

    segment: int
    offset: int
    length: int


class _Taken(NamedTuple):
    seq: int
    offset: int  # counted from the first place, as `end`
    end: int


class Segment:
    """The producer's end. Owned by inference's loop; memory: at most `num_bytes` in /dev/shm, as far as it is used.

    Places of unrolls are taken in the order of unrolls and freed in that order, so they are a ring. When all are free,
    the next place is the first one again, so that a learner that keeps up reads what the processor's cache still has.
    The place of weights is behind the ring.
    """

    def __init__(self, num_bytes: int, folder: Path = FOLDER) -> None:
        """Make the file. Raises: NoSegmentError if there is no such folder, no permission or not enough free space."""
        self.id, self.secret = secrets.randbits(63) or 1, secrets.randbits(63) or 1
        self.num_bytes = min(num_bytes, MAX_SEGMENT_BYTES)
        self._path = _path_of(self.id, folder)
        self._taken: deque[_Taken] = deque()
        self._ring_bytes = self.num_bytes
        self._weights: SharedPlace | None = None
        self._num_reserved = 0  # bytes from the first place on that the kernel has promised
        try:
            space = os.statvfs(folder)
            free = space.f_bavail * space.f_frsize
            if free < self.num_bytes:
                raise NoSegmentError(f"{folder} has {free} bytes free, and {self.num_bytes} are wanted")
            # Without a name until it is locked: nobody may find it and take it for one that a killed producer left.
            self._file = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NoSegmentError(f"{folder}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._file, _MAGIC + self.secret.to_bytes(_WORD, "little"), 0)
            os.ftruncate(self._file, _HEADER_BYTES + self.num_bytes)
            self._map = mmap.mmap(self._file, _HEADER_BYTES + self.num_bytes)
            # An absolute path needs no `src_dir_fd`, but without it Python calls link, which follows no symbolic link.
            os.link(f"/proc/self/fd/{self._file}", self._path, src_dir_fd=self._file, follow_symlinks=True)
        except OSError as error:
            os.close(self._file)
            raise NoSegmentError(f"{self._path}: {error.strerror or error}") from error

    def put(self, seq: int, frames: Sequence[bytes | bytearray | memoryview]) -> SharedPlace | None:
        """Copy the frames of an unroll to a place, one behind the other, and return it; None if none is free.

        Once an unroll has a place, further calls return it, until it is freed.
        """
        if self._taken and seq <= self._taken[-1].seq:
            return next((self._place(taken) for taken in self._taken if taken.seq == seq), None)
        length = sum(map(len, frames))
        offset = self._find_room(length)
        if offset is None or not self._reserve(offset + length):
            return None
        begin = _HEADER_BYTES + offset
        for frame in frames:
            self._map[begin : begin + len(frame)] = frame
            begin += len(frame)
        taken = _Taken(seq, offset, offset + length)
        self._taken.append(taken)
        return self._place(taken)

    def free(self, received_through: int) -> None:
        """Free the places of all unrolls below a number, because the learner has copied them."""
        while self._taken and self._taken[0].seq < received_through:
            self._taken.popleft()

    def place_for_weights(self, num_bytes: int) -> SharedPlace | None:
        """Return the place where the learner may put weights of so many bytes; None if there is no room for it.

        Unrolls keep at least half of the segment. The place stays the same, and weights of another size get none: they
        are of another learner, which gets another segment.
        """
        length = _WORD + num_bytes
        if self._weights is None:
            begin = (self.num_bytes - length) // _PAGE * _PAGE
            is_free = all(taken.end <= begin for taken in self._taken)
            if begin < self.num_bytes // 2 or not is_free or not self._reserve_range(begin, length):
                return None
            self._weights, self._ring_bytes = SharedPlace(self.id, begin, length), begin
        return self._weights if self._weights.length == length else None

    def take_weights(self, version: int) -> bytes | None:
        """Return a copy of the weights that the learner has put there; None unless they are of this version."""
        if self._weights is None:
            return None
        begin = _HEADER_BYTES + self._weights.offset
        expected = version.to_bytes(_WORD, "little")
        before = self._map[begin : begin + _WORD]
        buffer = self._map[begin + _WORD : begin + self._weights.length]
        return buffer if before == expected == self._map[begin : begin + _WORD] else None

    def withdraw(self) -> None:
        """Remove the file's name; whoever has it open keeps it. Idempotent."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Remove the name and give up the memory, which is freed once the learner has closed it too."""
        self.withdraw()
        self._map.close()
        os.close(self._file)

    def _reserve(self, end: int) -> bool:
        """Reserve memory up to `end`, and return whether there is any: writing to a map without it ends the process."""
        if end > self._num_reserved:
            if not self._reserve_range(self._num_reserved, end - self._num_reserved):
                return False
            self._num_reserved = end
        return True

    def _reserve_range(self, begin: int, length: int) -> bool:
        try:
            os.posix_fallocate(self._file, _HEADER_BYTES + begin, length)
        except OSError:
            return False
        return True

    def _find_room(self, length: int) -> int | None:
        if not self._taken:
            return 0 if 0 < length <= self._ring_bytes else None
        first, end = self._taken[0].offset, self._taken[-1].end
        if first < end and end + length <= self._ring_bytes:
            return end
        begin = 0 if first < end else end
        return begin if begin + length <= first else None

    def _place(self, taken: _Taken) -> SharedPlace:
        return SharedPlace(self.id, taken.offset, taken.end - taken.offset)


class OpenedSegment:
    """The learner's end of a segment. Owned by the learner's loop."""

    def __init__(self, file: int, segment: int, num_bytes: int, secret: int) -> None:
        self.id, self.secret, self._file, self._num_bytes = segment, secret, file, num_bytes
        self._place: SharedPlace | None = None  # where the producer wants the next weights

    @classmethod
    def open(cls, segment: int, num_bytes: int, folder: Path = FOLDER) -> Self | None:
        """Open the file of a segment and remove its name; None if there is none here that is this user's.

        Never blocks, and opens only a regular file of this user that begins as a segment does.
        """
        path = _path_of(segment, folder)
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        status, header = os.fstat(file), b""
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and num_bytes <= MAX_SEGMENT_BYTES:
            header = os.pread(file, 2 * _WORD, 0)
        if len(header) < 2 * _WORD or not header.startswith(_MAGIC):
            os.close(file)
            return None
        with contextlib.suppress(OSError):
            path.unlink()
        return cls(file, segment, num_bytes, int.from_bytes(header[_WORD:], "little"))

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of what lies at a place. Raises: RemoteWireError if that is not within the segment or file."""
        self._check(offset, length, "an UNROLL")
        try:
            frame = os.pread(self._file, length, _HEADER_BYTES + offset)
        except OSError as error:
            raise RemoteWireError("segment", f"the segment cannot be read: {error.strerror}") from error
        if len(frame) != length:
            raise RemoteWireError("segment", f"the segment's file ends within an UNROLL at {offset}")
        return frame

    def request_weights(self, segment: int, offset: int, length: int) -> None:
        """Note where the next weights may be put: nowhere, if the place is not in this segment.

        Raises: RemoteWireError if the place is not within the segment.
        """
        self._place = None
        if segment == self.id:
            self._check(offset, length, "WEIGHTS")
            self._place = SharedPlace(segment, offset, length)

    def put_weights(self, version: int, weights: bytes) -> bool:
        """Put weights at the requested place, once for each request; return whether that was possible."""
        place, self._place = self._place, None
        if place is None or place.length != _WORD + len(weights):
            return False
        begin = _HEADER_BYTES + place.offset
        parts = (bytes(_WORD), begin), (weights, begin + _WORD), (version.to_bytes(_WORD, "little"), begin)
        try:
            return all(os.pwrite(self._file, data, at) == len(data) for data, at in parts)
        except OSError:
            return False

    def _check(self, offset: int, length: int, what: str) -> None:
        if offset + length > self._num_bytes:
            raise RemoteWireError("segment", f"{what} at {offset} of {length} bytes, in a segment of {self._num_bytes}")

    def close(self) -> None:
        """Close the file; its memory is freed once the producer has given it up as well. Call it once."""
        os.close(self._file)


def remove_orphans(folder: Path = FOLDER) -> int:
    """Remove the segments of producers that were killed while they waited for WELCOME; return how many there were."""
    removed = 0
    for path in folder.glob(f"{_PREFIX}*"):
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue  # of another user, or gone
        try:
            if stat.S_ISREG(os.fstat(file).st_mode) and os.pread(file, _WORD, 0) == _MAGIC:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # its producer holds the lock while it lives
                path.unlink(missing_ok=True)
                removed += 1
        except OSError:
            continue
        finally:
            os.close(file)
    return removed


def _path_of(segment: int, folder: Path) -> Path:
    """Return the path of a segment's file; the name is made of the number alone."""
    return folder / f"{_PREFIX}{segment:016x}"
