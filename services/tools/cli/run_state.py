"""Where a run is and how it ended: kept in its folder by the launcher, read by the command line and by the page.

| file of the run folder | says |
|---|---|
| `state.json` | what the launcher wrote last: that the run is running, or how it ended |
| `.launcher`, `.lock` | held (`seedbed.shared.runtime.locks`) by the launcher and by the learner while they live |
| `epoch`, `summary.json` | how many learners have held the folder, and what the last that left in order said |

A launcher that is killed writes nothing, but lets go of its file: such a run is interrupted. A learner that was started
without a launcher, by hand or in a container, writes no `state.json`: its run is told from its summary.
"""

import contextlib
import json
import os
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from seedbed.learner_svc.run.atomic_write import write_durably
from seedbed.shared.errors import ConfigError, StorageError
from seedbed.shared.runtime.locks import HeldError, is_held, take

STATE_FILE = "state.json"
LAUNCHER_LOCK = ".launcher"
LEARNER_LOCK = ".lock"  # as `seedbed.learner_svc.run.folder` has it
KILLED = "the launcher was killed, or its machine went down"


class State(StrEnum):
    """Where a run stands, as `state.json` and `seedbed runs` name it."""

    RUNNING = "running"  # somebody holds its folder
    FINISHED = "finished"  # trained to the end that its settings name
    STOPPED = "stopped"  # by a person or a signal
    FAILED = "failed"  # by a service, or by the launcher itself
    INTERRUPTED = "interrupted"  # its launcher, or its learner where it had none, ended without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """The state of a run, and its cause.

    `at`: when it began to run, or when it ended, seconds since 1970; None if nobody knows.
    `service`: the one that failed the run; empty for every other state.
    `reason`: of a failed run what happened to that service, of a stopped one who asked, of a finished one what ended it
    (a setting's name, as "steps"). `last_words`: what the service said last, several lines at most.
    """

    state: State
    at: float | None = None
    service: str = ""
    reason: str = ""
    last_words: str = ""

    @property
    def cause(self) -> str:
        """One line that says why it ended; empty where there is nothing to say."""
        what = " ".join(part for part in (self.service, self.reason) if part)
        first = next((line.strip() for line in self.last_words.splitlines() if line.strip()), "")
        first = re.sub(r"^seedbed [\w-]+: ", "", first)  # its name is said already
        return ": ".join(part for part in (what, first) if part)


class HeldRun:
    """A run folder that a launcher holds: it is running until `end` says how it ended.

    A context manager, left when the run's processes are gone; an error that leaves it is the cause of a failed run.
    """

    def __init__(self, run_dir: Path) -> None:
        """Hold it. Raises: ConfigError if another launcher or a learner does, or it cannot be written."""
        self._run_dir = run_dir
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            os.close(take(run_dir / LEARNER_LOCK))  # one that was started by itself: our learner will want it
            self._held = take(run_dir / LAUNCHER_LOCK)
        except HeldError as error:
            raise ConfigError(f"{run_dir} is held by {error}: stop it, or give another --run-dir") from error
        except OSError as error:
            raise ConfigError(f"run folder {run_dir}: {error.strerror}; give another --run-dir") from error
        self._has_ended = False

    def __enter__(self) -> Self:
        try:
            self._write(RunStatus(state=State.RUNNING))
        except StorageError:
            os.close(self._held)
            raise
        return self

    def end(self, status: RunStatus) -> None:
        """Keep how the run ended. A disk that refuses costs the cause: the run is then told as interrupted."""
        self._has_ended = True
        with contextlib.suppress(StorageError):
            self._write(status)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._has_ended:
            reason = "could not go on"
            words = f"{kind.__name__}: {error}" if kind else ""
            self.end(RunStatus(state=State.FAILED, service="launcher", reason=reason, last_words=words))
        os.close(self._held)

    def _write(self, status: RunStatus) -> None:
        record = {**asdict(status), "at": time.time(), "epoch": _read_epoch(self._run_dir)}
        write_durably(self._run_dir / STATE_FILE, json.dumps(record, indent=1) + "\n")


def read_status(run_dir: Path) -> RunStatus:
    """Where a run is now. Blocking; never raises for what lies in the folder."""
    record = read_object(run_dir / STATE_FILE)
    known = _status_of(record)
    if is_held(run_dir / LAUNCHER_LOCK) or is_held(run_dir / LEARNER_LOCK):
        is_of_now = known is not None and known.state is State.RUNNING
        return known if known is not None and is_of_now else RunStatus(state=State.RUNNING)
    epoch = _read_epoch(run_dir)
    if known is not None and known.state is not State.RUNNING and record.get("epoch") == epoch:
        return known
    return _judge_without_launcher(run_dir, epoch, was_launched=known is not None)


def _judge_without_launcher(run_dir: Path, epoch: int, *, was_launched: bool) -> RunStatus:
    """A run of which no launcher told the end: its last learner's summary does, if that left in order."""
    summary = read_summary(run_dir)
    if not summary or summary.get("epoch", epoch) != epoch:
        return RunStatus(state=State.INTERRUPTED, reason=KILLED if was_launched else "")
    at = _changed_at(run_dir / "summary.json")
    if summary.get("finished") is True:
        return RunStatus(state=State.FINISHED, at=at, reason=str(summary.get("reason", "")))
    return RunStatus(state=State.STOPPED, at=at)


def _status_of(record: Mapping[str, Any]) -> RunStatus | None:
    """What the launcher wrote; None if it wrote nothing that can be understood."""
    try:
        at = float(record["at"])
        words = {name: str(record.get(name, "")) for name in ("service", "reason", "last_words")}
        return RunStatus(state=State(record["state"]), at=at, **words)
    except (KeyError, ValueError, TypeError, OverflowError):
        return None


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Return what the learner's summary of a run says; empty while there is none."""
    return read_object(run_dir / "summary.json")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; empty if it is not there, is just being written, or holds no object."""
    try:
        found = load_json(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def load_json(content: bytes | str) -> Any:
    """A JSON value in which every character can be written: half a surrogate pair, as in "\\udcff", becomes "?".

    Logs have them where a file's name is no UTF-8. Raises: ValueError, RecursionError, as `json.loads` does.
    """
    return json.loads(json.dumps(json.loads(content), ensure_ascii=False).encode(errors="replace"))


def read_tables(path: Path) -> dict[str, Any]:
    """Return what a TOML file says; empty if it is not there or cannot be understood."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}


def _read_epoch(run_dir: Path) -> int:
    """How many learners have held the folder; 0 if none has."""
    try:
        return int((run_dir / "epoch").read_text())
    except (OSError, ValueError):
        return 0


def _changed_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
