"""What there is: runs with their state and result (`seedbed runs`), and what can be trained (`seedbed experiments`)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from seedbed.services.tools.cli.experiment import EXPERIMENTS
from seedbed.services.tools.cli.run_state import RunStatus, State, read_object, read_status, read_summary, read_tables
from seedbed.services.tools.cli.runs import RECORD, RUNS, SNAPSHOT, all_runs, finite, last_number, last_step, read_tail
from seedbed.services.tools.cli.table import LABEL_STYLE, count, score
from seedbed.shared.figures import columns
from seedbed.shared.figures.declare import Column

STATE_STYLES = {
    State.RUNNING: "green",
    State.FINISHED: "bold green",
    State.STOPPED: "",
    State.FAILED: "bold red",
    State.INTERRUPTED: "yellow",
}
DAY_S = 86_400
WIDE = 100  # characters, from which on there is room for the environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run as the list shows it; None where its folder does not say."""

    name: str  # below runs/
    folder: str
    status: RunStatus
    experiment: str
    env_id: str  # or the names of its tasks
    seed: int | None
    begun_at: float | None  # seconds since 1970
    seconds: float | None  # of training
    trained_steps: int | None
    return_mean: float | None  # of the last training episodes
    eval_return_mean: float | None  # the last
    checkpoint_update: int | None  # of the newest

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON takes them; those of the status are beside the others."""
        fields: dict[str, Any] = asdict(self)
        status: dict[str, Any] = fields.pop("status")
        return {**fields, **status, "cause": self.status.cause}


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedExperiment:
    """One experiment that `seedbed train` takes."""

    name: str
    env_id: str
    about: str  # the first sentence of its file's first comment


def list_runs(prefix: str = "") -> list[ListedRun]:
    """Runs under runs/ whose names begin so, the newest first."""
    found = [_read_run(path) for path in all_runs() if str(path.relative_to(RUNS)).startswith(prefix)]
    return sorted(found, key=lambda run: run.begun_at or 0.0, reverse=True)


def _read_run(folder: Path) -> ListedRun:
    config = read_tables(folder / RECORD) or read_tables(folder / SNAPSHOT)
    run = _table(config, "run")
    status, summary, rows = read_status(folder), read_summary(folder), read_tail(folder / "metrics.csv")
    is_over = status.state is not State.RUNNING and summary.get("epoch") == _last(rows, columns.EPOCH)

    def figure(column: Column, key: str) -> float | None:
        """Return a value of the summary if the run is over, else of the table's last rows, else of an older summary."""
        said = finite(summary.get(key))
        if is_over and said is not None:
            return said
        last = _last(rows, column)
        if last is None:
            last = last_number(folder / "metrics.csv", column.name)
        return said if last is None else last

    seed, steps = run.get("seed"), figure(columns.TRAINED_STEPS, "trained_steps")
    return ListedRun(
        name=str(folder.relative_to(RUNS)), folder=str(folder.resolve()), status=status,
        experiment=str(run.get("name", "")), env_id=_env_of(config), seed=seed if isinstance(seed, int) else None,
        begun_at=_begun_at(folder), seconds=figure(columns.SECONDS, "seconds"),
        trained_steps=None if steps is None else int(steps),
        return_mean=figure(columns.RETURN_MEAN, "episode_return_mean"),
        eval_return_mean=figure(columns.EVAL_RETURN_MEAN, "eval_return_mean"), checkpoint_update=last_step(folder),
    )  # fmt: skip


def render_runs(runs: Sequence[ListedRun], *, most: int, width: int, now: float | None = None) -> RenderableType:
    """The newest of them as a table `width` characters wide; what failed or was interrupted has its cause below."""
    now, is_wide = time.time() if now is None else now, width >= WIDE
    table = Table(box=None, pad_edge=False, header_style=LABEL_STYLE, padding=(0, 2, 0, 0))
    table.add_column("run", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("environment" if is_wide else "", no_wrap=True)
    for heading in ("age", "trained", "return", "evaluated"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs[:most]:
        state = run.status.state
        table.add_row(
            run.name, Text(state.value, STATE_STYLES[state]), run.env_id if is_wide else "", age(run.begun_at, now),
            count(run.trained_steps), score(run.return_mean), Text(score(run.eval_return_mean), "bold"),
        )  # fmt: skip
    parts: list[RenderableType] = [table]
    causes = [run for run in runs[:most] if run.status.cause and run.status.state in (State.FAILED, State.INTERRUPTED)]
    if causes:
        parts.append("")
        parts += [_render_cause(run) for run in causes]
    if len(runs) > most:
        parts.append(Text(f"… and {len(runs) - most} older ones: --all", LABEL_STYLE))
    return Group(*parts)


def _render_cause(run: ListedRun) -> RenderableType:
    return Group(Text(run.name, "bold"), Padding(Text(run.status.cause, LABEL_STYLE), (0, 0, 0, 2)))


def age(at: float | None, now: float) -> str:
    """How long ago: 12 s, 3 h, 5 days; – if unknown."""
    if at is None:
        return "–"
    past = max(0.0, now - at)
    for limit_s, unit_s, unit in ((60, 1, "s"), (3600, 60, "min"), (2 * DAY_S, 3600, "h")):
        if past < limit_s:
            return f"{past / unit_s:.0f} {unit}"
    return f"{past / DAY_S:.0f} days"


def list_experiments(here: Path | None = None) -> list[ListedExperiment]:
    """Return the project's experiments by name, then those of `here` (the working directory) by path."""
    own = [path for path in sorted((here or Path()).glob("*.toml")) if _is_experiment(path)]
    shipped = sorted(EXPERIMENTS.glob("*.toml"))
    files = [*((path.stem, path) for path in shipped), *((str(path), path) for path in own)]
    return [
        ListedExperiment(name=name, env_id=_env_of(read_tables(path)), about=_first_comment(path))
        for name, path in files
    ]


def render_experiments(experiments: Sequence[ListedExperiment], *, width: int) -> RenderableType:
    """A line for each, `width` characters wide."""
    table = Table(box=None, pad_edge=False, header_style=LABEL_STYLE, padding=(0, 2, 0, 0), expand=True)
    table.add_column("experiment", no_wrap=True)
    is_wide = width >= WIDE
    table.add_column("environment" if is_wide else "", no_wrap=True)
    table.add_column("what it is", ratio=1, no_wrap=True, overflow="ellipsis")
    for item in experiments:
        table.add_row(item.name, item.env_id if is_wide else "", Text(item.about))
    return table


def _is_experiment(file: Path) -> bool:
    """Whether a file names an environment as experiments do."""
    return bool(_env_of(read_tables(file)))


def _first_comment(file: Path) -> str:
    """The comment that the file begins with, up to its first full stop."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    head = []
    for line in lines:
        if not line.startswith("#"):
            break
        head.append(line.lstrip("# ").rstrip())
    return " ".join(head).partition(". ")[0].rstrip(".")


def _env_of(config: Mapping[str, Any]) -> str:
    """The environment's id, or what tasks there are."""
    tasks, env_id = _table(config, "tasks"), _table(config, "env").get("id")
    if tasks:
        return f"{len(tasks)} tasks"
    return env_id if isinstance(env_id, str) else ""


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def _begun_at(folder: Path) -> float | None:
    """Return when a run began, from run.json; without it, when its settings were written."""
    created = read_object(folder / "run.json").get("created")
    try:
        return datetime.strptime(str(created), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        pass
    try:
        return (folder / SNAPSHOT).stat().st_mtime
    except OSError:
        return None


def _last(rows: Sequence[Mapping[str, str]], column: Column) -> float | None:
    """The newest number of a column."""
    return next((value for row in reversed(rows) if (value := finite(row.get(column.name))) is not None), None)
