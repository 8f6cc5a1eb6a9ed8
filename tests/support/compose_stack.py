"""A deployment by docker-compose under a project name, port and folder of its own, for `tests/compose/`; nothing stays.

Waits are for conditions with a deadline; `wait_until` is the only place that lets time pass.
"""

import csv
import http.client
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.deployment import wait_until

ROOT = Path(__file__).resolve().parents[2]
MAIN = "compose/compose.yaml"
BUILD_S, START_S, COMMAND_S = 1500.0, 240.0, 120.0
USER = 1000
TRAINING = ("learner", "inference", "actor", "evaluator")
SHORT_FAREWELL = "learner.finished_s=40 inference.finished_s=40"  # of a run that is over: 5 s after the last who came
Command = tuple[str, ...]
COMMANDS: tuple[Command, ...] = (
    ("docker-compose",),
    ("docker", "compose"),
)  # the second is Compose v2; the first may be


@cache
def why_not() -> str:
    """Why there can be no container here; empty if there can."""
    if shutil.which("docker") is None:
        return "no docker command"
    asked = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=COMMAND_S)
    if asked.returncode:
        return f"no Docker engine answers: {asked.stderr.strip().splitlines()[-1:]}"
    return "" if compose_commands() else "no docker-compose 1.29, and no Compose v2"


@cache
def compose_commands() -> tuple[Command, ...]:
    """Those of COMMANDS that are installed; tests use the first where they do not say which."""
    found = []
    for command in COMMANDS:
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, check=False, timeout=COMMAND_S)
            if asked.returncode == 0:
                found.append(command)
    return tuple(found)


def docker(*words: str, check: bool = True) -> str:
    """What a docker command prints, both streams."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=COMMAND_S, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def inspect(container: str) -> dict[str, Any]:
    """All that the engine knows of a container."""
    return dict(json.loads(docker("inspect", container))[0])


def is_well(state: dict[str, Any]) -> bool:
    """Whether a container (`inspect`'s state of it) is healthy or has ended well."""
    return bool(state["Health"]["Status"] == "healthy" or (state["Status"] == "exited" and state["ExitCode"] == 0))


def free_port() -> int:
    """A TCP port of loopback that was free a moment ago: docker-compose wants a number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def build(files: str = MAIN) -> None:
    """Make the images; quick where nothing changed."""
    run_compose(["build"], {"COMPOSE_FILE": files}, BUILD_S)


def users_environment() -> dict[str, str]:
    """The variables of this process, but none that a deployment would read."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SEEDBED_", "COMPOSE_", "MONITOR_"))
        and name not in ("EXPERIMENT", "ARGS", "RUN", "RUNS")
    }


def run_compose(words: Sequence[str], variables: dict[str, str], timeout_s: float, command: Command = ()) -> str:
    """What a docker-compose command prints. The test's own variables do not reach it."""
    done = subprocess.run(
        [*(command or compose_commands()[0]), *words], cwd=ROOT, env=users_environment() | variables,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def progress(run_dir: Path) -> tuple[float, float]:
    """(epoch, trained steps) of the last row of a run's table in which something was trained; zeros before it."""
    try:
        lines = (run_dir / "metrics.csv").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0.0, 0.0
    for row in reversed(list(csv.DictReader(lines))):
        if float(row.get("trained_steps_per_s") or 0) > 0:
            return float(row["epoch"]), float(row["trained_steps"])
    return 0.0, 0.0


class Stack:
    """One deployment. A context manager that leaves no container, network or volume."""

    def __init__(self, name: str, folder: Path, command: Command = (), **variables: str) -> None:
        """`variables` are those of the user, as in docs/deployment.md; `command`: one of COMMANDS."""
        self._command = command
        self.runs = folder / "runs"
        self.runs.mkdir(exist_ok=True)
        self.port = free_port()
        self.project = f"{name}{os.getpid()}"
        self._variables = {
            "COMPOSE_FILE": MAIN, "COMPOSE_PROJECT_NAME": self.project, "RUNS": str(self.runs),
            "MONITOR_PORT": str(self.port), **variables,
        }  # fmt: skip

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_: object) -> None:
        self.compose("down", "--volumes", "--timeout", "1")

    def compose(self, *words: str, timeout_s: float = START_S) -> str:
        """Any docker-compose command on this deployment."""
        return run_compose(words, self._variables, timeout_s, self._command)

    def change(self, **variables: str) -> None:
        """Other variables from now on."""
        self._variables |= variables

    def up(self, *words: str) -> None:
        """Start, or change, what is asked for; returns once containers run."""
        self.compose("up", "--detach", *words)

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, those that ended too."""
        return self.all_containers(f"label=com.docker.compose.service={service}")

    def all_containers(self, *filters: str) -> list[str]:
        """Ids of this deployment's containers."""
        chosen = [f"label=com.docker.compose.project={self.project}", *filters]
        words = [word for item in chosen for word in ("--filter", item)]
        return docker("ps", "--all", "--quiet", "--no-trunc", *words).split()

    def running(self) -> list[str]:
        """The service of each container that runs, sorted."""
        project = f"label=com.docker.compose.project={self.project}"
        service = '{{.Label "com.docker.compose.service"}}'
        return sorted(docker("ps", "--filter", project, "--filter", "status=running", "--format", service).split())

    def the(self, service: str) -> str:
        """The id of a service's only container."""
        (container,) = self.containers(service)
        return container

    def user(self, service: str) -> int:
        """As whom a service runs: the learner as the owner of the runs, everybody else as the images' user."""
        return self.runs.stat().st_uid if service == "learner" else USER

    def exec(self, service: str, *words: str, check: bool = True) -> str:
        """What a command in a service's container prints, run as the service is."""
        return docker("exec", "--user", f"{self.user(service)}:{USER}", self.the(service), *words, check=check)

    def states(self) -> dict[str, tuple[str, int]]:
        """Service → (status, exit code) of its first container."""
        found = {}
        for container in self.all_containers():
            seen = inspect(container)
            state = seen["State"]
            found[seen["Config"]["Labels"]["com.docker.compose.service"]] = (state["Status"], state["ExitCode"])
        return found

    def wait_ended(self, *services: str, deadline_s: float = START_S) -> dict[str, int]:
        """Exit codes of these services, once all have ended."""

        def are_over() -> dict[str, int]:
            states = self.states()
            over = {name: states[name][1] for name in services if states[name][0] == "exited"}
            return over if len(over) == len(services) else {}

        return wait_until(are_over, f"{services} end: {self.states()}", deadline_s)

    def wait_healthy(self, *services: str) -> None:
        """Until all containers of these services are, or have ended well: a short run may end before anybody asks."""
        for container in [item for name in services for item in self.containers(name)]:
            wait_until(
                lambda container=container: is_well(inspect(container)["State"]),
                f"{inspect(container)['Name']} is healthy",
                START_S,
            )

    def is_finished(self, run: str) -> bool:
        """Whether a run has ended as it should."""
        return (self.runs / run / "summary.json").is_file() and bool(self.summary(run)["finished"])

    def summary(self, run: str) -> dict[str, Any]:
        """Of a run."""
        return dict(json.loads((self.runs / run / "summary.json").read_text()))

    def page(self, path: str = "/") -> int:
        """The status with which the web page answers; 0 while nobody does."""
        return self.fetch(path)[0]

    def fetch(self, path: str) -> tuple[int, str]:
        """Status and text of a page; 0 and nothing while nobody answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def trained_steps(self, run: str) -> float:
        """By the last whole row of the run's table; 0 before the first."""
        try:
            lines = (self.runs / run / "metrics.csv").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return 0.0
        return float(lines[-1].split(",")[lines[0].split(",").index("trained_steps")]) if len(lines) > 1 else 0.0

    def progress(self, run: str) -> tuple[float, float]:
        """(epoch, trained steps) of the last row in which something was trained.

        A learner that is back counts on from its checkpoint, so from less, but in the next epoch.
        """
        return progress(self.runs / run)

    def wait_trained(self, run: str, steps: float) -> float:
        """Until so many more steps are trained than now; how many there are then."""
        goal = self.trained_steps(run) + steps
        wait_until(lambda: self.trained_steps(run) >= goal, f"{steps:.0f} more steps are trained", START_S)
        return self.trained_steps(run)


class Clone(Stack):
    """A fresh clone of this tree that belongs to a user, and what that user types in it: `docker-compose up`, watched.

    Nothing is set but the project's name and the page's port, which others on this machine may have in use.
    """

    def __init__(self, name: str, folder: Path, user: int, command: Command = ()) -> None:
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        for file in filter(None, tracked.stdout.split("\0")):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, folder / file, follow_symlinks=False)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user, user, follow_symlinks=False)
        super().__init__(name, folder, command)
        self._folder, self._user, self._said = folder, user, folder.with_name(f"{folder.name}.log")
        self._watched: subprocess.Popen[bytes] | None = None

    def watch(self) -> None:
        """`docker-compose up` in the foreground, until this context is left."""
        variables = {name: self._variables[name] for name in ("COMPOSE_PROJECT_NAME", "MONITOR_PORT")}
        socket_group = Path("/var/run/docker.sock").stat().st_gid
        with self._said.open("wb") as file:
            self._watched = subprocess.Popen(
                [*(self._command or compose_commands()[0]), "up"], cwd=self._folder, stdout=file, stderr=file,
                env=users_environment() | variables | {"HOME": "/tmp"}, user=self._user, group=self._user,
                extra_groups=[socket_group],
            )  # fmt: skip

    def said(self) -> str:
        """What `docker-compose up` has printed."""
        return self._said.read_text(errors="replace")

    def __exit__(self, *_: object) -> None:
        if self._watched is not None:
            self._watched.kill()
            self._watched.wait()
        super().__exit__()
