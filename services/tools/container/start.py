"""From the deployment's variables to the running service: `seedbed container`. Replaces the process by the service."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from seedbed.services.tools.cli.experiment import EXPERIMENTS
from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.plan import word
from seedbed.services.tools.container import hold
from seedbed.services.tools.container.owner import ReadOnlyMountError, User, command_as, settle
from seedbed.services.tools.container.plan import ANY_IMAGE, Container, Start, plan_service
from seedbed.services.tools.container.role import ContainerRole
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.runtime.load_config import parse_value
from seedbed.shared.runtime.service import report

SERVICE_VARIABLE = "SEEDBED_SERVICE"  # of the image: which folder of services/ it was built for


def start(
    role: ContainerRole,
    experiment: str,
    words: Sequence[str],
    *,
    run: str,
    runs: Path,
    task: str,
    serve: str,
    as_owner: bool,
) -> None:
    """Become the service, or what waits where it is refused before it starts. Does not return."""
    hold.begin()
    user = User.current()
    try:
        container = Container(
            host=socket.gethostname(), service=os.environ.get(SERVICE_VARIABLE, ANY_IMAGE), cores=usable_cores(),
            runs=runs, ranks=_num_ranks(),
        )  # fmt: skip
        told = [*([word("actor.task", task)] if task else []), *words]
        chosen = _plan(role, experiment, told, run, container, serve)
        if role is ContainerRole.LEARNER:
            user = settle(runs, _run_dir(chosen.words), EXPERIMENTS, as_owner=as_owner)
    except SeedbedError as error:
        report(str(role), error)
        hold.execute(hold.EXIT, *([hold.RESTART] if isinstance(error, ReadOnlyMountError) else []))
    else:
        command = [sys.executable, "-m", "seedbed.services.tools.container", chosen.package, *chosen.words]
        if chosen.tasks:
            several = "seedbed.services.tools.container.several"
            command = [sys.executable, "-m", several, chosen.label, *chosen.tasks, "--", *chosen.words]
        if as_owner and os.getuid() == 0:
            command = command_as(user, command)
        os.execvpe(command[0], command, {**os.environ, **chosen.environment})


def _num_ranks() -> int:
    """The number of learner ranks, from the variable that torchrun would set. Raises: ConfigError."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"WORLD_SIZE is {text!r} in the environment: set it to the number of learner ranks, 1 or more"
        )
    return int(text)


def _plan(
    role: ContainerRole, experiment: str, words: Sequence[str], run: str, container: Container, serve: str
) -> Start:
    """Plan a service as `plan_service` does; a file that this user may not read becomes a ConfigError."""
    try:
        return plan_service(role, experiment, words, run, container, serve=serve)
    except PermissionError as error:
        raise ConfigError(
            f"user {os.getuid()} may not read {error.filename}. On the host:\n"
            "chmod -R a+rX compose/experiments runs\n"
            "Or put SEEDBED_UID and SEEDBED_GID, your user's numbers, into .env and start again"
        ) from error


def _run_dir(words: Sequence[str]) -> Path:
    """The last that is said of it."""
    said = [item.partition("=")[2] for item in words if item.startswith("run.dir=")]
    return Path(str(parse_value(said[-1])))
