"""What a run folder says beside its table: settings, summary, status files, deaths, crashed batches. Blocking.

Every file is read again only when it has changed. A file that cannot be understood is named in `problems`, and what it
would have said is unknown.
"""

import errno
import os
import stat
import tomllib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from seedbed.services.tools.cli.run_state import RunStatus, load_json, read_status
from seedbed.services.tools.cli.runs import RECORD, SNAPSHOT
from seedbed.services.tools.monitor.settings import flatten
from seedbed.services.tools.monitor.tail import LineTail

MAX_DEATHS = 100  # the newest are kept
MAX_VIDEOS = 64
MAX_SERVICES = 1000  # status files of one run
MAX_FILE_BYTES = 1 << 20  # of the small files
MAX_BITS = 64  # of an integer in them
MAX_DEPTH = 50  # of tables and lists within each other
LOG_PIECE_BYTES = 1 << 20
CRASH_SUFFIX = ".safetensors"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A service's process ended and was to be started again. `at`: seconds since 1970."""

    at: float
    service: str
    exit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a service wrote when it was ready."""

    name: str
    role: str
    incarnation: int
    metrics: str  # host:port of its /metrics
    at: float  # when, seconds since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A run as its folder tells it. `changed_at`: of metrics.csv, seconds since 1970; None while there is none."""

    config: Mapping[str, Mapping[str, Any]]
    summary: Mapping[str, Any]
    run_id: str
    created: str
    statuses: tuple[Status, ...]
    started: tuple[str, ...]  # names of services that the launcher has started
    started_at: float | None  # when it last did, seconds since 1970
    deaths: tuple[Death, ...]  # the newest of them, oldest first
    num_deaths: Mapping[str, int]  # of each service, all of them
    crashes: tuple[str, ...]  # names of the batches whose loss was not finite
    status: RunStatus  # where the run is, and how it ended
    videos: tuple[str, ...]  # names of the files in the folder that show its policy
    changed_at: float | None
    problems: tuple[str, ...]

    def setting(self, section: str, key: str) -> Any:
        """One resolved setting; None if it is not there."""
        return self.config.get(section, {}).get(key)


class CachedFile(Generic[T]):
    """A small file's content, parsed again when the file was written again."""

    def __init__(self, path: Path, parse: Callable[[bytes], T], empty: T) -> None:
        """`parse` raises ValueError for what it does not understand; `empty` stands for a file that is not there."""
        self._path, self._parse, self._empty = path, parse, empty
        self._identity: tuple[int, int, int] | None = None
        self.value = empty
        self.problem = ""
        self.changed_at: float | None = None

    def refresh(self) -> T:
        """The content as it is now; `empty`, and a problem, if it cannot be read."""
        try:
            state = self._path.stat()
            if not stat.S_ISREG(state.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            identity = (state.st_ino, state.st_size, state.st_mtime_ns)
            if identity != self._identity:
                self._identity, self.changed_at = identity, state.st_mtime
                self.value, self.problem = self._empty, ""
                self.value = self._parse(self._read())
        except FileNotFoundError:
            self._identity, self.value, self.problem, self.changed_at = None, self._empty, "", None
        except OSError as error:
            self._identity, self.value = None, self._empty
            self.problem = f"{self._path.name}: {error.strerror or error}"
        except (ValueError, RecursionError) as error:
            self.problem = f"{self._path.name}: {error}"
        return self.value

    def _read(self) -> bytes:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a device may not hold us
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes, not read")
        return content


def parse_object(content: bytes) -> dict[str, Any]:
    """A JSON object. Raises: ValueError for anything else."""
    found = load_json(content)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return _checked(found)


def parse_tables(content: bytes) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file. Raises: ValueError if it is none."""
    return _checked({key: value for key, value in tomllib.loads(content.decode()).items() if isinstance(value, dict)})


def _checked(found: dict[str, T]) -> dict[str, T]:
    """The same, if all that is in it can be reckoned with.

    Raises: ValueError for an integer that is no 64 bits, or for more than `MAX_DEPTH` levels.
    """
    waiting: list[tuple[Any, int]] = [(found, 1)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(item, dict):
            waiting += [(value, depth + 1) for value in item.values()]
        elif isinstance(item, list):
            waiting += [(value, depth + 1) for value in item]
        elif isinstance(item, int) and item.bit_length() >= MAX_BITS:
            raise ValueError(f"holds a number of {item.bit_length()} bits")
    return found


class WatchedFolder:
    """Reads one run folder again and again. Owned by one thread at a time; memory: what its small files say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        no_tables: dict[str, dict[str, Any]] = {}
        self._config = CachedFile(path / RECORD, parse_tables, no_tables)
        self._snapshot = CachedFile(path / SNAPSHOT, parse_tables, no_tables)
        nothing: dict[str, Any] = {}
        self._summary = CachedFile(path / "summary.json", parse_object, nothing)
        self._identity = CachedFile(path / "run.json", parse_object, nothing)
        self._statuses: dict[str, CachedFile[dict[str, Any]]] = {}
        self._launcher = LineTail(path / "logs" / "launcher.jsonl")
        self.settings: Mapping[str, str] = {}  # as `seedbed.services.tools.monitor.settings.flatten` has them
        self._flattened = (no_tables, no_tables)
        self._forget_log()

    def _forget_log(self) -> None:
        self._started: dict[str, float] = {}
        self._deaths: deque[Death] = deque(maxlen=MAX_DEATHS)
        self._num_deaths: Counter[str] = Counter()

    def read(self) -> Facts:
        """The folder as it is now. Never raises for what lies in it: see `Facts.problems`."""
        problems: list[str] = []
        summary, identity = self._summary.refresh(), self._identity.refresh()
        recorded, given = self._config.refresh(), self._snapshot.refresh()
        config = recorded or given
        if recorded is not self._flattened[0] or given is not self._flattened[1]:
            self._flattened = (recorded, given)
            self.settings = flatten({**given, **recorded})  # of the learner all; of other services what was given
        statuses = self._read_statuses(problems)
        crashes = self._list("crash", problems)
        self._read_log(problems)
        files = (self._config, self._summary, self._identity, *self._statuses.values())
        problems += [file.problem for file in files if file.problem]
        return Facts(
            config=config,
            summary=summary,
            run_id=str(identity.get("run_id", "")),
            created=str(identity.get("created", "")),
            statuses=statuses,
            started=tuple(self._started),
            started_at=max(self._started.values(), default=None),
            deaths=tuple(self._deaths),
            num_deaths=dict(self._num_deaths),
            crashes=tuple(name for name in crashes if name.endswith(CRASH_SUFFIX)),
            status=read_status(self.path),
            videos=self._videos(),
            changed_at=self._changed_at(),
            problems=tuple(problems),
        )

    def _changed_at(self) -> float | None:
        try:
            return (self.path / "metrics.csv").stat().st_mtime
        except OSError:
            return None

    def _videos(self) -> tuple[str, ...]:
        """Files of its own; links lead elsewhere."""
        found = sorted(self.path.glob("policy*.mp4"))[:MAX_VIDEOS]
        videos = [file for file in found if file.name.isprintable() and file.is_file() and not file.is_symlink()]
        return tuple(file.name for file in videos)

    def _list(self, folder: str, problems: list[str]) -> list[str]:
        """Names in a folder of the run, without those that cannot be shown; none if it is not there."""
        try:
            return sorted(name for name in os.listdir(self.path / folder) if name.isprintable())
        except FileNotFoundError:
            return []
        except OSError as error:
            problems.append(f"{folder}/: {error.strerror or error}")
            return []

    def _read_statuses(self, problems: list[str]) -> tuple[Status, ...]:
        names = [name for name in self._list("services", problems) if name.endswith(".json")][:MAX_SERVICES]
        self._statuses = {
            name: self._statuses.get(name) or CachedFile(self.path / "services" / name, parse_object, {})
            for name in names
        }
        found = []
        for name, file in self._statuses.items():
            status = file.refresh()
            if not status or file.changed_at is None:
                continue
            incarnation = status.get("incarnation")
            if not isinstance(incarnation, int):
                problems.append(f"{name}: names no incarnation")
                continue
            found.append(
                Status(
                    name=name.removesuffix(".json"),
                    role=str(status.get("service", "")),
                    incarnation=incarnation,
                    metrics=str(status.get("metrics", "")),
                    at=file.changed_at,
                )
            )
        return tuple(found)

    def _read_log(self, problems: list[str]) -> None:
        """What the launcher has logged since the last look: starts and deaths."""
        try:
            piece = self._launcher.read(LOG_PIECE_BYTES)
        except OSError as error:
            problems.append(f"launcher.jsonl: {error.strerror or error}")
            return
        if piece.restarted:
            self._forget_log()
        for line in piece.data.splitlines():
            self._note(line)

    def _note(self, line: bytes) -> None:
        """One event of the launcher; lines that are none tell nothing."""
        if b'"service_' not in line:
            return
        try:
            event = parse_object(line)
            name, at = str(event["name"]), datetime.fromisoformat(str(event["timestamp"])).timestamp()
        except (ValueError, KeyError, RecursionError):
            return
        if event.get("event") == "service_started":
            self._started[name] = at
        elif event.get("event") == "service_died":
            self._deaths.append(Death(at=at, service=name, exit=str(event.get("exit", ""))))
            self._num_deaths[name] += 1
