"""The section [algorithm]: settings of each algorithm and its optimiser, and the registry of algorithms.

The registry is the union `AlgorithmConfig`: a line for each algorithm, with the model of its settings, which names the
class that trains. This module imports no torch, so that settings are checked fast.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from seedbed.shared.policy.config import PolicyConfig, without_tasks
from seedbed.shared.runtime.config import Section
from seedbed.shared.runtime.tasks import RewardTransform

NAME = "Which algorithm turns unrolls into weights; module:Class of your own."


class AlgorithmSettings(Section):
    """The settings of every algorithm: its name, the rewards that it trains on and its optimiser.

    Losses are means over steps, so `eps` and `grad_clip` refer to gradients of means.
    """

    implementation: ClassVar[str] = ""  # module:Class of a built-in algorithm; modules are in this package
    is_lag_bounded: ClassVar[bool] = True  # whether experience that is too old is masked
    can_have_value_heads: ClassVar[bool] = True  # whether it can learn a value output for each task
    takes_every_policy: ClassVar[bool] = True  # False: it is tried on the policy before a run starts, and may refuse it
    default_passes: ClassVar[tuple[int, int]] = (1, 1)  # over a batch, and into how many minibatches each cuts it

    name: str = Field("", description=NAME)
    reward_scale: float = Field(1.0, gt=0, description="Multiplies rewards before the clip.")
    reward_clip: float = Field(0.0, ge=0, description="Rewards are clipped to ± this; 0: no clip.")
    reward_transform: RewardTransform = Field(
        "none", description="asymmetric: after the clip, 0.3·min(tanh r, 0) + 5·max(tanh r, 0), as for DMLab."
    )
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="rmsprop: TensorFlow's, eps inside the root.")
    learning_rate: float = Field(3e-4, gt=0, description="At the start of the run.")
    learning_rate_decay_steps: Annotated[int, Field(ge=0)] | Literal["run"] = Field(
        "run", description="Linear to zero over this many trained agent steps; 0: constant; run: over run.steps."
    )
    learning_rate_warmup_steps: int = Field(
        0, ge=0, description="Linear from zero over this many trained agent steps; the first batch has a rate of 0."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the mean gradient.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the mean squared gradient.")
    rmsprop_decay: float = Field(0.99, ge=0, lt=1, description="Decay of the mean squared gradient.")
    rmsprop_momentum: float = Field(0.0, ge=0, lt=1, description="Momentum of the scaled step.")
    eps: float = Field(
        1e-7,
        gt=0,
        description="Adam: beside the root, papers' sum-loss value / (T·B). RMSProp: inside it, value / (T·B)².",
    )
    grad_clip: float = Field(0.5, ge=0, description="Largest global gradient norm of the mean loss; 0: no clip.")

    def problem_with(self, *, batch: int, unroll_length: int, echo: int) -> str:
        """Return what speaks against these settings of [learner], and what to set instead; empty if nothing does."""
        return ""


class ActorCriticConfig(AlgorithmSettings):
    """The settings that V-trace and APPO share: returns, weights of the terms of the loss, normalisation."""

    discount: float = Field(0.99, ge=0, le=1, description="γ, for each agent step.")
    lam: float = Field(1.0, ge=0, le=1, description="λ: shortens the correction's reach; 1 as in IMPALA's paper.")
    baseline_cost: float = Field(0.5, ge=0, description="Weight of the value loss ½(v - V)².")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy bonus; its start if it adapts.")
    entropy_target: float | None = Field(
        None, description="Entropy that an adaptive cost steers to, nats summed over the action; none: fixed cost."
    )
    entropy_adjustment_speed: float = Field(10.0, gt=0, description="m: the adaptive cost is exp(m·p).")
    kl_cost: float = Field(
        0.0,
        ge=0,
        description="Weight of KL(μ‖π), which keeps the policy near the one that acted; for old or reused experience.",
    )
    normalise_advantage: bool = Field(
        False, description="Advantages of a batch (or minibatch) get mean 0 and deviation 1."
    )
    value_normalisation: Literal["none", "popart", "returns"] = Field(
        "none", description="Value head in units of the targets' deviation; popart: rescaled so that outputs stay."
    )
    value_normalisation_rate: float = Field(
        3e-4, gt=0, le=1, description="How fast target statistics move, share per update (debiased)."
    )

    @model_validator(mode="after")
    def _check_entropy(self) -> Self:
        if self.entropy_target is not None and self.entropy_cost <= 0:
            raise ValueError("entropy_target needs an entropy_cost above 0, which the adaptive cost starts from")
        return self


class VTraceConfig(ActorCriticConfig):
    """The section [algorithm] with name = "vtrace"."""

    implementation: ClassVar[str] = "vtrace:VTrace"

    name: Literal["vtrace"] = Field("vtrace", description=NAME)
    rho_clip: float = Field(1.0, gt=0, description="ρ̄: which policy's value is learned; 1 as in the paper.")
    c_clip: float = Field(1.0, gt=0, description="c̄: how far corrections carry back.")
    pg_rho_clip: float = Field(1.0, gt=0, description="ρ̄_pg: clips the policy gradient's importance weight.")


class AppoConfig(ActorCriticConfig):
    """The section [algorithm] with name = "appo"."""

    implementation: ClassVar[str] = "appo:Appo"
    default_passes: ClassVar[tuple[int, int]] = (4, 4)

    name: Literal["appo"] = Field("appo", description=NAME)
    lam: float = Field(0.95, ge=0, le=1, description="λ of the returns.")
    entropy_cost: float = Field(0.003, ge=0, description="Weight of the entropy bonus; its start if it adapts.")
    normalise_advantage: bool = Field(True, description="Advantages of a minibatch get mean 0 and deviation 1.")
    value_normalisation: Literal["none", "popart", "returns"] = Field(
        "popart", description="Value head in units of the targets' deviation; popart: rescaled so that outputs stay."
    )
    value_normalisation_rate: float = Field(
        1e-3, gt=0, le=1, description="How fast target statistics move, share per batch (debiased)."
    )
    eps: float = Field(1e-5, gt=0, description="Adam: beside the root. RMSProp: inside it.")
    min_advantage_std: float = Field(
        0.02,
        ge=0,
        description="normalise_advantage divides by at least this, the value head's units: less is mostly noise.",
    )
    targets: Literal["vtrace", "gae"] = Field(
        "vtrace", description="Returns corrected for old experience, or GAE; fixed over all passes over a batch."
    )
    policy_clip: float = Field(0.2, gt=0, description="ε: the ratio is clipped to 1/(1+ε)…1+ε.")
    dual_clip: float = Field(
        3.0, ge=1, description="A negative advantage counts at most so many times, however large its ratio."
    )
    value_clip: float = Field(
        0.0, ge=0, description="A value may move this far from the one before the batch, its head's units; 0: no clip."
    )
    kl_target: float = Field(
        0.01,
        ge=0,
        description="KL of one batch's updates that the learning rate is adapted to; 0: the rate is not adapted.",
    )


class R2D2Config(AlgorithmSettings):
    """[algorithm] with name = "r2d2". `learner.unroll_length` is what is trained of a sequence, after its burn-in."""

    implementation: ClassVar[str] = "r2d2:R2D2"
    is_lag_bounded: ClassVar[bool] = False
    can_have_value_heads: ClassVar[bool] = False
    takes_every_policy: ClassVar[bool] = False

    name: Literal["r2d2"] = Field("r2d2", description=NAME)
    discount: float = Field(0.997, ge=0, le=1, description="γ, for each agent step.")
    n_step: int = Field(
        5, ge=1, description="Rewards that a target sums before it takes Q's word; learner.unroll_length at most."
    )
    burn_in: int = Field(
        16,
        ge=0,
        le=4096,
        description="Transitions that only lead the memory up to a sequence; learner.unroll_length at most.",
    )
    target_every: int = Field(2500, ge=1, description="The target network is copied every so many optimiser steps.")
    value_rescaling: bool = Field(True, description="Q is learned in units of h(x) = sign(x)(√(|x|+1) - 1) + x/1000.")
    epsilon_base: float = Field(0.4, ge=0, le=1, description="The most exploring lane takes a random action so often.")
    epsilon_alpha: float = Field(7.0, ge=0, description="α: ε of a lane is base^(1 + α·u), u in [0, 1).")
    stored_state: Literal["recorded", "zero"] = Field(
        "recorded", description="The memory before a sequence: as it was when acting, or zero (an ablation)."
    )
    replay_sequences: int = Field(100_000, ge=1, description="Sequences kept; the oldest gives way to the newest.")
    replay_bytes: int = Field(
        4 << 30, ge=1 << 20, description="What the sequences may occupy, bytes; where they need more, fewer are kept."
    )
    replay_start: int = Field(1000, ge=1, description="Training begins once so many sequences are there.")
    replay_ratio: float = Field(1.0, gt=0, description="Sequences trained on for each new one, held exactly.")
    replay_file: bool = Field(
        False, description="Keep the sequences in a file of the run folder, which a learner that is killed finds again."
    )
    priority_exponent: float = Field(
        0.9, ge=0, description="Sequences are drawn in proportion to priority to this power."
    )
    importance_exponent: float = Field(0.6, ge=0, le=1, description="β: how far weights in the loss make up for that.")
    priority_max_share: float = Field(
        0.9, ge=0, le=1, description="η: a priority is η·max|δ| + (1 - η)·mean|δ| over the sequence."
    )
    learning_rate: float = Field(1e-4, gt=0, description="At the start of the run.")
    learning_rate_decay_steps: Annotated[int, Field(ge=0)] | Literal["run"] = Field(
        0, description="Linear to zero over this many trained agent steps; 0: constant; run: over run.steps."
    )
    eps: float = Field(1e-5, gt=0, description="Adam: beside the root, papers' sum-loss value / T. RMSProp: inside it.")

    def problem_with(self, *, batch: int, unroll_length: int, echo: int) -> str:
        """Return which setting makes sequences that cannot be stored, drawn or trained on."""
        for name, least in (("algorithm.replay_start", self.replay_start), ("learner.batch", batch)):
            if least > self.replay_sequences:
                return (
                    f"algorithm.replay_sequences is {self.replay_sequences}, and training begins with {least}: raise "
                    f"it, or lower {name}"
                )
        for name, most, why in (
            ("burn_in", self.burn_in, "a burn-in may be no longer than what is trained after it"),
            ("n_step", self.n_step, "a sequence has no more rewards than that to sum"),
        ):
            if most > unroll_length:
                return f"algorithm.{name} is {most} and learner.unroll_length {unroll_length}: {why}"
        if echo > 1:
            return (
                f"learner.echo is {echo}, which is for algorithms that learn from a queue: with "
                "algorithm.name = 'r2d2' set algorithm.replay_ratio instead"
            )
        return ""


class OwnAlgorithmConfig(Section):
    """The section [algorithm] with name = "module:Class"; that class checks the other settings."""

    model_config = ConfigDict(extra="allow")

    is_lag_bounded: ClassVar[bool] = True
    can_have_value_heads: ClassVar[bool] = True
    default_passes: ClassVar[tuple[int, int]] = (1, 1)
    takes_every_policy: ClassVar[bool] = False

    name: str = Field(pattern=r"^[\w.]+:\w+$", description="module:Class of your own.")

    def problem_with(self, *, batch: int, unroll_length: int, echo: int) -> str:
        """Return nothing: the class checks its settings itself."""
        return ""


def _name(value: Any) -> str:
    """Return the algorithm that a table names; "vtrace" if it names none."""
    name = str(value.get("name", "vtrace") if isinstance(value, dict) else value.name)
    return OWN if ":" in name else name


OWN = "module:Class"
AlgorithmConfig = Annotated[  # the registry
    Annotated[VTraceConfig, Tag("vtrace")]
    | Annotated[AppoConfig, Tag("appo")]
    | Annotated[R2D2Config, Tag("r2d2")]
    | Annotated[OwnAlgorithmConfig, Tag(OWN)],
    Discriminator(_name),
]
BUILT_IN: Mapping[str, type[AlgorithmSettings]] = {
    tag.tag: kind for kind, tag in map(get_args, get_args(get_args(AlgorithmConfig)[0])) if tag.tag != OWN
}


def is_lag_bounded(section: Mapping[str, Any]) -> bool:
    """Whether `learner.max_policy_lag` says anything about a run with this section [algorithm], as its file has it."""
    kind = BUILT_IN.get(_name(dict(section)))
    return kind is None or kind.is_lag_bounded


def decide_value_heads(policy: PolicyConfig, algorithm: AlgorithmConfig, num_tasks: int) -> PolicyConfig:
    """Return [policy] with `value_heads` decided where it is "auto".

    With normalised values and several tasks each task has its own, because one mean and deviation of all targets would
    make the values and advantages of tasks with small rewards vanish.
    """
    if policy.value_heads != "auto":
        return policy
    is_normalised = isinstance(algorithm, ActorCriticConfig) and algorithm.value_normalisation != "none"
    heads = "per_task" if is_normalised and num_tasks > 1 else "shared"
    return policy.model_copy(update={"value_heads": heads})


def task_problem(policy: PolicyConfig, algorithm: AlgorithmConfig, *, has_tasks: bool) -> str:
    """Return what speaks against settings that tell tasks apart, and what to set instead; empty if nothing does."""
    if not has_tasks and (problem := without_tasks(policy)):
        return problem
    if policy.value_heads == "per_task" and not algorithm.can_have_value_heads:
        able = " and ".join(repr(name) for name, kind in BUILT_IN.items() if kind.can_have_value_heads)
        return (
            f"policy.value_heads = 'per_task' is for algorithms with a value head, such as {able}: with "
            f"algorithm.name = {algorithm.name!r} leave it out, whose value_rescaling makes up for scales of rewards"
        )
    return ""
