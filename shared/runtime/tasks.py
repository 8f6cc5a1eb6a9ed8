"""The sections [tasks.NAME]: several environments for one policy, each with its own settings, weight and scores.

`[env]` holds the common settings, a task's `env` those that differ. A task's weight decides its share of every batch.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, model_validator

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RunConfig, Section, join_env
from seedbed.shared.runtime.config_errors import suggest
from seedbed.shared.scores.published import published_scale
from seedbed.shared.scores.scale import ScoreScale

MULTI_TASK_ENV_ID = "tasks"  # the environment id of the policy in a run with tasks
MAX_TASKS = 128
RewardTransform = Literal["none", "asymmetric"]
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class TaskConfig(Section):
    """The section [tasks.NAME]: environments, weight, and scores for normalisation."""

    env: EnvConfig = Field(description="What differs from [env]; kwargs are joined key by key.")
    weight: float = Field(1.0, gt=0, description="Its share of every batch, beside the other tasks' weights.")
    reward_scale: float = Field(1.0, gt=0, description="Multiplies its rewards in training, before algorithm's own.")
    reward_clip: float | None = Field(None, ge=0, description="As algorithm.reward_clip, for this task; none: that.")
    reward_transform: RewardTransform | None = Field(
        None, description="As algorithm.reward_transform, for this task; none: that."
    )
    actors: int | None = Field(None, ge=0, description="Training actors, processes; none: launch.actors.")
    groups: int | None = Field(None, ge=1, le=64, description="Groups of each actor; none: actor.groups.")
    lanes: int | None = Field(None, ge=1, le=65536, description="Environment copies in a group; none: actor.lanes.")
    random_score: float | None = Field(
        None,
        description="Return of random play, 0 on the normalised scale; none: as published, for Atari and DMLab-30.",
    )
    human_score: float | None = Field(
        None, description="Return of a person, 1 on the normalised scale; none: as published, for Atari and DMLab-30."
    )

    @model_validator(mode="after")
    def _check_scores(self) -> "TaskConfig":
        if (self.random_score is None) != (self.human_score is None) or (
            self.random_score is not None and self.random_score == self.human_score
        ):
            raise ValueError("random_score and human_score must both be set, and differ")
        return self

    def scale(self, evaluation: EvalConfig) -> ScoreScale | None:
        """Return the scale of the task's own scores, else the published one of what it evaluates; None without both."""
        if self.random_score is not None and self.human_score is not None:
            return ScoreScale(random=self.random_score, human=self.human_score)
        return published_scale(evaluation.own_env(self.env))


def _check_names(tasks: dict[str, TaskConfig]) -> dict[str, TaskConfig]:
    if len(tasks) > MAX_TASKS:
        raise ValueError(f"{len(tasks)} tasks, at most {MAX_TASKS} are allowed")
    for name in tasks:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a task cannot be named {name!r}: use up to 64 letters, digits, _, - and dots within")
    return tasks


Tasks = Annotated[dict[str, TaskConfig], AfterValidator(_check_names)]


class RunSettings(BaseModel):
    """The sections that say what is trained. Every task's `env` is completed from [env], which always has an id."""

    run: RunConfig = RunConfig()
    env: EnvConfig
    tasks: Tasks = {}

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, sections: Any) -> Any:
        """Complete each task's `env` by [env]."""
        if not isinstance(sections, dict) or not isinstance(sections.get("tasks"), dict) or not sections["tasks"]:
            return sections
        shared = sections.get("env", {})
        if not isinstance(shared, dict):
            return sections
        filled = {name: _filled(task, shared) for name, task in sections["tasks"].items()}
        return {**sections, "env": {"id": MULTI_TASK_ENV_ID, **shared}, "tasks": filled}

    @property
    def policy_env_id(self) -> str:
        """The environment id of the policy: that of [env], or MULTI_TASK_ENV_ID in a run with tasks."""
        return MULTI_TASK_ENV_ID if self.tasks else self.env.id

    def env_of(self, task: str) -> EnvConfig:
        """Return a task's environment, or [env] in a run without tasks. Raises: ConfigError for an unknown task."""
        if not self.tasks:
            return self.env
        check_task(task, self.tasks)
        return self.tasks[task].env


def _filled(task: Any, shared: Mapping[str, Any]) -> Any:
    own = task.get("env", {}) if isinstance(task, dict) else None
    if not isinstance(own, dict):
        return task
    return {**task, "env": join_env(shared, own)}


def check_task(name: str, tasks: Mapping[str, object], key: str = "task") -> None:
    """Raise ConfigError unless the name is one of the tasks."""
    if not name:
        raise ConfigError(f"{key}: this run has the tasks {', '.join(tasks)}; say which, as {key}=NAME")
    if name not in tasks:
        raise ConfigError(f"{key}: no task {name!r}{suggest(name, tuple(tasks))}")


def normalised_weights(tasks: Mapping[str, TaskConfig]) -> dict[str, float]:
    """Return each task's share of a batch by name, in the order of the file; the sum is 1.

    In a run without tasks there is one share, of the name "".
    """
    if not tasks:
        return {"": 1.0}
    total = sum(task.weight for task in tasks.values())
    return {name: task.weight / total for name, task in tasks.items()}
