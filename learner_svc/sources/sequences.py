"""The memory of a replay: sequences of fixed size in one block, in memory or in a file that outlives the process.

Each sequence is one lane of an unroll. A file counts a sequence once its entry in the index is written, which is after
its data; the entry of one that gives way is cleared before its data is overwritten. So a process that is killed at any
moment leaves sequences that are whole, and those of one unroll at most that do not count. A checksum tells those that
a disk spoilt.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.learner_svc.sources.source import Origin
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.layout import ALIGNMENT, Array
from seedbed.shared.protocol.recording import Per, RecordField, RecordSpec
from seedbed.shared.runtime.files import writing

FORMAT = 1
DATA, INDEX, HEADER = "sequences.bin", "index.bin", "header.json"
DIFFERENCES = {
    "format": "another version of seedbed",
    "capacity": "another room (algorithm.replay_sequences or replay_bytes)",
    "stride": "sequences of another size (the environment, learner.unroll_length, algorithm.burn_in or [policy])",
    "tasks": "other tasks",
    "record": "other fields or lengths (the environment, learner.unroll_length, algorithm.burn_in or [policy])",
}
ENTRY = np.dtype(
    [
        ("number", "<u8"),  # of the sequence, counted from 1 in the order of arrival; 0: there is none
        ("checksum", "<u4"),
        ("task", "<u4"),  # among those of the header
        ("incarnation", "<u8"),
        ("seq", "<u8"),
        ("lane", "<u4"),
        ("was_drawn", "<u4"),  # 1: it was in a batch
        ("priority", "<f8"),
    ]
)


class SequenceMemory:
    """Room for `capacity` sequences. Owned by the learner's loop; memory or disk: `capacity` · `stride` bytes.

    `entries` are of type ENTRY, one for each place. `num_torn` sequences of the file were found spoilt.
    """

    def __init__(self, record: RecordSpec, capacity: int, folder: Path | None, tasks: Sequence[str] = ("",)) -> None:
        """`folder`: where the file lies or will lie, its sequences of the same record are kept; None: in memory.

        Raises: ConfigError if the file has sequences of another kind, StorageError if it cannot be read or made, or
          there is no room for it.
        """
        self.capacity, self.num_torn = capacity, 0
        self._fields, self.is_file = record.fields, folder is not None
        offsets, self.stride = _places(record)
        self._data, self.entries = self._memory() if folder is None else self._files(folder, record, tasks)
        self._arrays: list[Array] = []  # of each field, [capacity, rows, ...]
        for item, offset in zip(record.fields, offsets, strict=True):
            shape, dtype = _sequence_shape(item, record.num_rows), np.dtype(item.dtype)
            inner = np.empty((1, *shape), dtype).strides[1:]
            self._arrays.append(np.ndarray((capacity, *shape), dtype, self._data, offset, (self.stride, *inner)))
        self._drop_torn()

    def _memory(self) -> tuple[Array, Array]:
        return np.zeros(self.capacity * self.stride, np.uint8), np.zeros(self.capacity, ENTRY)

    def _files(self, folder: Path, record: RecordSpec, tasks: Sequence[str]) -> tuple[Array, Array]:
        header = {
            "format": FORMAT, "capacity": self.capacity, "stride": self.stride, "tasks": list(tasks),
            "record": hashlib.sha256(repr((record.fields, record.num_rows)).encode()).hexdigest(),
        }  # fmt: skip
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            found = _read_header(folder / HEADER)
            if found is None:  # there is none, or the process that made the files was killed before they were ready
                for name in (HEADER, INDEX, DATA):
                    (folder / name).unlink(missing_ok=True)
            elif different := [name for name in header if found.get(name) != header[name]]:
                what = " and ".join(DIFFERENCES[name] for name in different)
                raise ConfigError(
                    f"{folder} has sequences of a run with {what}: set them as in that run, or remove this folder to "
                    "begin with an empty replay"
                )
            data = np.memmap(_reserve(folder / DATA, self.capacity * self.stride), np.uint8, "r+")
            entries = np.memmap(_reserve(folder / INDEX, self.capacity * ENTRY.itemsize), ENTRY, "r+")
            if found is None:
                (folder / HEADER).write_text(json.dumps(header))
        return data, entries

    def _drop_torn(self) -> None:
        for place in np.flatnonzero(self.entries["number"]):
            if self._checksum(int(place)) != self.entries["checksum"][place]:
                self.entries["number"][place] = 0
                self.num_torn += 1

    def write(
        self, places: Array, arrays: Sequence[Array], lanes: range, *, number: int, origin: Origin, task: int,
        priorities: Array,
    ) -> None:  # fmt: skip
        """Store lanes of an unroll, whose arrays are time first, in these places.

        Args:
          number: of the first of them; they are counted from 1 in the order of arrival.
          origin: of which unroll.
          priorities: f64, one for each.
        """
        entries, chosen = self.entries, slice(lanes.start, lanes.stop)
        entries["number"][places] = 0
        for item, stored, array in zip(self._fields, self._arrays, arrays, strict=True):
            match item.per:
                case Per.ROW | Per.TRANSITION:
                    stored[places] = array[:, chosen].swapaxes(0, 1)
                case Per.TICK:
                    stored[places] = array
                case Per.LANE:
                    stored[places] = array[chosen]
        entries["task"][places] = task
        entries["incarnation"][places], entries["seq"][places] = origin
        entries["lane"][places] = lanes
        entries["priority"][places], entries["was_drawn"][places] = priorities, 0
        if self.is_file:
            entries["checksum"][places] = [self._checksum(place) for place in places]
        entries["number"][places] = np.arange(number, number + len(places))

    def store(self, places: Array, arrays: Sequence[Array]) -> None:
        """Store the lanes of a batch, whose arrays are those of `source.allocate`, in these places, without entries."""
        for item, stored, array in zip(self._fields, self._arrays, arrays, strict=True):
            stored[places] = array if item.per is Per.LANE else array.swapaxes(0, 1)

    def read(self, places: Array, arrays: Sequence[Array], first_lane: int) -> None:
        """Copy sequences into a batch's arrays, which are those of `source.allocate`, from this lane on."""
        lanes = slice(first_lane, first_lane + len(places))
        for item, stored, array in zip(self._fields, self._arrays, arrays, strict=True):
            if item.per is Per.LANE:
                array[lanes] = stored[places]
            else:
                array[:, lanes] = stored[places].swapaxes(0, 1)

    def _checksum(self, place: int) -> int:
        if not self.is_file:
            return 0
        return zlib.crc32(self._data.data[place * self.stride : (place + 1) * self.stride])


def sequence_bytes(record: RecordSpec) -> int:
    """What one sequence occupies, its entry in the index included."""
    return _places(record)[1] + ENTRY.itemsize


def _sequence_shape(item: RecordField, rows: int) -> tuple[int, ...]:
    match item.per:
        case Per.ROW:
            return (rows, *item.shape)
        case Per.TRANSITION | Per.TICK:
            return (rows - 1, *item.shape)
        case Per.LANE:
            return item.shape


def _places(record: RecordSpec) -> tuple[list[int], int]:
    """Where each field of a sequence begins, and how many bytes a sequence has."""
    offsets, end = [], 0
    for item in record.fields:
        offsets.append(end)
        size = int(np.prod(_sequence_shape(item, record.num_rows), dtype=np.int64)) * np.dtype(item.dtype).itemsize
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, end


def _read_header(path: Path) -> dict[str, Any] | None:
    """Return what a file's header says; None if there is none, or none that is complete. Raises: OSError."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _reserve(path: Path, size: int) -> Path:
    """Make a file of this size whose blocks exist: a mapped file that meets a full disk would end the process.

    Raises: OSError; a file that was not there before is not there then.
    """
    is_new = not path.exists()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)  # for reading too: else some file systems refuse to reserve
    try:
        os.posix_fallocate(file, 0, size)
        os.truncate(file, size)
    except OSError:
        if is_new:
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    return path
