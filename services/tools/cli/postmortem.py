"""What a service said last: the one message in its standard error that explains its end."""

import json
from collections.abc import Sequence
from pathlib import Path

TAIL_BYTES = 64 * 1024
MAX_LINES = 12


def last_words(error_file: Path, start: int = 0) -> str:
    """The explanation at the end of a service's standard error, from byte `start` on; "" if it said nothing."""
    return explain_output(_last_lines(error_file, start))


def newest_event(log_file: Path, event: str) -> dict[str, object]:
    """The newest record of an event near the end of a service's log; empty if there is none."""
    records = (_log_record(line) for line in reversed(_last_lines(log_file)))
    return next((record for record in records if record is not None and record.get("event") == event), {})


def _last_lines(file: Path, start: int = 0) -> list[str]:
    """Return the lines from byte `start` on, at most TAIL_BYTES of them; none if the file cannot be read.

    A file that is shorter was begun anew since then: all of it counts.
    """
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(start if start <= size else 0, size - TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()
    except OSError:
        return []


def explain_output(lines: Sequence[str]) -> str:
    """Pick the explanation out of mixed log lines, messages and tracebacks: the last plain text, or the last error log.

    A traceback is shortened to the place that raised and its message.
    """
    plain: list[str] = []
    for line in reversed(lines):
        if _log_record(line) is not None:
            if plain:
                break
            continue
        if line.strip() or plain:
            plain.append(line)
    plain.reverse()
    starts = [index for index, line in enumerate(plain) if line.startswith("Traceback (most recent call last)")]
    if starts:
        return _shorten_traceback(plain[starts[-1] :])
    if plain:
        return "\n".join(plain[-MAX_LINES:]).strip()
    for line in reversed(lines):
        record = _log_record(line)
        if record and record.get("level") in ("error", "critical"):
            return _explain_record(record)
    return ""


def _explain_record(record: dict[str, object]) -> str:
    """What an error log says in its own words, or else all of it."""
    if "error" in record:
        return str(record["error"])
    if "exception" in record:
        return _shorten_traceback(str(record["exception"]).splitlines())
    details = {key: value for key, value in record.items() if key not in _ENVELOPE}
    return " ".join([str(record.get("event", "")), *(f"{key}={value}" for key, value in details.items())])


_ENVELOPE = frozenset({"event", "level", "timestamp", "time", "service", "name", "incarnation", "logger", "pid"})


def _log_record(line: str) -> dict[str, object] | None:
    """The line as a JSON log record, if it is one."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _shorten_traceback(lines: Sequence[str]) -> str:
    """The last frame of a traceback and everything from its message on."""
    frames = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    if not frames:
        return "\n".join(lines[-MAX_LINES:])
    end = next((index for index in range(frames[-1] + 1, len(lines)) if not lines[index].startswith(" ")), len(lines))
    message = lines[end : end + MAX_LINES]
    return "\n".join([*message, *lines[frames[-1] : frames[-1] + 2]]).strip()
