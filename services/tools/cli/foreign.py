"""`seedbed actor` of an experiment whose environments a program in another language steps: it becomes that program."""

import os
from collections.abc import Sequence

from seedbed.actor_svc.config import ActorSettings
from seedbed.services.tools.cli.service_folder import open_service, service_variables
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.service import DIE_WITH_PARENT, split_words


def become_service(words: Sequence[str]) -> None:
    """Build and start the program of `env.service` in place of this process; nothing happens without one.

    Args:
      words: `[EXPERIMENT.toml] [section.key=value …]`.
    Raises: ConfigError.
    """
    file, rest = split_words(words)
    if file is None:
        return
    settings = load_settings(ActorSettings, file, rest)
    env = settings.env_of(settings.actor.task)
    if not env.service:
        return
    service = open_service(env, file.parent)
    service.build()
    command = service.command()
    variables = {**os.environ, **variables_of(settings)}
    variables.pop(DIE_WITH_PARENT)
    try:
        os.chdir(service.folder)
        os.execvpe(command[0], command, variables)
    except OSError as error:
        raise ConfigError(f"{service.folder}: cannot run {' '.join(command)!r}: {error.strerror}") from error


def variables_of(settings: ActorSettings) -> dict[str, str]:
    """What the program is told by variables."""
    actor, lanes = settings.actor, settings.group_lanes()
    return service_variables(
        actor.upstream, mode=actor.mode, groups=len(lanes), lanes=lanes[0], name=actor.name or f"actor-{os.getpid()}",
        env=settings.env_of(actor.task), differences=settings.eval.env, task=actor.task, keys=settings.runtime.keys,
    )  # fmt: skip
