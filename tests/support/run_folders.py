"""Run folders as the learner, its services and the launcher leave them, written by hand."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

HEADER = "seconds,epoch,updates,trained_steps,env_steps,return_mean,eval_return_mean,lag_mean,lag_max,dropped_share"
CONFIG = '[run]\nname = "toy"\nseed = 3\n\n[env]\nid = "Toy-v0"\n\n[learner]\nmax_policy_lag = 8\n'


def row(number: int, *, evaluated: str = "", lag_max: float = 2.0, dropped: float = 0.0) -> str:
    """One line of metrics.csv: the run's second number `number`, 100 steps later than the one before."""
    steps = 100 * number
    return f"{number},1,{number},{steps},{steps},{number / 2},{evaluated},1,{lag_max},{dropped}\n"


def write_run(folder: Path, rows: Iterable[str], *, finished: bool | None = None) -> Path:
    """A run with these rows; `finished` None: without a summary."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "metrics.csv").write_text(f"{HEADER}\n" + "".join(rows))
    if finished is not None:
        summary = {"finished": finished, "trained_steps": 4321, "eval_return_mean": 9.5, "seconds": 12.0}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_tasks_run(folder: Path, tasks: Mapping[str, float], num_rows: int = 40) -> Path:
    """A run of several tasks: each one's return rises to its value; it is evaluated once, at the end."""
    names = [f"{column}/{task}" for task in tasks for column in ("return_mean", "eval_return_mean")]
    lines = []
    for number in range(1, num_rows + 1):
        returns = [value * number / num_rows for value in tasks.values()]
        cells = [f"{value},{value if number == num_rows else ''}" for value in returns]
        lines.append(",".join([row(number).strip(), *cells]) + "\n")
    run = write_run(folder, [], finished=True)
    (run / "metrics.csv").write_text(",".join([HEADER, *names]) + "\n" + "".join(lines))
    return run


def write_status(run: Path, name: str, role: str, *, incarnation: int, metrics: str) -> None:
    """What a service writes when it is ready."""
    (run / "services").mkdir(exist_ok=True)
    status = {"service": role, "name": name, "incarnation": incarnation, "pid": 1, "metrics": metrics}
    (run / "services" / f"{name}.json").write_text(json.dumps(status))


def log_launcher(run: Path, events: Iterable[tuple[float, str, Mapping[str, str]]]) -> None:
    """Append (seconds since 1970, event, fields) to the launcher's log."""
    (run / "logs").mkdir(exist_ok=True)
    with (run / "logs" / "launcher.jsonl").open("a") as file:
        for at, event, fields in events:
            stamp = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
            file.write(json.dumps({**fields, "event": event, "timestamp": stamp}) + "\n")
