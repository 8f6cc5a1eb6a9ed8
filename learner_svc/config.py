"""The settings of the learner: the section [learner], and the other sections that it reads."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from seedbed.learner_svc.algorithms.config import (
    AlgorithmConfig,
    VTraceConfig,
    decide_value_heads,
    task_problem,
)
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.runtime.config import EvalConfig, RunConfig, RuntimeConfig, Section
from seedbed.shared.runtime.tasks import RunSettings, TaskConfig


class LearnerConfig(Section):
    """The section [learner]: addresses, batches, publishing and checkpoints."""

    bind: str = Field("tcp://127.0.0.1:5556", description="Address that inference dials; port 0 picks a free one.")
    advertise: str = Field(
        "",
        description="With several learner ranks: the address that inference dials for this one, if it is not `bind`'s "
        "host and port. torchrun's LOCAL_RANK is added to its port, as to that of `bind`.",
    )
    rank_timeout_s: float = Field(
        60.0,
        gt=0,
        description="With several learner ranks: all start again if one is silent for this long, s; while "
        "they agree on a batch, for `max_compute_s` longer.",
    )
    unroll_length: int = Field(32, ge=1, le=4096, description="T: transitions of an unroll.")
    batch: int = Field(32, ge=1, description="B: lane-unrolls of an update.")
    reuse: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        "auto", description="Passes over each batch; auto: 4 with appo, else 1."
    )
    minibatches: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Parts, as even as can be, that each pass cuts a batch into, in a new order; a step each. With "
        "appo and a policy without an LSTM they are of transitions, else of whole lanes. auto: 4 with appo, else 1.",
    )
    echo: int = Field(
        1, ge=1, le=64, description="Data echoing: each unroll is used in so many batches; 1: in one. Not with replay."
    )
    echo_batches: int = Field(
        4, ge=2, le=1024, description="With echo: batches' worth of unrolls that these uses are shuffled within."
    )
    max_policy_lag: int = Field(
        64, ge=1, description="Rows acted by weights more than so many updates (batches) old are not trained on."
    )
    queue_batches: float = Field(
        2.0, gt=0, description="Credit granted beyond what was copied, batches; over all inference services together."
    )
    buffers: int = Field(
        2, ge=1, le=8, description="Batches in memory: with 2 one fills while the other is trained on; 1: least lag."
    )
    publish_every: int = Field(1, ge=1, description="Weights are published after every so many batches.")
    init_from: Path | None = Field(
        None, description="A new run starts with the weights of this run folder (or checkpoint, its .json)."
    )
    checkpoint_every_s: float = Field(30.0, gt=0, description="Time between checkpoints, s.")
    keep_checkpoints: int = Field(3, ge=1, description="So many of the newest checkpoints are kept.")
    milestone_steps: int = Field(0, ge=0, description="Keep a checkpoint for ever each so many trained steps; 0: none.")
    metrics_every_s: float = Field(1.0, gt=0, description="Time between rows of metrics.csv, s.")
    tensorboard: bool = Field(True, description="Also write TensorBoard events, where it is installed.")
    device: str = Field(
        "auto", description="'auto' (CUDA where there is one, for each rank its own), 'cpu', 'cuda' or 'cuda:1'."
    )
    precision: str = Field(
        "auto", description="auto: as measured; fp32, tf32 or bf16: of the torso, fixed; tf32: fp32 with TF32 products."
    )
    max_frame_bytes: int = Field(64 * 1024 * 1024, ge=4096, description="Largest frame that is accepted, bytes.")
    beat_s: float = Field(1.0, gt=0, description="Inference PINGs this often, s.")
    lease_s: float = Field(10.0, gt=0, description="A connected but silent inference is let go after this, s.")
    max_compute_s: float = Field(30.0, gt=0, description="An update longer than this ends the process, s.")
    evaluation_patience_s: float = Field(
        300.0,
        gt=0,
        description="An evaluation at the end, or for a goal, is given up after this, s; where steps or seconds ended "
        "training, also after as long as training took, at least 60 s.",
    )
    farewell_s: float = Field(30.0, ge=0, description="How long a finished run waits for inference to leave, s.")
    finished_s: float = Field(
        0.0, ge=0, description="How long, at most, it then tells inference services that come late, s."
    )


class LearnerSettings(RunSettings, Section):
    """All sections that the learner reads."""

    eval: EvalConfig = EvalConfig()
    learner: LearnerConfig = LearnerConfig()
    policy: PolicyConfig = PolicyConfig()
    algorithm: AlgorithmConfig = VTraceConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        if problem := algorithm_problem(self.algorithm, self.learner, self.policy, has_tasks=bool(self.tasks)):
            raise ValueError(problem)
        return self

    @property
    def window_lanes(self) -> int:
        """Lane-unrolls for which producers have credit at a time; 1 always admits one unroll, however many it has."""
        return 1 if self.run.deterministic else max(1, round(self.learner.queue_batches * self.learner.batch))

    @property
    def built_policy(self) -> PolicyConfig:
        """The section [policy] of the policy that is built, in which `value_heads` is decided."""
        return decide_value_heads(self.policy, self.algorithm, len(self.tasks))

    @property
    def passes(self) -> tuple[int, int]:
        """The passes over each batch and the minibatches of each; where they are "auto", those of the algorithm."""
        chosen, default = (self.learner.reuse, self.learner.minibatches), self.algorithm.default_passes
        reuse, minibatches = (other if one == "auto" else one for one, other in zip(chosen, default, strict=True))
        return reuse, minibatches


def algorithm_problem(
    algorithm: AlgorithmConfig, learner: LearnerConfig, policy: PolicyConfig, *, has_tasks: bool
) -> str:
    """Return which settings of three sections do not go together, and what to set instead; empty if all do."""
    return task_problem(policy, algorithm, has_tasks=has_tasks) or algorithm.problem_with(
        batch=learner.batch, unroll_length=learner.unroll_length, echo=learner.echo
    )


def check_deterministic(
    run: RunConfig, learner: LearnerConfig, tasks: Mapping[str, TaskConfig], *, num_ranks: int = 1
) -> None:
    """Raise ConfigError naming the setting with which a run cannot be deterministic, if it is to be."""
    if not run.deterministic:
        return
    refused = {
        "run.seconds": ("ends training by the clock", "set run.steps instead", run.seconds > 0),
        "run.resume": ("a run that goes on is not the same as one that never stopped", "start a new run", run.resume),
        "learner.publish_every": (
            "an evaluation may publish weights in between",
            "set it to 1",
            learner.publish_every > 1,
        ),
        "launch.learners": ("which rank gets an unroll depends on time", "train with one", num_ranks > 1),
        "tasks": ("unrolls of several tasks come in no fixed order", "train one environment", bool(tasks)),
    }
    for name, (why, fix, is_set) in refused.items():
        if is_set:
            raise ConfigError(f"{name}: with run.deterministic = true it cannot be used, because {why}: {fix}")


def check_update_time(config: LearnerConfig, busy_s: float, *, waits_for_ranks: bool) -> None:
    """Raise SeedbedError if an update takes longer than `learner.max_compute_s`.

    Args:
      busy_s: how long it has been running.
      waits_for_ranks: whether it may have to wait for other learner ranks, for `learner.rank_timeout_s` at most.
    """
    if busy_s > config.max_compute_s + (config.rank_timeout_s if waits_for_ranks else 0.0):
        raise SeedbedError(
            f"an update has been running for {busy_s:.0f} s (learner.max_compute_s is {config.max_compute_s:g}): raise "
            "it if an update takes so long, else the thread is stuck"
        )


def check_lag(config: LearnerConfig, lanes: int, *, task: str = "", share: float = 1.0, num_ranks: int = 1) -> None:
    """Raise ConfigError if this many lanes are too old when they are used, since each update uses only B of them.

    Args:
      task, share: the task of these lanes, and its share of every batch.
    """
    shuffled = config.echo * config.echo_batches if config.echo > 1 else 0
    expected = config.echo * lanes / (share * config.batch * num_ranks) + shuffled + 2
    if expected > config.max_policy_lag:
        enough = math.ceil(config.echo * lanes / share / num_ranks / max(1, config.max_policy_lag - shuffled - 2))
        whose = f" of task {task}, which has {share:.1%} of a batch," if task else ""
        raise ConfigError(
            f"{lanes} lanes{whose} with learner.batch = {config.batch} are about {expected:.0f} updates old when they "
            f"are used, and learner.max_policy_lag is {config.max_policy_lag}: use fewer lanes, set "
            f"learner.batch = {max(config.batch + 1, enough)} or more, "
            f"or learner.max_policy_lag = {int(expected) + 1} or more"
        )
