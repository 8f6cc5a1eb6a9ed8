"""The run folder: its lock, the learner epoch, and the records of settings, versions and results. Blocking.

| file | holds |
|---|---|
| `.lock` | the lock of the running learner, and which process that is |
| `epoch` | how many learners have held the folder; it rises before each binds its socket |
| `run.json` | the run's random id, written once |
| `config.toml` | every setting of the learner's sections, as resolved |
| `versions.json` | versions of programs and source, and hardware; one entry for each epoch |
| `metrics.csv`, `curves.png`, `events/` | see `seedbed.learner_svc.run.history` |
| `checkpoints/`, `crash/` | see `seedbed.learner_svc.run.checkpoint`; a batch whose loss was not finite |
| `deaths.json` | see `seedbed.learner_svc.run.standstill` |
| `summary.json` | results, final ones if `finished` is true |
"""

import json
import os
import platform
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel

from seedbed.learner_svc.run.atomic_write import write_durably
from seedbed.shared.errors import ConfigError, StorageError
from seedbed.shared.runtime.locks import HeldError, take

PACKAGES = ("seedbed", "numpy", "torch", "gymnasium", "pyzmq", "ale-py", "envpool")
SOURCE = Path(__file__).resolve().parents[2]
PRECISION = "precision.json"  # file in a run folder with the measured fastest precision of its network


class RunFolder:
    """A locked run folder. A context manager; the lock also ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        """Lock the folder. Raises: ConfigError that says which process holds it, or why it cannot be written."""
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = take(path / ".lock")
        except HeldError as error:
            raise ConfigError(f"run.dir: {path} is held by {error}: stop it, or set another run.dir") from error
        except OSError as error:
            raise ConfigError(f"run.dir: cannot write {path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def check_held(self) -> None:
        """Check that the folder is still the one that was locked.

        Raises: StorageError if it was deleted or replaced.
        """
        try:
            is_held = os.path.samestat(os.fstat(self._lock), (self.path / ".lock").stat())
        except OSError:
            is_held = False
        if not is_held:
            raise StorageError(f"{self.path} was deleted or moved while it was in use; nothing can be saved there")

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints, which need not exist yet."""
        return self.path / "checkpoints"

    @property
    def crash(self) -> Path:
        """The folder for batches whose loss was not finite."""
        return self.path / "crash"

    def next_epoch(self) -> int:
        """Return this learner's epoch, one more than the last, after it was written durably."""
        file = self.path / "epoch"
        try:
            epoch = int(file.read_text()) + 1
        except FileNotFoundError:
            epoch = 1
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{file} does not hold a number: restore it from a copy, or start a new run") from error
        write_durably(file, f"{epoch}\n")
        return epoch

    def run_id(self) -> str:
        """Return the run's id, which is drawn at its first start."""
        file = self.path / "run.json"
        try:
            return str(json.loads(file.read_text())["run_id"])
        except FileNotFoundError:
            run_id = secrets.token_hex(8)
            write_durably(file, json.dumps({"run_id": run_id, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z")}))
            return run_id
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{file} does not hold a run id: restore it from a copy, or start a new run") from error

    def write_config(self, settings: BaseModel) -> None:
        """Write the resolved settings, without those of this process alone, to config.toml."""
        write_durably(self.path / "config.toml", to_toml(settings.model_dump(mode="json", exclude={"runtime"})))

    def write_versions(self, epoch: int) -> None:
        """Add an entry for this epoch to versions.json."""
        file = self.path / "versions.json"
        try:
            known = json.loads(file.read_text())
        except (OSError, ValueError):
            known = {}
        known = known if isinstance(known, dict) else {}
        write_durably(file, json.dumps(known | {str(epoch): describe_machine()}, indent=1))

    def summary(self) -> dict[str, Any]:
        """Return the last summary; empty if none can be read."""
        try:
            found = json.loads((self.path / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json durably. Raises: StorageError."""
        write_durably(self.path / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")


def describe_machine() -> dict[str, Any]:
    """Return versions, source state and hardware, by which two runs can be compared."""
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": sys.version.split()[0],
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "source": _git_state(),
        "system": f"{platform.system()} {platform.release()}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), platform.machine())


def _git_state() -> str:
    """Return the commit, and whether the tree differs from it; empty outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=SOURCE, capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return described.stdout.strip()


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of JSON values as TOML, without keys whose value is None."""
    blocks = []
    for name, table in sections.items():
        lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]
        blocks.append("\n".join([f"[{name}]", *lines]) + "\n")
    return "\n".join(blocks)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # strings, integers and booleans look the same in both


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)
