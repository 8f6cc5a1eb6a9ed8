"""Reads settings from recipe, experiment file, environment variables and command line into one checked model.

Precedence, weakest first: the recipe that `run.recipe` names, the TOML file, `SEEDBED_SECTION__KEY` variables, and
`section.key=value` words. A service reads the sections of its model and ignores those of other services. An unknown
section or key is an error.
"""

import difflib
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Tag, ValidationError, create_model, field_validator
from pydantic_core import ErrorDetails

from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.statistics import Condition, read_condition
from seedbed.shared.runtime import recipes

S = TypeVar("S", bound=BaseModel)

KNOWN_SECTIONS = (
    "run", "env", "tasks", "actor", "inference", "learner", "policy", "algorithm", "eval", "launch", "runtime",
    "monitor",
)  # fmt: skip
ENVIRONMENT_PREFIX = "SEEDBED_"
MAX_PROCESSES = 1024  # most processes of one role on one machine
ATARI_MAX_STEPS = 27_000  # of an Atari episode: 108 000 frames at frame skip 4, as everywhere in the literature
Settings = tuple[tuple[str, str], ...]  # (name, value as JSON)
QUOTED = re.compile(r"'([^']*)'")  # the values in a message of pydantic
MAX_LISTED = 40  # most names that an error message lists


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
        description="Gymnasium or EnvPool id, ALE/Name-v5, module:function of yours, or what `service` calls its own."
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


def load_settings(
    model: type[S],
    file: Path | None,
    overrides: Sequence[str] = (),
    *,
    below: recipes.Tables | None = None,
) -> S:
    """Return the model, filled from recipe, file, environment variables and words, the later over the earlier.

    Where variables or words name another algorithm than the file, the file's settings of its own are left out, as
    those of a recipe are (`recipes.lay`).

    Args:
      model: the model whose fields are the sections that the caller reads.
      file: the experiment's TOML file, or None.
      overrides: words like "learner.batch=32"; the value is TOML, or else a plain string.
      below: tables of settings to use in place of those of the recipe that `run.recipe` names.
    Raises: ConfigError naming source and key, with the nearest known name.
    """
    merged: dict[str, Any] = {}
    origins: dict[tuple[str, ...], str] = {}
    if file is not None:
        for section, table in read_toml(file).items():
            _check_section(section, f"{file}: [{section}]", section in model.model_fields)
            if not isinstance(table, dict):
                name = "tasks.NAME" if section == "tasks" else section
                raise ConfigError(f"{file}: {section} is a table: write [{name}] and its keys below")
            merged[section] = table
    placed: list[tuple[list[str], str, str]] = []  # path, text and origin
    for variable, text in sorted(os.environ.items()):
        _check_underscores(variable)
        if variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable:
            path = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            placed.append((path, text, f"environment variable {variable}"))
    for word in overrides:
        name, equals, text = word.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"{word!r} is not section.key=value, for example learner.batch=32")
        placed.append((name.strip().split("."), text, f"command line {word!r}"))
    named = [text for path, text, _ in placed if path == ["algorithm", "name"]]
    if named:
        merged = recipes.fitting_algorithm(merged, {"name": parse_value(named[-1])})
    for path, text, origin in placed:
        _place(merged, origins, path, text, origin, model)
    merged = recipes.lay(merged, over=_find_recipe(merged) if below is None else below)
    chosen = {
        name: merged.get(name, {})
        for name, field in model.model_fields.items()
        if name in merged or (field.is_required() and name in KNOWN_SECTIONS)
    }
    try:
        return model.model_validate(chosen)
    except ValidationError as error:
        told = [detail for detail in error.errors() if not _is_inherited(detail, error)]
        problems = [_describe(model, detail, origins, file) for detail in told]
        raise ConfigError("\n".join(problems)) from error


def read_section(section: str, model: type[S], values: Mapping[str, Any]) -> S:
    """Return one section's values as a checked model. Raises: ConfigError naming section and key."""
    whole = create_model("Whole", **{section: (model, ...)})  # type: ignore[call-overload]
    try:
        found: S = getattr(whole.model_validate({section: dict(values)}), section)
    except ValidationError as error:
        raise ConfigError("\n".join(_describe(whole, detail, {}, None) for detail in error.errors())) from error
    return found


def _find_recipe(merged: Mapping[str, Any]) -> recipes.Tables:
    """Return the settings of the recipe that `run.recipe` names; empty if it names none.

    Raises: ConfigError if the recipe is still to be chosen: only `seedbed train` looks at the environment.
    """
    run = merged.get("run", {})
    name = run.get("recipe", "") if isinstance(run, dict) else ""
    if recipes.is_open(name):
        raise ConfigError(
            f"[run] recipe = {name!r}: only `seedbed train` looks at the environment to choose one. For services that "
            "are started one by one write its name there; `seedbed recipes EXPERIMENT` tells it"
        )
    return recipes.read_recipe(name) if recipes.is_named(name) else {}


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises: ConfigError if it is missing or broken."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))  # Windows' editors put a mark before the text
    except FileNotFoundError as error:
        near = sorted(path.name for path in file.parent.glob("*.toml")) if file.parent.is_dir() else []
        raise ConfigError(f"{file}: no such file{suggest(file.name, near)}") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not text in UTF-8 (byte {error.start}): save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def _check_underscores(variable: str) -> None:
    """Refuse a variable such as SEEDBED_LEARNER_BATCH, which would be ignored silently.

    Kubernetes' own variables are allowed: a service named seedbed-learner gives every pod SEEDBED_LEARNER_PORT.
    """
    section, one, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("_")
    is_ours = variable.startswith(ENVIRONMENT_PREFIX) and section.lower() in KNOWN_SECTIONS
    if is_ours and one and not key.startswith(("_", "SERVICE_", "PORT")):
        meant = f"{ENVIRONMENT_PREFIX}{section}__{key}"
        raise ConfigError(f"environment variable {variable}: write {meant}, with two underscores after the section")


def _check_section(section: str, where: str, is_read: bool) -> None:
    """Refuse a section that no service knows."""
    if not is_read and section not in KNOWN_SECTIONS:
        raise ConfigError(f"{where}: unknown section{suggest(section, KNOWN_SECTIONS)}")


def _place(
    merged: dict[str, Any],
    origins: dict[tuple[str, ...], str],
    path: Sequence[str],
    text: str,
    origin: str,
    model: type[BaseModel],
) -> None:
    """Put one value, given as text, at its path, replacing what is there."""
    _check_section(path[0], origin, path[0] in model.model_fields)
    table: Any = merged
    for name in path[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {name} is a value, not a table")
    table[path[-1]] = value = parse_value(text)
    origins[tuple(path)] = origin
    if path[0] == "env" and isinstance(merged.get("tasks"), dict):
        for task in merged["tasks"].values():
            _give_way(task.get("env") if isinstance(task, dict) else None, path[1:], value)


def _give_way(own: Any, path: Sequence[str], value: Any) -> None:
    """Remove a key that a word or variable sets for all tasks from a task's own [env]; of `kwargs`, only its keys."""
    if not isinstance(own, dict) or not path:
        return
    if path[0] != "kwargs":
        own.pop(path[0], None)
    elif isinstance(own.get("kwargs"), dict):
        said = path[1:2] or (value if isinstance(value, dict) else ())
        own["kwargs"] = {key: kept for key, kept in own["kwargs"].items() if key not in said}


def parse_value(text: str) -> Any:
    """Return the value of a word: TOML, a JSON object, or else the text itself."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return _parse_object(text)
    value = parsed.pop("value", None)
    if parsed or not isinstance(value, (bool, int, float, str, list, dict)):
        return text  # a second key after a line break, or a date
    return value


def _parse_object(text: str) -> Any:
    """Return a JSON object, which other programs write instead of a TOML table; else the text itself."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _describe(
    model: type[BaseModel], detail: ErrorDetails, origins: Mapping[tuple[str, ...], str], file: Path | None
) -> str:
    """Return one validation error as "<source>: [section] key: what is wrong"."""
    loc = tuple(str(part) for part in detail["loc"])
    _, path = _follow(model, loc)
    path += ("name",) if detail["type"] == "union_tag_invalid" else ()
    origin = next((origins[path[:end]] for end in range(len(path), 0, -1) if path[:end] in origins), None)
    section, key = path[0], ".".join(path[1:])
    where = f"{origin or file or 'configuration'}: [{section}]" + (f" {key}" if key else "")
    if detail["type"] == "extra_forbidden":
        owner, _ = _follow(model, loc[:-1])
        if others := _tags_with(model, loc[:-2], path[-1]):
            return f"{where}: a key of name = {' or '.join(map(repr, others))}, not of name = {loc[-2]!r}"
        return f"{where}: unknown key{suggest(path[-1], tuple(owner.model_fields) if owner else ())}"
    if detail["type"] == "union_tag_invalid":
        value, known = detail["ctx"]["tag"], QUOTED.findall(detail["ctx"]["expected_tags"])
        hint = _nearest(value, known) or f"; `seedbed settings {section}` lists what each can be told"
        return f"{where}: {value!r} is none of {', '.join(known)}{hint}"
    if detail["type"] == "literal_error":
        return f"{where}: {detail['input']!r} is none of {detail['ctx']['expected']}{_nearest_quoted(detail)}"
    if detail["type"] == "missing":
        variable = f"{ENVIRONMENT_PREFIX}{section}__{'__'.join(path[1:])}".upper()
        return f"{where}: must be set, in the file, as {variable}, or as {section}.{key or 'key'}=…"
    message = detail["msg"].removeprefix("Value error, ")
    return (
        f"{where}: {message}" if isinstance(detail["input"], dict) else f"{where}: {message}, not {detail['input']!r}"
    )


def _is_inherited(detail: ErrorDetails, error: ValidationError) -> bool:
    """Whether a task's error only repeats one of [env], which is reported there."""
    section, *path = detail["loc"]
    said = {(item["loc"], item["type"]) for item in error.errors()}
    return section == "tasks" and (tuple(path[1:]), detail["type"]) in said


def _follow(model: type[BaseModel], path: Sequence[str]) -> tuple[type[BaseModel] | None, tuple[str, ...]]:
    """Return the model in which an error's path ends, and the path as a user writes it.

    It follows `X | None` and tables by name. If the models of a field are distinguished by a tag, the tag is in the
    path of the error, but in no file.
    """
    found: type[BaseModel] | None = model
    written: list[str] = []
    by_name: Any = None  # the type of the entries of a table by name
    tagged: dict[str, type[BaseModel]] = {}  # the models of a tagged union, by tag
    for name in path:
        if name in tagged:
            found, tagged = tagged[name], {}
            continue
        written.append(name)
        field = found.model_fields.get(name) if found is not None else None
        annotation: Any = by_name if by_name is not None else field.annotation if field is not None else None
        by_name = typing.get_args(annotation)[1] if typing.get_origin(annotation) is dict else None
        options = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
        tagged = {tag.tag: item for item, tag in map(_tagged, options) if tag is not None}
        models = (item for item, _ in map(_tagged, options) if isinstance(item, type) and issubclass(item, BaseModel))
        found = next(models, None)
    return found, tuple(written)


def _tags_with(model: type[BaseModel], path: Sequence[str], key: str) -> list[str]:
    """Return the tags of those models at a path that have this key, if they are distinguished by tags."""
    owner, _ = _follow(model, path[:-1])
    field = owner.model_fields.get(path[-1]) if owner is not None and path else None
    options = typing.get_args(field.annotation) if field is not None and _is_union(field.annotation) else ()
    return [tag.tag for item, tag in map(_tagged, options) if tag is not None and key in item.model_fields]


def _tagged(annotation: Any) -> tuple[Any, Tag | None]:
    """Return a type, and its tag in a union, if it has one."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return annotation, None
    inner, *metadata = typing.get_args(annotation)
    return inner, next((item for item in metadata if isinstance(item, Tag)), None)


def _is_union(annotation: Any) -> bool:
    """Whether a field's type is a union, written either way."""
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def suggest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?` if a known name is similar, else `; known: …` unless that list is empty or long."""
    if near := _nearest(name, known):
        return near
    return f"; known: {', '.join(known)}" if 0 < len(known) <= MAX_LISTED else ""


def _nearest_quoted(detail: ErrorDetails) -> str:
    """Return the same as `_nearest`, among the quoted values that an error expects."""
    return _nearest(str(detail["input"]), QUOTED.findall(detail["ctx"]["expected"]))


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return `; did you mean …?` with the most similar known name; "" if none is similar."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
