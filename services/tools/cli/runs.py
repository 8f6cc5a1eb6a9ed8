"""Run folders as a user names them: a path, a name under runs/, or an experiment, which stands for its newest good run.

Good is a run that has what the command needs. A newer one that lacks it, as one that failed at its start, is passed
over, and the user is told so.
"""

import difflib
import math
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from seedbed.services.tools.cli.run_state import State, read_status
from seedbed.shared.errors import ConfigError
from seedbed.shared.figures import columns

RUNS = Path("runs")
RECORD = "config.toml"  # the learner writes it first of all: a folder that has it holds a run
SNAPSHOT = Path("services") / "experiment.toml"  # inside the run folder: the launcher's copy of the experiment
TAIL_BYTES = 1 << 16
FAR_BYTES = 1 << 22  # half an hour or more of rows, as between evaluations
MAX_NAMED = 10  # runs that an error names
TIMED = r"-\d{8}-\d{6}.*"  # how the name of a run's folder goes on after the experiment's, unless the user named it
CHECKPOINT_STEP = re.compile(r"-step(\d+)$")


class Need(StrEnum):
    """What a command needs of a run."""

    POLICY = "a checkpoint of a trained policy"
    METRICS = "rows in metrics.csv"


def tell_user(text: str) -> None:
    """Print a text on standard error, where it does not mix with what the command prints."""
    print(text, file=sys.stderr)


def resolve_run(text: str, need: Need, *, tell: Callable[[str], None] = tell_user) -> Path:
    """A run folder from what a user types: its path, its name under runs/, or an experiment's name.

    A path or a folder's name is taken as it is; an experiment stands for its newest run that has what is needed.
    Raises: ConfigError that names the known runs; also if none of an experiment's runs has it.
    """
    for path in (Path(text), RUNS / text):
        if (path / RECORD).is_file():
            return path.resolve()
    runs = runs_of(text)
    if not runs:
        raise ConfigError(f"{text}: no run there; {_hint(text)}")
    found = newest_good(runs, need, tell)
    if found is None:
        among = "its run has not" if len(runs) == 1 else f"none of its {len(runs)} runs has"
        raise ConfigError(f"{text}: {among} {need} yet; {runs[0].name} {describe(runs[0])}")
    return found.resolve()


def resolve_source(text: str, *, resume: bool) -> Path:
    """What `--init-from` names: a run as `resolve_run` finds it, or one checkpoint's .json file.

    Raises: ConfigError; also together with `resume`, and for a run without a checkpoint.
    """
    if resume:
        raise ConfigError("--init-from is for new runs; --resume goes on with the run's own weights")
    file = Path(text)
    if file.suffix == ".json" and file.is_file():
        return file.resolve()
    run = resolve_run(text, Need.POLICY)
    if last_step(run) is None:
        raise ConfigError(f"--init-from: {run} has no checkpoint yet; it {describe(run)}")
    return run


def newest_good(runs: list[Path], need: Need, tell: Callable[[str], None]) -> Path | None:
    """The first of these runs, the newest first, that has what is needed; tells what was passed over for it."""
    for place, run in enumerate(runs):
        if meets(run, need):
            if place:
                others = f" and {place - 1} more" if place > 1 else ""
                tell(f"using {run.name}, for {runs[0].name}{others} has not {need}: it {describe(runs[0])}")
            return run
    return None


def runs_of(name: str) -> list[Path]:
    """The runs of an experiment under runs/, the newest first; those of seeds, which lie deeper, are left out."""
    return [folder for folder in folders_of(name) if is_run(folder)]


def folders_of(name: str) -> list[Path]:
    """The folders under runs/ that are called after an experiment and a time, the newest first."""
    dated = re.compile(re.escape(name) + TIMED)
    with suppress(OSError):
        return sorted((path for path in RUNS.iterdir() if dated.fullmatch(path.name)), reverse=True)
    return []


def all_runs() -> list[Path]:
    """Every run under runs/, those of seeds among them, by name."""
    return sorted(path for pattern in ("*", "*/seed-*") for path in RUNS.glob(pattern) if is_run(path))


def is_run(folder: Path) -> bool:
    """Whether a run was at least begun in it."""
    return (folder / RECORD).is_file() or (folder / SNAPSHOT).is_file()


def meets(run: Path, need: Need) -> bool:
    """Whether a run has what is needed; one that is running has rows soon."""
    if need is Need.POLICY:
        return (run / RECORD).is_file() and bool(last_step(run))
    rows = read_tail(run / "metrics.csv")
    trained = rows[-1].get(columns.TRAINED_STEPS.name, "0") if rows else "0"
    return read_status(run).state is State.RUNNING or trained != "0"


def describe(run: Path) -> str:
    """Its state and cause as the end of a sentence that begins with it."""
    status = read_status(run)
    verb = {State.RUNNING: "is running", State.FAILED: "failed"}.get(status.state, f"was {status.state}")
    verb = "has finished" if status.state is State.FINISHED else verb
    cause = status.cause if status.state is not State.FINISHED else ""
    return f"{verb} ({cause})" if cause else verb


def last_step(run: Path) -> int | None:
    """The update of the newest checkpoint, by its file's name; None without one."""
    names = sorted(path.stem for path in (run / "checkpoints").glob("*-step*.json"))
    found = [match for name in names if (match := CHECKPOINT_STEP.search(name))]
    return int(found[-1][1]) if found else None


def read_tail(table: Path) -> list[dict[str, str]]:
    """The last rows of a table that may be large, as text by column; none if it cannot be read."""
    names, lines = _tail_of(table, TAIL_BYTES)
    return [dict(zip(names, cells, strict=True)) for line in lines if len(cells := line.split(",")) == len(names)]


def last_number(table: Path, column: str) -> float | None:
    """The newest number of a column that has few, as of evaluations, in the last part of a table."""
    names, lines = _tail_of(table, FAR_BYTES)
    if column not in names:
        return None
    place = names.index(column)
    rows = (cells for line in reversed(lines) if len(cells := line.split(",")) == len(names))
    return next((number for cells in rows if (number := finite(cells[place])) is not None), None)


def _tail_of(table: Path, num_bytes: int) -> tuple[list[str], list[str]]:
    """The columns of a table, and its last whole lines of so many bytes; nothing if it cannot be read."""
    try:
        with table.open("rb") as file:
            head = file.readline(TAIL_BYTES)
            start = max(file.tell(), file.seek(0, 2) - num_bytes)
            file.seek(start)
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return [], []
    return head.decode(errors="replace").strip().split(","), lines[start > len(head) : -1]


def finite(cell: object) -> float | None:
    """Return the number in a table's cell or a summary; None for an empty or broken one, NaN and infinity."""
    if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
        return None
    try:
        number = float(cell)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _hint(text: str) -> str:
    """A hint at the name that might be meant."""
    known = [str(path.relative_to(RUNS)) for path in all_runs()]
    if near := difflib.get_close_matches(text, known, n=1):
        return f"did you mean {RUNS / near[0]}?"
    if near := difflib.get_close_matches(text, {re.sub(TIMED, "", name) for name in known}, n=1):
        return f"did you mean {near[0]}?"
    names = ", ".join(reversed(known[-MAX_NAMED:]))
    return f"there are: {names} (seedbed runs lists them)" if known else f"{RUNS.resolve()} holds none"
