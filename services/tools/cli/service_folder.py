"""A service's folder: `service.toml` says how an environment service in any language is built and started."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.config_errors import suggest
from seedbed.shared.runtime.service import DIE_WITH_PARENT

MANIFEST = "service.toml"
MINDER = Path(__file__).with_name("minder.py")
KILL_ALL = signal.SIGALRM  # to a minder: kill all that it minds, now
SHIPPED = Path(__file__).resolve().parents[2]  # services/


class ServiceManifest(BaseModel):
    """service.toml: how an environment service is started, in any language."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, description="Label.")
    description: str = Field(description="One line.")
    command: list[str] = Field(min_length=1, description="What starts it, run in the service's folder.")
    build: list[str] = Field([], description="What builds it, run in the service's folder before.")
    env_id: str = Field(min_length=1, description="What its HELLO says.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFolder:
    """A service that can be started."""

    folder: Path
    manifest: ServiceManifest
    cores: frozenset[int] = frozenset()  # that its process may use; empty: as we
    env: EnvConfig | None = None  # of the run that it is started for
    differences: Mapping[str, Any] | None = None  # [eval] env of that run

    def command(self, words: Sequence[str] = ()) -> list[str]:
        """What starts it, with further words; `python` is the interpreter that runs us."""
        program, *rest = self.manifest.command
        return [sys.executable if program in ("python", "python3") else program, *rest, *words]

    def minded_command(self, words: Sequence[str] = (), *, niceness: int = 0) -> list[str]:
        """The same under the minder, for a process in a session of its own that has `DIE_WITH_PARENT`.

        Raises: ConfigError if there is no such program.
        """
        command = self.command(words)
        if shutil.which(self.folder / command[0] if "/" in command[0] else command[0]) is None:
            raise ConfigError(f"{self.folder}: cannot run {' '.join(command)!r}: there is no program {command[0]!r}")
        return minded(command, niceness=niceness, tells_all=True)

    def describe(self) -> str:
        """How it is built and started, for people."""
        manifest = self.manifest
        steps = [" ".join(words) for words in (manifest.build, manifest.command) if words]
        return f"{' && '.join(steps)}  in {self.folder}"

    def build(self) -> None:
        """Run its build command, if it has one. Raises: ConfigError with its last words."""
        if not self.manifest.build:
            return
        shown = " ".join(self.manifest.build)
        try:
            done = subprocess.run(self.manifest.build, cwd=self.folder, capture_output=True, text=True, check=False)
        except OSError as error:
            raise ConfigError(f"{self.folder / MANIFEST}: build: {shown!r}: {error.strerror}") from error
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
            raise ConfigError(f"{self.folder}: {shown!r} failed with exit status {done.returncode}:\n{tail}")


def find_folder(text: str, *places: Path) -> Path | None:
    """The folder with a service.toml that a text names: within one of `places` (else here), or under services/."""
    for place in (*(places or (Path(),)), Path("services"), SHIPPED):
        if (place / text / MANIFEST).is_file():
            return (place / text).resolve()
    return None


def open_service(env: EnvConfig, beside: Path = Path()) -> ServiceFolder:
    """The service of `env.service`, looked for in `beside` (the experiment's folder), here and under services/.

    Raises: ConfigError for a folder without a service.toml, or one whose environment is called otherwise.
    """
    folder = find_folder(env.service, beside, Path())
    if folder is None:
        raise ConfigError(f"env.service: {env.service!r} is no folder with a {MANIFEST} in it")
    service = open_folder(folder)
    if service.manifest.env_id != env.id:
        raise ConfigError(f"env.id is {env.id!r}, and {folder / MANIFEST} has env_id = {service.manifest.env_id!r}")
    return replace(service, env=env)


def open_folder(folder: Path) -> ServiceFolder:
    """A service by its folder. Raises: ConfigError naming file and key."""
    return ServiceFolder(folder=folder, manifest=read_manifest(folder / MANIFEST))


def read_manifest(file: Path) -> ServiceManifest:
    """A service.toml. Raises: ConfigError naming file and key."""
    try:
        return ServiceManifest.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {_describe(detail)}" for detail in error.errors())) from error


def service_variables(
    upstream: Sequence[str],
    *,
    mode: str,
    groups: int,
    lanes: int,
    name: str,
    env: EnvConfig | None = None,
    differences: Mapping[str, Any] | None = None,
    task: str = "",
    keys: Path | None = None,
) -> dict[str, str]:
    """The environment variables that a service in any language is started with; docs/protocol.md lists them.

    Args:
      upstream: addresses of inference.
      mode: with "eval", `lanes` is said as `eval.lanes` too.
      env: the run's, whose settings are said as JSON; those that were not set are not said.
      differences: [eval] env.
      task: which of the run's; empty where it has one environment.
      keys: folder of the service's keys; none: it dials this machine.
    """
    said = {} if env is None else env.model_dump(mode="json", exclude_unset=True, exclude={"id", "service", "backend"})
    return {
        "SEEDBED_ACTOR__UPSTREAM": ",".join(upstream),
        "SEEDBED_ACTOR__GROUPS": str(groups),
        "SEEDBED_ACTOR__LANES": str(lanes),
        "SEEDBED_ACTOR__MODE": mode,
        "SEEDBED_ACTOR__NAME": name,
        **({"SEEDBED_ACTOR__TASK": task} if task else {}),
        **({"SEEDBED_RUNTIME__KEYS": str(keys.resolve())} if keys else {}),
        **({"SEEDBED_EVAL__LANES": str(lanes)} if mode == "eval" else {}),
        **({"SEEDBED_EVAL__ENV": json.dumps(differences)} if differences else {}),
        **{f"SEEDBED_ENV__{key.upper()}": _as_text(value) for key, value in said.items()},
        DIE_WITH_PARENT: str(os.getpid()),
    }


def minded(command: Sequence[str], *, niceness: int, tells_all: bool) -> list[str]:
    """A command under the minder: what it starts ends with it, however it ends."""
    return [sys.executable, "-I", str(MINDER), str(niceness), "all" if tells_all else "program", *command]


def kill_group(leader: subprocess.Popen[bytes]) -> None:
    """Kill a process that leads a session of its own, and whatever it started there."""
    if leader.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)


def _as_text(value: object) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _describe(detail: object) -> str:
    """Say one of pydantic's validation errors in words."""
    assert isinstance(detail, dict)
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{suggest(key, tuple(ServiceManifest.model_fields))}"
    if detail["type"] == "missing":
        return f"{key} must be set"
    return f"{key}: {detail['msg']}, not {detail['input']!r}"
