"""What TARGET of `seedbed env` and `seedbed play` may be: an environment for this process, a service, an address."""

import contextlib
import difflib
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from seedbed.services.tools.cli.service_folder import (
    MANIFEST,
    SHIPPED,
    ServiceFolder,
    ServiceManifest,
    find_folder,
    open_folder,
)
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.env_name import EnvName
from seedbed.shared.runtime.load_config import load_settings


@dataclass(frozen=True, slots=True)
class Listen:
    """A service that somebody else starts, and that dials this address; with inference's keys if there are any."""

    bind: str
    keys: Path | None = None


Target = EnvConfig | ServiceFolder | Listen


@contextlib.contextmanager
def pinned(cores: Collection[int] | None) -> Iterator[None]:
    """Keep this thread, and what it starts, on these cores; None or an empty set changes nothing."""
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
      text: `tcp://host:port`, `module:function`, `module:Name-v0`, a folder with a service.toml or its name under
        services/, or else an environment's id.
      words: `env.key=value`, for environments of this process; a service gets its words when it is started.
      keys: a folder with inference's keys, to listen with.
    Raises: ConfigError.
    """
    if text.startswith("tcp://"):
        return Listen(text, keys)
    if keys is not None:
        raise ConfigError("--keys are for an address that a service dials: what is started here stays on this machine")
    if not EnvName.of(text).module:
        if (folder := find_folder(text)) is not None:
            return open_folder(folder)
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
    """Whether anybody here knows an environment of this id; what a module has is looked for when it is made."""
    return bool(EnvName.of(env.id).module) or env.is_atari or is_registered(env.id)


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium or EnvPool has an environment of this id."""
    import gymnasium

    try:
        gymnasium.spec(env_id)
    except gymnasium.error.Error:
        if importlib.util.find_spec("envpool") is None:
            return False
        from seedbed.actor_svc.backends.pool import has  # heavy

        return has(env_id)
    return True


def environment_behind(target: ServiceFolder | Listen, words: Sequence[str]) -> EnvConfig | None:
    """Return the environment of a service folder, with the settings that its command and `words` (env.key=value) set.

    None where Python can make none of its `env_id`: only the service itself steps it.
    """
    if isinstance(target, Listen):
        return None
    given = [word for word in target.manifest.command if word.startswith("env.")]  # its defaults
    env = load_settings(_EnvSettings, None, [f"env.id={target.manifest.env_id}", *given, *words]).env
    return env if _can_be_made(env) else None


def find_environment(text: str, words: Sequence[str] = ()) -> EnvConfig:
    """Return the environment of a target, for commands that step it themselves; of a service that of its `env_id`.

    Raises: ConfigError for an address.
    """
    target = find_target(text, () if is_service(text) else words)
    if isinstance(target, Listen):
        raise ConfigError(f"{text}: this command steps the environment itself; give its id or module:function")
    if isinstance(target, ServiceFolder):
        env = environment_behind(target, words)
        if env is None:
            raise ConfigError(
                f"{text}: this command steps the environment itself, and {target.manifest.env_id} is none that Python "
                "can make: only its service steps it, for  seedbed env check, seedbed env bench  and  seedbed play "
                f"{text}"
            )
        return env
    return target


def as_service(env: EnvConfig) -> ServiceFolder:
    """An actor process for an environment of this project's own kind."""
    words = [f"env.{key}={_as_toml(value)}" for key, value in env.model_dump(exclude_unset=True).items()]
    command = [sys.executable, "-P", "-m", "seedbed.actor_svc", *words]
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
    return not EnvName.of(text).module and find_folder(text) is not None


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
