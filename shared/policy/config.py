"""The section [policy]: the network, its memory and its action distribution."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from seedbed.shared.runtime.config import Section

DTYPES = ("float32", "bfloat16")  # that a torso may have


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The dtype and memory format of a torso; float32 by default."""

    dtype: str = "float32"  # of the torso; everything after it is always float32
    channels_last: bool = False
    tf32: bool = False  # on a GPU, float32 products are of factors rounded to TF32's 10 bits


class PolicyConfig(Section):
    """The section [policy]. Inference gets these settings with the weights' manifest."""

    network: str = Field("mlp", description="mlp, impala_shallow, impala_deep, football, or module:Class of your own.")
    network_kwargs: dict[str, Any] = Field({}, description="Passed to the torso's constructor.")
    hidden: list[Annotated[int, Field(ge=1, le=65536)]] = Field([64, 64], description="mlp: units of each layer.")
    activation: Literal["tanh", "relu", "elu"] = Field("tanh", description="mlp: after each layer.")
    value_network: Literal["shared", "separate"] = Field(
        "shared", description="Whether the value has the policy's torso, or one of its own, built alike."
    )
    value_heads: Literal["auto", "shared", "per_task"] = Field(
        "auto",
        description="Several tasks: a value output, and statistics of value_normalisation, for each, or for all; auto: "
        "per_task with value_normalisation.",
    )
    task_input: bool = Field(False, description="Several tasks: the torso's vector input has the task too, one-hot.")
    lstm: int = Field(0, ge=0, description="Units of the LSTM behind the torso; 0: none.")
    previous_action: bool = Field(True, description="The LSTM also sees the previous action.")
    previous_reward: bool = Field(True, description="The LSTM also sees the previous reward, clipped to ±1.")
    stack: int = Field(1, ge=1, description="Frames that the torso sees at once; images only, where there are any.")
    squash: bool = Field(True, description="Bounded Box actions go through tanh; otherwise they are clipped.")
    std: Literal["shared", "state"] = Field(
        "shared", description="Box actions: one standard deviation for all observations, or a head's output for each."
    )
    initial_std: float = Field(
        1.0, ge=0.007, le=7.38, description="Box actions: standard deviation of an untrained policy."
    )
    normalise_observation: bool = Field(
        False,
        description="Centre and scale images, floats and unbounded integers by the learner's statistics.",
    )
    scale_observation: bool = Field(
        True, description="Scale integer observations by their bounds; off, as in older runs: uint8 by 255, no other."
    )

    grid_codes: int = Field(
        0,
        ge=0,
        le=256,
        description="Integers in boxes of rank 2 and 3 are this many codes, such as MiniGrid's cells, each one-hot for "
        "the network, the last one for greater values too; 0: brightness, or quantities.",
    )

    @model_validator(mode="after")
    def _check_value_network(self) -> Self:
        if self.lstm and self.value_network == "separate":
            raise ValueError("value_network = 'separate' has no memory: with an LSTM set it to 'shared'")
        return self

    @property
    def tells_tasks_apart(self) -> bool:
        """Whether the policy must know which task a lane plays."""
        return self.task_input or self.value_heads == "per_task"


def without_tasks(config: PolicyConfig) -> str:
    """Return what is wrong with these settings in a run without tasks, and what to set instead; empty if nothing is."""
    if not config.tells_tasks_apart:
        return ""
    setting, off = ("task_input", "false") if config.task_input else ("value_heads", "'auto'")
    return (
        f"policy.{setting} is for runs with several tasks, and this one has no table [tasks.NAME]: "
        f"set policy.{setting} = {off}, or add tasks"
    )
