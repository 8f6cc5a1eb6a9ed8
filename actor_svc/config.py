"""What an actor reads: which environments it steps, in how many groups, and whom it dials."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.runtime.config import EnvConfig, EvalConfig, RunConfig, RuntimeConfig, Section


class ActorConfig(Section):
    """[actor]: groups, lanes and upstream of one actor process."""

    upstream: list[str] = Field(
        ["tcp://127.0.0.1:5555"], min_length=1, description="Inference services to dial; a name may be many."
    )
    name: str = Field("", description="Label in logs and metrics; empty: actor-<process id>.")
    mode: Literal["train", "eval", "play"] = Field("train", description="What the episodes are for.")
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
    threads: int = Field(0, ge=0, description="Threads of ALE and EnvPool in each group; 0: one for each usable core.")


class ActorSettings(BaseModel):
    """All sections that an actor reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: RunConfig = RunConfig()
    env: EnvConfig
    actor: ActorConfig = ActorConfig()
    eval: EvalConfig = EvalConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def group_lanes(self) -> list[int]:
        """Lanes of each group: an evaluation has one group of `eval.lanes`, play one lane."""
        if self.actor.mode == "eval":
            return [self.eval.lanes]
        if self.actor.mode == "play":
            return [1]
        return [self.actor.lanes] * self.actor.groups
