"""Whether environments go together with the run that they want to join: what inference and learner both judge by."""

from collections.abc import Sequence
from dataclasses import dataclass

from seedbed.shared.protocol.messages import TaskEnv
from seedbed.shared.protocol.rows import EnvSpec, describe_difference, describe_space_difference
from seedbed.shared.protocol.statistics import GIVEN, name_problem

SAME_FILE = "give every service the run's own experiment file, or start another run for this environment"


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """Why environments cannot join: REJECT's code, message and hint."""

    code: str
    message: str
    hint: str


def check_statistics(spec: EnvSpec) -> Incompatibility | None:
    """Whether a run can report the environment's own statistics under their names."""
    problem = name_problem(spec.statistics[len(GIVEN) :])
    return (
        Incompatibility("spec", problem, "rename it in the environment's metadata, or in its HELLO")
        if problem
        else None
    )


def check_task_env(task: str, spec: EnvSpec | None, tasks: Sequence[TaskEnv]) -> Incompatibility | None:
    """A task's name, and its environments' id and settings, against the run's tasks (none: one environment)."""
    known = {item.name: item for item in tasks}
    if not tasks and task:
        return Incompatibility(
            "task", f"task {task!r} asked, this run has one environment and no tasks", "leave out actor.task"
        )
    if tasks and task not in known:
        asked = f"task {task!r} asked, this run has" if task else "no task named, this run has"
        return Incompatibility("task", f"{asked} {', '.join(known)}", "name one of them as actor.task")
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
                "spec", message, f"make them equal: env.{name} in the run's experiment, or the environment"
            )
    return None


def check_spec(task: str, spec: EnvSpec, policy: EnvSpec, first: EnvSpec | None = None) -> Incompatibility | None:
    """A specification against the policy's, and against the first that came for the same task."""
    if not task:
        difference = describe_difference(policy, spec)
        return Incompatibility("spec", difference, SAME_FILE) if difference else None
    difference = describe_space_difference(policy, spec)
    if difference:
        hint = (
            "tasks of one run share one policy: give them the same observations and actions (Atari games: "
            "env.full_action_space = true), or train them apart"
        )
        return Incompatibility("spec", f"task {task!r} does not fit the policy: {difference}", hint)
    difference = describe_difference(first, spec) if first is not None else None
    return Incompatibility("spec", f"task {task!r}: {difference}", SAME_FILE) if difference else None
