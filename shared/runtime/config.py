"""The sections of the configuration that several services read, and what each setting is for."""

import json
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from seedbed.shared.protocol.statistics import Condition, read_condition
from seedbed.shared.runtime import recipes
from seedbed.shared.runtime.config_errors import suggest

MAX_PROCESSES = 1024  # most processes of one role on one machine
ATARI_MAX_STEPS = 27_000  # of an Atari episode: 108 000 frames at frame skip 4, as everywhere in the literature
Settings = tuple[tuple[str, str], ...]  # (name, value as JSON)


class Section(BaseModel):
    """One table of the experiment file. Immutable; refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _split_lists(cls, value: Any, info: Any) -> Any:
        """Accept a list of strings as a,b,c in a word or variable.

        Integers beyond 64 bits, which no array can hold, are refused here for all settings.
        """
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("a number of at most 64 bits is expected")
        annotation = cls.model_fields[info.field_name].annotation
        if isinstance(value, str) and typing.get_origin(annotation) in (list, tuple):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value


class RunConfig(Section):
    """The section [run]: the length of the run, its goals, and where its results go."""

    name: str = Field("run", description="Label of the run; part of its folder's name.")
    dir: Path | None = Field(None, description="Run folder; none: runs/<name>-<time>, chosen by the launcher.")
    seed: int = Field(1, ge=0, description="Everything random derives from it.")
    steps: int = Field(0, ge=0, description="Stop after this many trained agent steps; 0: no limit.")
    seconds: float = Field(0.0, ge=0, description="Train for this long, s, then evaluate once more; 0: no limit.")
    until_return: float | None = Field(None, description="Stop once an evaluation's mean return reaches this.")
    until: str = Field(
        "", description="Stop once an evaluation's mean of a statistic reaches this, as in 'success >= 0.9'; empty: no."
    )
    deterministic: bool = Field(
        False,
        description="The same seed gives the same weights, bit for bit, in every run on one machine; slower. Needs one "
        "inference service, and training actors that stay to the end.",
    )
    resume: bool = Field(False, description="Go on from the run folder's newest checkpoint.")
    recipe: str = Field(
        "",
        description="Default settings by kind of environment: auto (seedbed train looks which), none, or a name that "
        "`seedbed recipes` lists; empty: auto for a file without [actor], [learner], [policy] and [algorithm].",
    )

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        """Refuse a name that cannot be part of a folder's name."""
        if not value.strip() or not value.isprintable() or "/" in value or value.startswith("."):
            raise ValueError("the name must be valid for a folder: not empty, no slash, no dot at its start")
        return value

    @field_validator("until")
    @classmethod
    def _check_until(cls, value: str) -> str:
        """Refuse an invalid condition. Whether its statistic exists is known once an environment has connected."""
        if value.strip():
            read_condition(value)
        return value.strip()

    @property
    def goals(self) -> dict[str, Condition]:
        """The conditions, by their setting, of which any one ends the run once an evaluation meets it."""
        goals = {}
        if self.until_return is not None:
            goals["until_return"] = Condition("return", ">=", self.until_return)
        if self.until:
            goals["until"] = read_condition(self.until)
        return goals

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, value: str) -> str:
        return recipes.check_name(value)

    @field_validator("dir", mode="before")
    @classmethod
    def _read_empty_as_none(cls, value: Any) -> Any:
        """Read an empty variable as None, not as the working directory; refuse zero bytes."""
        if isinstance(value, str) and "\0" in value:
            raise ValueError("a path must have no zero bytes")
        return None if value == "" else value


def join_env(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return an [env] table with the values of `own` over those of `shared`; kwargs are joined key by key."""
    env = {**shared, **own}
    if isinstance(shared.get("kwargs"), dict) and isinstance(own.get("kwargs"), dict):
        env["kwargs"] = {**shared["kwargs"], **own["kwargs"]}
    return env


class EnvConfig(Section):
    """The section [env]: the environment, and the settings that all actors of a run share."""

    id: str = Field(
        description="Gymnasium or EnvPool id, ALE/Name-v5, module:function or module:Name-v0 of yours, or what "
        "`service` calls its own."
    )
    service: str = Field(
        "", description="Folder with a service.toml: a program in any language that steps it; empty: seedbed's actor."
    )
    backend: Literal["auto", "gymnasium", "vector", "ale_sync", "envpool"] = Field(
        "auto",
        description="What steps the lanes: one by one, a vector form, ALE with all games in one thread, or EnvPool.",
    )
    kwargs: dict[str, Any] = Field({}, description="Passed to the environment's constructor.")
    image: Literal["", "HWC", "CHW"] = Field(
        "", description="Where the channels of uint8 arrays of rank 3 are; empty: as the environment's metadata says."
    )
    stepped_by: str = Field("", description="Back-end and wrappers, as seedbed train found them and writes them here.")
    max_episode_steps: int | None = Field(None, ge=1, description="Truncate here, agent steps; none: as registered.")
    frame_skip: int = Field(4, ge=1, description="Atari: frames for each agent step.")
    full_action_space: bool = Field(False, description="Atari: all 18 actions instead of the game's own.")
    repeat_action_probability: float = Field(0.0, ge=0, le=1, description="Atari: sticky actions.")
    noop_max: int = Field(30, ge=0, description="Atari: at most this many no-ops after a reset, frames.")
    image_size: int = Field(84, ge=8, description="Atari: height and width of an observation, pixels.")
    grayscale: bool = Field(True, description="Atari: one channel instead of three.")
    life_loss: bool = Field(
        True, description="Atari: mark rows where a life was lost; training cuts the discount there."
    )

    _stands_for: Settings | None = PrivateAttr(None)  # the settings of the run, if these are of its evaluation

    @property
    def is_atari(self) -> bool:
        """Whether the Atari settings apply."""
        return self.id.startswith("ALE/") or self.backend == "ale_sync"

    def with_differences(self, differences: Mapping[str, Any]) -> "EnvConfig":
        """Return these settings changed by `differences`, kwargs joined key by key.

        The result announces itself as these settings: its `settings` are those of the original.
        Raises: ValidationError for a key or value that cannot be.
        """
        joined = join_env(self.model_dump(exclude_unset=True), differences)
        changed = EnvConfig.model_validate(joined)
        changed._stands_for = self.settings()
        return changed

    def settings(self) -> Settings:
        """Return (name, value as JSON) pairs, sorted by name, of what must agree between the actors of one run.

        With `service` only settings that are given are among them: its program chooses the others itself.
        """
        if self._stands_for is not None:
            return self._stands_for
        names = ["kwargs", "max_episode_steps"]
        if self.is_atari:
            names += [
                "frame_skip", "full_action_space", "repeat_action_probability", "noop_max", "image_size", "grayscale",
                "life_loss",
            ]  # fmt: skip
        if self.service:
            names = [name for name in names if getattr(self, name)]
        return tuple((name, json.dumps(getattr(self, name), sort_keys=True)) for name in sorted(names))


EVALUATION_MAY_DIFFER = (
    "kwargs",
    "max_episode_steps",
    "frame_skip",
    "repeat_action_probability",
    "noop_max",
    "life_loss",
)


class EvalConfig(Section):
    """The section [eval]: how a policy version is evaluated."""

    episodes: int = Field(100, ge=1, description="Episodes of one evaluation.")
    lanes: int = Field(20, ge=1, le=65536, description="Environment copies that play them.")
    every_s: float = Field(0.0, ge=0, description="Evaluate this often, seconds of training; 0: not by the clock.")
    every_steps: int = Field(0, ge=0, description="Evaluate each so many trained steps; 0: not by steps.")
    max_share: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Of the time, that evaluations by the clock may play: where they take long they come less often.",
    )
    greedy: bool = Field(True, description="Take the most likely action instead of a sampled one.")
    seed: int = Field(10_000, ge=0, description="Seed of the evaluation's environments.")
    env: dict[str, Any] = Field({}, description="What differs from [env] in evaluations; kwargs are joined key by key.")

    @field_validator("env")
    @classmethod
    def _check_env(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Refuse keys that could change observations or actions, and values that a key cannot have."""
        for key in value:
            if key in ("id", "backend"):
                raise ValueError(f"{key}: an evaluation uses the environment and back-end of the run; leave it out")
            if key not in EVALUATION_MAY_DIFFER:
                raise ValueError(f"{key}: cannot differ in evaluations{suggest(key, EVALUATION_MAY_DIFFER)}")
        EnvConfig.model_validate({"id": "any", **value})
        return value

    def own_env(self, env: EnvConfig) -> EnvConfig:
        """Return the environment of evaluations, `env` with [eval]'s differences; it announces itself as `env`."""
        return env.with_differences(self.env) if self.env else env


class LaunchConfig(Section):
    """The section [launch]: which services the launcher starts on this machine."""

    actors: int = Field(
        1, ge=0, le=MAX_PROCESSES, description="Training actors, processes; in a run with tasks, of each."
    )
    inference: int = Field(1, ge=1, le=MAX_PROCESSES, description="Inference replicas, processes.")
    learners: int = Field(
        1,
        ge=1,
        le=MAX_PROCESSES,
        description="Learner ranks, processes that train one policy, each on its own batches.",
    )
    eval_actors: int = Field(
        1, ge=0, le=MAX_PROCESSES, description="Evaluation actors, processes; in a run with tasks, of each."
    )
    cores: int = Field(0, ge=0, description="Cores to divide among the services; 0: all that this process may use.")
    learner_threads: int = Field(0, ge=0, description="Compute threads of the learner; 0: its share of the cores.")
    inference_threads: int = Field(0, ge=0, description="Compute threads of each inference; 0: its share of the cores.")
    service: str = Field(
        "", description="Folder of services/ whose image steps the environments, in containers; empty: any."
    )
    probe: bool = Field(
        True, description="Make and step every environment once before the start, to find mistakes and choose a recipe."
    )
    video: bool = Field(True, description="Record a video of the final policy, where the environment can be shown.")


class RuntimeConfig(Section):
    """The section [runtime]: settings of every service's process."""

    name: str = Field("", description="Label of this process in logs and metrics; empty: the service's own name.")
    status_file: Path | None = Field(None, description="Written when ready: addresses, process id, incarnation.")
    log_file: Path | None = Field(None, description="JSON lines are appended here as well.")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level that is logged.")
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="What stderr gets: text for people, JSON lines, or by whether it is a terminal."
    )
    metrics_address: str = Field("127.0.0.1:0", description="host:port of /metrics; port 0: any; empty: none.")
    uvloop: bool = Field(True, description="Use uvloop's event loop where it is installed.")
    nice: int = Field(0, ge=0, le=19, description="Added to the scheduling niceness of whoever starts it.")
    threads: int = Field(0, ge=0, description="Compute threads of this process; 0: chosen by the service.")
    keys: Path | None = Field(
        None, description="Folder of this service's keys, or of all roles'; none: links stay on this machine."
    )

    @field_validator("keys", mode="before")
    @classmethod
    def _read_empty_as_none(cls, value: Any) -> Any:
        """Read an empty variable as no keys, not as the working directory."""
        return None if value == "" else value
