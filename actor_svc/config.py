"""An actor's settings: which environments it steps, in how many groups, and which inference services it dials."""

from typing import Literal

from pydantic import ConfigDict, Field

from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RuntimeConfig, Section
from seedbed.shared.runtime.tasks import RunSettings, check_task


class ActorConfig(Section):
    """The section [actor]: groups, lanes and upstream of one actor process."""

    upstream: list[str] = Field(
        ["tcp://127.0.0.1:5555"], min_length=1, description="Inference services to dial; a name may be many."
    )
    name: str = Field("", description="Label in logs and metrics; empty: actor-<process id>.")
    mode: Literal["train", "eval", "play"] = Field("train", description="What the episodes are for.")
    task: str = Field("", description="Which of the run's tasks these environments are; empty without [tasks].")
    groups: int = Field(2, ge=1, le=64, description="Groups; one steps while another waits for its actions.")
    lanes: int = Field(64, ge=1, le=65536, description="Environment copies in each group.")
    max_stall_s: float = Field(10.0, gt=0, description="Inference keeps our slots through this much silence, seconds.")
    warmup_steps: int = Field(0, ge=0, description="Untrained random steps before the first row, at most, per lane.")
    inline_ms: float = Field(
        1.0, ge=0, description="Ticks shorter than this run in the network loop, not in a thread beside it; 0: none do."
    )
    hang_s: float = Field(60.0, gt=0, description="A tick that takes longer ends the process, seconds.")
    pictures: bool = Field(
        True, description="Evaluation and play: draw lane 0 when somebody watches; false where drawing does harm."
    )
    reset_when_lost: bool = Field(
        False, description="In a new session begin fresh episodes: a policy with memory has lost it. False: they go on."
    )
    threads: int = Field(0, ge=0, description="Threads of ALE and EnvPool in each group; 0: one for each usable core.")


class ActorSettings(RunSettings):
    """All sections that an actor reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actor: ActorConfig = ActorConfig()
    eval: EvalConfig = EvalConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def own_env(self) -> EnvConfig:
        """Return this actor's environment: its task's, or [env]; in evaluations changed by [eval].

        Raises: ConfigError if `actor.task` is none of the run's tasks.
        """
        if self.tasks:
            check_task(self.actor.task, self.tasks, "actor.task")
        env = self.env_of(self.actor.task)
        return self.eval.own_env(env) if self.actor.mode == "eval" else env

    def group_lanes(self) -> list[int]:
        """Return the number of lanes of each group, by the actor's mode and task.

        An evaluation has one group of `eval.lanes`. Play has one lane unless `actor.lanes` or `actor.groups` is set.
        """
        if self.actor.mode == "eval":
            return [self.eval.lanes]
        if self.actor.mode == "play":
            given = self.actor.model_dump(include={"groups", "lanes"}, exclude_unset=True)
            return [given.get("lanes", 1)] * given.get("groups", 1)
        task = self.tasks.get(self.actor.task)
        lanes, groups = (task.lanes, task.groups) if task else (None, None)
        return [lanes or self.actor.lanes] * (groups or self.actor.groups)
