"""The section [algorithm]: settings of each algorithm and its optimiser. Imports no torch, so it is fast to check."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator

from seedbed.shared.runtime.config import Section

NAME = "Which algorithm turns unrolls into weights; module:Class of your own."


class AlgorithmSettings(Section):
    """The settings of every algorithm: its name and its optimiser.

    Losses are means over steps, so `eps` and `grad_clip` refer to gradients of means.
    """

    name: str = Field("", description=NAME)
    optimizer: Literal["adam", "rmsprop"] = Field("adam", description="rmsprop: TensorFlow's, eps inside the root.")
    learning_rate: float = Field(3e-4, gt=0, description="At the start of the run.")
    learning_rate_decay_steps: int | Literal["run"] = Field(
        "run", description="Linear to zero over this many trained agent steps; 0: constant; run: over run.steps."
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


class ActorCriticConfig(AlgorithmSettings):
    """The settings that V-trace and APPO share: returns, weights of the terms of the loss, rewards, normalisation."""

    discount: float = Field(0.99, ge=0, le=1, description="γ, for each agent step.")
    lam: float = Field(1.0, ge=0, le=1, description="λ: shortens the correction's reach; 1 as in IMPALA's paper.")
    baseline_cost: float = Field(0.5, ge=0, description="Weight of the value loss ½(v - V)².")
    entropy_cost: float = Field(0.01, ge=0, description="Weight of the entropy bonus; its start if it adapts.")
    entropy_target: float | None = Field(
        None, description="Entropy that an adaptive cost steers to, nats summed over the action; none: fixed cost."
    )
    entropy_adjustment_speed: float = Field(10.0, gt=0, description="m: the adaptive cost is exp(m·p).")
    reward_scale: float = Field(1.0, gt=0, description="Multiplies rewards before the clip.")
    reward_clip: float = Field(0.0, ge=0, description="Rewards are clipped to ± this; 0: no clip.")
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

    name: Literal["vtrace"] = Field("vtrace", description=NAME)
    rho_clip: float = Field(1.0, gt=0, description="ρ̄: which policy's value is learned; 1 as in the paper.")
    c_clip: float = Field(1.0, gt=0, description="c̄: how far corrections carry back.")
    pg_rho_clip: float = Field(1.0, gt=0, description="ρ̄_pg: clips the policy gradient's importance weight.")
    policy_clip: float = Field(
        0.0,
        ge=0,
        description="ε: PPO's policy loss, ω clipped to 1/(1+ε)…1+ε, for learner.reuse above 1; 0: V-trace's own.",
    )
    kl_cost: float = Field(0.0, ge=0, description="Weight of KL(μ‖π): keeps the policy near the one that acted.")


class AppoConfig(ActorCriticConfig):
    """The section [algorithm] with name = "appo"."""

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
        0.0,
        ge=0,
        description="KL of one batch's updates that the learning rate is adapted to; 0: the rate is not adapted.",
    )


class OwnAlgorithmConfig(Section):
    """The section [algorithm] with name = "module:Class"; that class checks the other settings."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[\w.]+:\w+$", description="module:Class of your own.")


def _name(value: Any) -> str:
    """Return the algorithm that a table names; "vtrace" if it names none."""
    name = str(value.get("name", "vtrace") if isinstance(value, dict) else value.name)
    return OWN if ":" in name else name


OWN = "module:Class"
AlgorithmConfig = Annotated[
    Annotated[VTraceConfig, Tag("vtrace")]
    | Annotated[AppoConfig, Tag("appo")]
    | Annotated[OwnAlgorithmConfig, Tag(OWN)],
    Discriminator(_name),
]
