"""The last lines of a run's logs, of all services by time. Blocking; only files of the run's own `logs/` are read.

`<service>.jsonl` holds a JSON object a line; `<service>.stderr` what it said besides, most of all its last words.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from seedbed.services.tools.cli.run_state import load_json
from seedbed.services.tools.monitor.settings import hide_secrets

TAIL_BYTES = 64 * 1024  # of each file
MAX_FILES = 64  # the last that were written
MAX_LINES = 400
MAX_CHARACTERS = 1000  # of a line
LEVELS = ("debug", "info", "warning", "error", "critical")
ENVELOPE = frozenset({"event", "level", "timestamp", "service", "name", "incarnation", "exception"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line. `at`: seconds since 1970; `level`: one of `LEVELS`; text without secrets."""

    at: float
    service: str
    level: str
    text: str


def read_logs(run_dir: Path, *, level: str = "info") -> list[LogLine]:
    """The newest `MAX_LINES` lines of at least a level, the oldest first; none where there are no logs."""
    least = LEVELS.index(level) if level in LEVELS else 0
    lines = [line for file in _files(run_dir / "logs") for line in _lines(file) if LEVELS.index(line.level) >= least]
    return sorted(lines, key=lambda line: line.at)[-MAX_LINES:]


def _files(folder: Path) -> list[Path]:
    """Logs in a folder; links lead elsewhere and are left out."""
    with suppress(OSError):
        found = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        logs = [entry for entry in found if entry.name.isprintable() and entry.name.endswith((".jsonl", ".stderr"))]
        newest = sorted(logs, key=lambda entry: -entry.stat(follow_symlinks=False).st_mtime)[:MAX_FILES]
        return [Path(entry.path) for entry in newest]
    return []


def _lines(file: Path) -> Iterator[LogLine]:
    """The end of one file; nothing of it if it is gone or cannot be read."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            size, at = os.fstat(descriptor).st_size, os.fstat(descriptor).st_mtime
            stream.seek(max(0, size - TAIL_BYTES))
            texts = stream.read(TAIL_BYTES).decode(errors="replace").split("\n")
        yield from _read(texts[1:] if size > TAIL_BYTES else texts, file.name.rpartition(".")[0], at)


def _read(texts: Iterable[str], service: str, at: float) -> Iterator[LogLine]:
    """Lines as they stand. What a service said outside its log has no time but that of its file's last change."""
    for text in texts:
        record = _record(text)
        if record is not None:
            yield record
        elif text.strip():
            yield LogLine(at=at, service=service, level="warning", text=hide_secrets(text)[:MAX_CHARACTERS])


def _record(text: str) -> LogLine | None:
    """A line of a service's own log; None if it is none."""
    if not text.startswith("{"):
        return None
    try:
        record = load_json(text)
        at = datetime.fromisoformat(str(record["timestamp"])).timestamp()
        level = str(record["level"])
        service = str(record["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    figures = [f"{key}={value}" for key, value in record.items() if key not in ENVELOPE]
    said = "  ".join(
        [str(record.get("event", "")), *figures, *([str(record["exception"])] if "exception" in record else [])]
    )
    known = level if level in LEVELS else "info"
    return LogLine(at=at, service=service, level=known, text=hide_secrets(said)[:MAX_CHARACTERS])
