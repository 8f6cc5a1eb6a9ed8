"""Ends a run that dies again and again at the same place: restarts do not help where the same batch always comes.

Only lives count that ended by an error of their own: a learner that is killed is not at fault. What ended them is kept
in the run folder, so that whoever restarts it, launcher or container engine, need not count.
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
    """So many lives in a row ended without a checkpoint between them. No restart mends it."""


class Deaths:
    """Counts the life within it if that ends by an error after which it would be started again. A context manager."""

    def __init__(self, folder: Path, saved_update: Callable[[], int]) -> None:
        """`saved_update`: after which the next life begins; asked when this one ends."""
        self._folder, self._saved_update = folder, saved_update

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_for_good = isinstance(error, SeedbedError) and error.exit_code != SeedbedError.exit_code
        if isinstance(error, Exception) and not is_for_good:
            died(self._folder, self._saved_update(), f"{type(error).__name__}: {error}")


def died(folder: Path, update: int, cause: str) -> None:
    """A life ended by an error, and the next one begins after `update` (0: anew).

    Raises: StandstillError if it was the last of `MAX_LIVES`; then they are counted anew. StorageError.
    """
    file = folder / FILE
    causes = [*_earlier(file, update), cause]
    if len(causes) < MAX_LIVES:
        write_durably(file, json.dumps({"update": update, "causes": causes}, indent=1) + "\n")
        return
    file.unlink(missing_ok=True)
    raise StandstillError(
        f"the run does not get beyond update {update}: {MAX_LIVES} lives of the learner in a row ended before they "
        f"could save a later one, the last of them by: {cause}"
    )


def _earlier(file: Path, update: int) -> list[str]:
    """Causes of the lives before, as far as they ended at the same place."""
    try:
        found = json.loads(file.read_text())
        return [str(cause) for cause in found["causes"]] if found["update"] == update else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
