"""Ends a run whose learner crashes again and again at the same update, where restarts do not help.

Only crashes by an error of the learner's own count; being killed does not. The causes are kept in the run folder, so
that it does not matter whether the launcher or a container engine restarts it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from seedbed.learner_svc.run.atomic_write import write_durably
from seedbed.shared.errors import CheckpointError, SeedbedError

FILE = "deaths.json"
MAX_LIVES = 5


class StandstillError(CheckpointError):
    """Raised after MAX_LIVES crashes in a row without a new checkpoint. A restart would not help."""


class CrashCounter:
    """A context manager that records an error which leaves it, if the learner would be restarted after it."""

    def __init__(self, folder: Path, saved_update: Callable[[], int]) -> None:
        """`saved_update` returns the update that the next process resumes from; called when this one ends."""
        self._folder, self._saved_update = folder, saved_update

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Other codes: no restart follows, or another rank was lost, which is no error of this one's.
        is_counted = not isinstance(error, SeedbedError) or error.exit_code == SeedbedError.exit_code
        if isinstance(error, Exception) and is_counted:
            record_crash(self._folder, self._saved_update(), f"{type(error).__name__}: {error}")


def record_crash(folder: Path, update: int, cause: str) -> None:
    """Record a crash; the next process resumes from `update`, 0 for the start.

    Raises: StandstillError after MAX_LIVES crashes at the same update, which also resets the count; StorageError.
    """
    file = folder / FILE
    causes = [*_earlier(file, update), cause]
    if len(causes) < MAX_LIVES:
        write_durably(file, json.dumps({"update": update, "causes": causes}, indent=1) + "\n")
        return
    file.unlink(missing_ok=True)
    raise StandstillError(
        f"the run does not get beyond update {update}: the learner crashed {MAX_LIVES} times in a row before it could "
        f"save a later one, the last time by: {cause}"
    )


def _earlier(file: Path, update: int) -> list[str]:
    """Return the causes of earlier crashes at the same update."""
    try:
        found = json.loads(file.read_text())
        return [str(cause) for cause in found["causes"]] if found["update"] == update else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
