"""What a container's service is told beside the experiment: names, threads, run folder; checked before it starts. Pure.

Addresses, keys and the status file are variables of the compose file (`SEEDBED_SECTION__KEY`), so that another
orchestrator sets its own; here is only what must be computed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seedbed.services.tools.cli.experiment import EXPERIMENTS, LaunchSettings, find_experiment
from seedbed.services.tools.cli.plan import NICE, split_threads, word
from seedbed.services.tools.cli.runs import RECORD
from seedbed.services.tools.container.role import SERVED, ContainerRole
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config_errors import suggest
from seedbed.shared.runtime.load_config import load_settings
from seedbed.shared.runtime.tasks import check_task

ANY_IMAGE = "classic_control"  # what the actor image is built for unless something else is said
OVERRIDES = ("atari", "corridor_cpp", "doom", "football")  # services with a file of their own in compose/
INSTALLED = Path(__file__).parents[4]  # beside the package: in an image, also folders of the user's own
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """Where a service finds itself.

    `service`: the folder of services/ that the image was built for; `ranks`: how many learner ranks there are.
    """

    host: str
    service: str
    cores: int
    runs: Path
    ranks: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Which service, the words of its command line, and variables over the present ones.

    `tasks`: a process for each, called by `label` and the task's name; empty: one process.
    """

    package: str  # as services/tools/container/__main__.py knows it
    words: Sequence[str]
    environment: Mapping[str, str]
    label: str
    tasks: Sequence[str] = ()


def plan_service(
    role: ContainerRole, experiment: str, words: Sequence[str], run: str, container: Container, *, serve: str = ""
) -> Start:
    """How one service of an experiment starts.

    Args:
      experiment: a name in compose/experiments, or a path from the project's root, e.g. services/x/experiment.toml.
      words: the user's section.key=value; they win.
      run: name of the run's folder; empty: the experiment's.
      serve: of inference: which checkpoint of the run to serve, without a learner; empty: none.
    Raises: ConfigError with what to change.
    """
    inside = [place / experiment for place in (EXPERIMENTS.parents[1], INSTALLED) if (place / experiment).is_file()]
    file = inside[0] if inside else find_experiment(experiment)
    settings = load_settings(LaunchSettings, file, words)
    name = run or (settings.run.name if "name" in settings.run.model_fields_set else file.stem)
    if not _RUN_NAME.fullmatch(name):
        raise ConfigError(f"RUN: {name!r} cannot be a folder's name: use letters, digits, dots, dashes and underscores")
    if role.package == "actor":
        _check_image(experiment, settings.launch.service, container.service)
    threads = split_threads(settings.launch, container.cores)
    count = {ContainerRole.LEARNER: threads.learner, ContainerRole.INFERENCE: threads.inference}.get(role, 1)
    label = container.host if container.host.startswith(f"{role}-") else f"{role}-{container.host}"
    given: dict[str, object] = {"runtime.name": label, "runtime.threads": count, "runtime.nice": NICE[role.package]}
    if role is ContainerRole.LEARNER:
        given["run.dir"] = str(container.runs / name)
    elif role is ContainerRole.INFERENCE:
        given["inference.name"] = label
    elif role is ContainerRole.EVALUATOR:
        given["actor.mode"] = "eval"
    variables = {"OMP_NUM_THREADS": str(count), "OMP_WAIT_POLICY": "PASSIVE"}
    if role is ContainerRole.LEARNER and container.ranks > 1:
        variables |= _rank_variables(container.host, container.ranks)
    served = (_served_run(container.runs, name), serve) if serve and role is ContainerRole.INFERENCE else ()
    return Start(
        package=SERVED if served else role.package,
        words=(*served, str(file), *(word(key, value) for key, value in given.items()), *words),
        environment=variables,
        label=label,
        tasks=_choose_tasks(settings) if role.package == "actor" else (),
    )


def _rank_variables(host: str, ranks: int) -> Mapping[str, str]:
    """The learner's rank, as torchrun would set it: the number at the end of its host's name, as in learner-1.

    Raises: ConfigError if the name has no such number, or one that is too large.
    """
    number = host.rpartition("-")[2]
    if not number.isdecimal() or int(number) >= ranks:
        raise ConfigError(
            f"WORLD_SIZE is {ranks}, so the hosts of the learners must be called learner-0 to learner-{ranks - 1}, and "
            f"this one is {host!r}: set WORLD_SIZE to the number of learners, which in Kubernetes are the replicas"
        )
    return {"RANK": number}


def _served_run(runs: Path, name: str) -> str:
    """The folder of the run that is to be served. Raises: ConfigError if there is none, with those that there are."""
    if (runs / name / RECORD).is_file():
        return str(runs / name)
    known = sorted(path.parent.name for path in runs.glob(f"*/{RECORD}"))
    raise ConfigError(f"RUN: there is no run {name!r}{suggest(name, known) or ', nor any other'}")


def _choose_tasks(settings: LaunchSettings) -> Sequence[str]:
    """Return the tasks that an actor's container steps, each in a process: all, unless one is chosen.

    Raises: ConfigError for a task that is none.
    """
    if settings.tasks and settings.actor.task:
        check_task(settings.actor.task, settings.tasks, "TASK (actor.task)")
        return ()
    return tuple(settings.tasks)


def _check_image(experiment: str, wanted: str, service: str) -> None:
    """Refuse an actor image that cannot step the experiment's environments, and say which override can."""
    if wanted in ("", service):
        return
    chosen, override = "", f"compose/{wanted}.yaml"
    if wanted not in OVERRIDES:
        is_ours = (EXPERIMENTS.parents[1] / "services" / wanted).is_dir()
        chosen = f"SERVICE={wanted} " if is_ours else ""
        override = "compose/custom.yaml" if is_ours else f"FOLDER_OF_{wanted}/compose.yaml"
    raise ConfigError(
        f"{experiment} needs the actor image of {wanted}, and this one was built for {service}. "
        f"Add its override:\n"
        f"COMPOSE_FILE=compose/compose.yaml:{override} {chosen}EXPERIMENT={experiment} "
        f"docker-compose up --build"
    )
