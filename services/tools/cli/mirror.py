"""A run's table, settings and summary to Weights & Biases, while it trains or afterwards: `seedbed wandb RUN`.

A process of its own that reads the run folder: neither its library nor its network can stop or slow a service. A row's
step is its place in the table, so that a second call goes on where the first one ended.
"""

import json
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from seedbed.services.tools.cli.run_state import State, read_status, read_summary
from seedbed.services.tools.cli.runs import RECORD, finite
from seedbed.services.tools.monitor.tail import LineTail
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.figures import columns

BEAT_S = 2.0
PIECE_BYTES = 1 << 20
AXIS = columns.TRAINED_STEPS.name
VIDEO = "policy.mp4"


class TableRows:
    """A table's rows as they come. Each read takes what is new."""

    def __init__(self, file: Path) -> None:
        self._tail = LineTail(file)
        self._header: list[str] = []
        self._place = 0

    def read(self) -> Iterator[tuple[int, dict[str, float]]]:
        """(place in the table, column → number) of every new row; cells without a finite number are left out.

        Raises: OSError.
        """
        while True:
            piece = self._tail.read(PIECE_BYTES)
            if piece.restarted:
                self._header, self._place = [], 0
            for line in piece.data.decode(errors="replace").splitlines():
                cells = line.split(",")
                if not self._header:
                    self._header = cells
                    continue
                numbers = ((name, finite(cell)) for name, cell in zip(self._header, cells, strict=False))
                yield self._place, {name: number for name, number in numbers if number is not None}
                self._place += 1
            if piece.share >= 1.0:
                return


def follow(run_dir: Path, logged: Any, *, is_live: bool, wait: Callable[[float], None] = time.sleep) -> int:
    """Send rows, then the summary. Returns the number of rows that were sent.

    Args:
      logged: wandb's run; rows before its `step` are there already.
      is_live: stay until the run has ended.
    Raises: ConfigError for a file of the run that cannot be read.
    """
    rows, begin, sent = TableRows(run_dir / "metrics.csv"), int(logged.step), 0
    while True:
        summary, state = read_summary(run_dir), read_status(run_dir).state  # before the rows: none is missed
        known = sent
        try:
            for place, row in rows.read():
                if place >= begin:
                    logged.log(row, step=place)
                    begin, sent = place + 1, sent + 1
        except OSError as error:
            raise ConfigError(f"{run_dir / 'metrics.csv'}: {error.strerror or error}") from error
        if not is_live or summary.get("finished") or (state is not State.RUNNING and sent == known):
            break
        wait(BEAT_S)
    logged.summary.update(summary)
    return sent


def send_run(run_dir: Path, project: str, *, is_live: bool, entity: str = "") -> tuple[int, str]:
    """Make wandb's run, or go on with it, and fill it. Returns the number of rows, and where they went.

    Raises: MissingExtraError; ConfigError for what wandb refuses or a run that cannot be read.
    """
    try:
        import wandb
        from wandb import init  # which a folder called wandb, as the library itself makes, does not have
    except ImportError:
        raise MissingExtraError("wandb", "wandb") from None
    try:
        config = tomllib.loads((run_dir / RECORD).read_text(encoding="utf-8"))
        record: Mapping[str, Any] = json.loads((run_dir / "run.json").read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{run_dir}: its {RECORD} or run.json cannot be read: {error}") from error
    try:
        logged = init(
            project=project, entity=entity or None, id=str(record["run_id"]), name=run_dir.name, resume="allow",
            config=config, settings=wandb.Settings(console="off", x_disable_stats=True),
        )  # fmt: skip
    except wandb.Error as error:
        raise ConfigError(f"wandb: {error}") from error
    with logged:
        logged.define_metric(AXIS)
        logged.define_metric("*", step_metric=AXIS)
        sent = follow(run_dir, logged, is_live=is_live)
        if (run_dir / VIDEO).is_file():
            logged.log({"policy": wandb.Video(str(run_dir / VIDEO), format="mp4")})
        return sent, logged.url or str(logged.dir)
