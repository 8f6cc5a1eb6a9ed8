"""From the deployment's variables to the running service: `seedbed container`. Replaces the process by the service."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from services.cli.machine import usable_cores
from services.cli.plan import word
from services.container import hold
from services.container.plan import ANY_IMAGE, Container, check_runs, plan_service
from services.container.role import Role
from shared.errors import SeedbedError
from shared.runtime.config import parse_value
from shared.runtime.health import CAUSE_VARIABLE
from shared.runtime.service import report

SERVICE_VARIABLE = "SEEDBED_SERVICE"  # of the image: which folder of services/ it was built for


def start(role: Role, experiment: str, words: Sequence[str], *, run: str, runs: Path, task: str, serve: str) -> None:
    """Become the service, or what waits where it is refused before it starts. Does not return."""
    cause = os.environ.get(CAUSE_VARIABLE)
    if cause:
        Path(cause).unlink(missing_ok=True)  # an earlier life's
    container = Container(
        host=socket.gethostname(), service=os.environ.get(SERVICE_VARIABLE, ANY_IMAGE), cores=usable_cores(), runs=runs
    )
    try:
        told = [*([word("actor.task", task)] if task else []), *words]
        chosen = plan_service(role, experiment, told, run, container, serve=serve)
        if role is Role.LEARNER:
            check_runs(runs, _run_dir(chosen.words), (os.getuid(), os.getgid()))
    except SeedbedError as error:
        report(str(role), error)
        hold.execute()
    else:
        command = [sys.executable, "-m", "services.container", chosen.package, *chosen.words]
        if chosen.tasks:
            several = "services.container.several"
            command = [sys.executable, "-m", several, chosen.label, *chosen.tasks, "--", *chosen.words]
        os.execve(sys.executable, command, {**os.environ, **chosen.environment})


def _run_dir(words: Sequence[str]) -> Path:
    """The last that is said of it."""
    said = [item.partition("=")[2] for item in words if item.startswith("run.dir=")]
    return Path(str(parse_value(said[-1])))
