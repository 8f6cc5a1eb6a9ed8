"""Checks whether environments can join a run; used by inference and learner alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from seedbed.shared.protocol.messages import TaskEnv
from seedbed.shared.protocol.rows import EnvSpec, describe_difference, describe_space_difference
from seedbed.shared.protocol.statistics import GIVEN, name_problem

SAME_FILE = "give every service the run's own experiment file, or start another run for this environment"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """The reason why environments cannot join: code, message and hint of REJECT."""

    code: str
    message: str
    hint: str


def check_statistics(spec: EnvSpec) -> Incompatibility | None:
    """Return why the environment's own statistics cannot have their names; None if they can."""
    problem = name_problem(spec.statistics[len(GIVEN) :])
    return (
        Incompatibility("spec", problem, "rename it in metadata['statistics'] of the environment, or in its HELLO")
        if problem
        else None
    )


def check_task_env(task: str, spec: EnvSpec | None, tasks: Sequence[TaskEnv]) -> Incompatibility | None:
    """Return why a task's environments cannot join, by name, id and settings; None if they can.

    Args:
      spec: None: check the name only.
      tasks: the tasks of the run; empty for a run with one environment.
    """
    known = {item.name: item for item in tasks}
    if not tasks and task:
        return Incompatibility("task", f"actor.task is {task!r}, and this run has no tasks", "leave out actor.task")
    if tasks and task not in known:
        asked = f"actor.task is {task!r}" if task else "actor.task is not set"
        return Incompatibility("task", f"{asked}; this run has the tasks {', '.join(known)}", "set it to one of them")
    if not tasks or spec is None:
        return None
    ours, theirs = known[task], dict(spec.settings)
    whose = f"task {task!r}: " if task else ""
    if spec.env_id != ours.env_id:
        message = f"{whose}environment id: ours {ours.env_id!r}, theirs {spec.env_id!r}"
        return Incompatibility("spec", message, SAME_FILE)
    for name, value in ours.settings:
        if theirs.get(name, value) != value:
            message = f"{whose}setting {name}: {value} in the run's [env], {theirs[name]} in this environment"
            return Incompatibility(
                "spec", message, f"make them equal: set env.{name} in the run's experiment, or change the environment"
            )
    return None


def check_spec(task: str, spec: EnvSpec, policy: EnvSpec, first: EnvSpec | None = None) -> Incompatibility | None:
    """Return why a specification does not fit the policy's, or the `first` one of its task; None if it fits."""
    if not task:
        difference = describe_difference(policy, spec)
        return Incompatibility("spec", difference, SAME_FILE) if difference else None
    difference = describe_space_difference(policy, spec)
    if difference:
        hint = (
            "the tasks of a run share one policy: give them the same observations and actions (Atari games: "
            "env.full_action_space = true), or train them in separate runs"
        )
        return Incompatibility("spec", f"task {task!r} does not fit the policy: {difference}", hint)
    difference = describe_difference(first, spec) if first is not None else None
    return Incompatibility("spec", f"task {task!r}: {difference}", SAME_FILE) if difference else None
