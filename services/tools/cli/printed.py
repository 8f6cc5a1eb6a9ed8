"""Keeps what services print within bounds: environments print as they like, on the disk that has the checkpoints."""

import os
from pathlib import Path

MAX_BYTES = 16 << 20
KEPT_BYTES = 1 << 20  # of a file that grew over it: its end, as NAME.1


def trim(file: Path) -> None:
    """Begin a file anew that has grown too large, and keep its end beside it.

    Whoever writes it must append. Lines that come in between are lost. A disk that is full costs the copy.
    """
    try:
        if file.stat().st_size <= MAX_BYTES:
            return
        with file.open("rb") as stream:
            stream.seek(-KEPT_BYTES, os.SEEK_END)
            end = stream.read()
        os.truncate(file, 0)  # first: it may be what fills the disk
        file.with_name(file.name + ".1").write_bytes(end)
    except OSError:
        return
