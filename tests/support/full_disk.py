"""A disk that refuses every byte, for one process: its limit on file sizes."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def full_disk(process_id: int = 0) -> Iterator[None]:
    """No file of the process grows meanwhile; 0: of this one. (Python ignores the signal that comes with it.)"""
    soft, hard = resource.prlimit(process_id, resource.RLIMIT_FSIZE)
    resource.prlimit(process_id, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process_id, resource.RLIMIT_FSIZE, (soft, hard))
