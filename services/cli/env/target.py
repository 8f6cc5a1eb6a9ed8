"""What TARGET of `seedbed env` and `seedbed play` may be: an environment for this process, a service, an address."""

import contextlib
import difflib
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shared.errors import ConfigError
from shared.runtime.config import EnvConfig, load_settings, suggest
from shared.runtime.service import DIE_WITH_PARENT

MANIFEST = "service.toml"
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

    def command(self, words: Sequence[str] = ()) -> list[str]:
        """What starts it, with further words; `python` is the interpreter that runs us."""
        program, *rest = self.manifest.command
        return [sys.executable if program in ("python", "python3") else program, *rest, *words]

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


@dataclass(frozen=True, slots=True)
class Listen:
    """A service that somebody else starts, and that dials this address; with inference's keys if there are any."""

    bind: str
    keys: Path | None = None


Target = EnvConfig | ServiceFolder | Listen


@contextlib.contextmanager
def pinned(cores: Collection[int] | None) -> Iterator[None]:
    """This thread, and what it starts, on these cores only; none or an empty set: as it is."""
    before = os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, cores)
        yield
    finally:
        os.sched_setaffinity(0, before)


class _EnvSettings(BaseModel):
    """What words may set for an environment of this process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: EnvConfig


def find_target(text: str, words: Sequence[str] = (), keys: Path | None = None) -> Target:
    """What a user means by TARGET.

    Args:
      text: `tcp://host:port`, `module:function`, a folder with a service.toml or its name under services/, or else
        an environment's id.
      words: `env.key=value`, for environments of this process; a service gets its words when it is started.
      keys: a folder with inference's keys, to listen with.
    Raises: ConfigError.
    """
    if text.startswith("tcp://"):
        return Listen(text, keys)
    if keys is not None:
        raise ConfigError("--keys are for an address that a service dials: what is started here stays on this machine")
    if ":" not in text:
        for folder in (Path(text), Path("services") / text, SHIPPED / text):
            if (folder / MANIFEST).is_file():
                return ServiceFolder(folder=folder.resolve(), manifest=read_manifest(folder / MANIFEST))
        if Path(text).is_dir() or text.startswith((".", "/")):
            raise ConfigError(
                f"{text}: no {MANIFEST} in this folder; it says how a service is started (docs/environments.md)"
            )
    for word in words:
        if not word.startswith("env."):
            raise ConfigError(
                f"{word!r}: an environment in this process takes env.key=value only, e.g. env.kwargs={{}}"
            )
    env = load_settings(_EnvSettings, None, [f"env.id={text}", *words]).env
    if not _can_be_made(env):
        raise ConfigError(
            f"{text}: no environment, service or folder is called so{name_near(text)} "
            "(or give module:function for an environment of yours)"
        )
    return env


def _can_be_made(env: EnvConfig) -> bool:
    """Whether anybody here knows an environment of this id; `module:function` is looked for when it is made."""
    return ":" in env.id or env.is_atari or is_registered(env.id)


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium or EnvPool has an environment of this id."""
    import gymnasium

    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error:
        if importlib.util.find_spec("envpool") is None:
            return False
        from actor_svc.backends.pool import has  # heavy

        return has(env_id)
    return True


def find_environment(text: str, words: Sequence[str] = ()) -> EnvConfig:
    """As `find_target`, for commands that step the environment themselves. A service stands for its `env_id`.

    Raises: ConfigError for an address.
    """
    target = find_target(text, () if is_service(text) else words)
    if isinstance(target, Listen):
        raise ConfigError(f"{text}: this command steps the environment itself; give its id or module:function")
    if isinstance(target, ServiceFolder):
        given = [word for word in target.manifest.command if word.startswith("env.")]  # its defaults
        env = load_settings(_EnvSettings, None, [f"env.id={target.manifest.env_id}", *given, *words]).env
        if not _can_be_made(env):
            raise ConfigError(
                f"{text}: this command steps the environment itself, and {env.id} is none that Python can make: only "
                f"its service steps it, for  seedbed env check, seedbed env bench  and  seedbed play {text}"
            )
        return env
    return target


def as_service(env: EnvConfig) -> ServiceFolder:
    """An actor process for an environment of this project's own kind."""
    words = [f"env.{key}={_as_toml(value)}" for key, value in env.model_dump(exclude_unset=True).items()]
    command = [sys.executable, "-P", "-m", "actor_svc", *words]
    manifest = ServiceManifest(name="actor", description="one of ours", command=command, env_id=env.id)
    return ServiceFolder(folder=Path.cwd(), manifest=manifest)


def _as_toml(value: Any) -> str:
    """A setting's value as a word gives it: TOML, whose strings, numbers, booleans and lists are those of JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {_as_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    return json.dumps(value)


def is_service(text: str) -> bool:
    """Whether TARGET names a folder with a service.toml."""
    return ":" not in text and any((at / text / MANIFEST).is_file() for at in (Path(), Path("services"), SHIPPED))


def read_manifest(file: Path) -> ServiceManifest:
    """A service.toml. Raises: ConfigError naming file and key."""
    try:
        return ServiceManifest.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(f"{file}: {_describe(detail)}" for detail in error.errors())) from error


def name_near(text: str) -> str:
    """`; did you mean …?` for an id that nobody knows: near names of services and of Gymnasium's environments."""
    import gymnasium

    known = [*service_names(), *gymnasium.registry]
    near = difflib.get_close_matches(text, known, n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def service_names() -> list[str]:
    """The services that can be named, ascending."""
    folders = {file.parent.name for at in (Path("services"), SHIPPED) for file in at.glob(f"*/{MANIFEST}")}
    return sorted(folders)


def service_variables(address: str, *, mode: str, groups: int, lanes: int, name: str) -> dict[str, str]:
    """The environment variables that every service understands, over this process's own, without keys."""
    inherited = {key: value for key, value in os.environ.items() if key != "SEEDBED_RUNTIME__KEYS"}
    return {
        **inherited,
        "SEEDBED_ACTOR__UPSTREAM": address,
        "SEEDBED_ACTOR__GROUPS": str(groups),
        "SEEDBED_ACTOR__LANES": str(lanes),
        "SEEDBED_ACTOR__MODE": mode,
        "SEEDBED_ACTOR__NAME": name,
        DIE_WITH_PARENT: "1",  # not checked: its command may be a script around it
    }


def _describe(detail: object) -> str:
    """One validation error, for people."""
    assert isinstance(detail, dict)
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"{key}: unknown key{suggest(key, tuple(ServiceManifest.model_fields))}"
    if detail["type"] == "missing":
        return f"{key} must be set"
    return f"{key}: {detail['msg']}, not {detail['input']!r}"
