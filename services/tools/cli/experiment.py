"""An experiment as its user gave it: found by name, merged once, checked before any process starts, kept with the run.

Where an experiment asks for a recipe, its environment is looked at and the recipe's settings are laid under it; the run
keeps them, so that it goes on with the same ones.

The launcher writes the merged sections beside the run, and every service reads that copy: a restart in mid-run means
the same thing as the first start, whatever has happened to the file or the shell's variables since.
"""

import difflib
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from seedbed.actor_svc.config import ActorConfig
from seedbed.inference_svc.config import InferenceConfig
from seedbed.learner_svc.algorithms.config import AlgorithmConfig, VTraceConfig
from seedbed.learner_svc.config import LearnerConfig, algorithm_problem, check_deterministic, check_lag
from seedbed.learner_svc.run.folder import to_toml
from seedbed.services.tools.cli.machine import has_nvidia_driver, usable_cores
from seedbed.services.tools.cli.probe.ask import probe_environment
from seedbed.services.tools.cli.recommend import Recipe, choose_recipe
from seedbed.services.tools.cli.runs import RECORD, RUNS, Need, newest_good, runs_of, tell_user
from seedbed.services.tools.cli.service_folder import MANIFEST, ServiceFolder, open_folder, open_service
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, LaunchConfig, RuntimeConfig
from seedbed.shared.runtime.env_name import EnvName
from seedbed.shared.runtime.load_config import load_settings, parse_value, read_toml
from seedbed.shared.runtime.recipes import AUTO, MEMORY, is_open
from seedbed.shared.runtime.tasks import RunSettings, normalised_weights

R = TypeVar("R", bound=RunSettings)
EXPERIMENTS = (Path(__file__).parents[2] / "experiments").resolve()  # in a clone a link to compose/experiments
WORDS = "words.json"  # what the run was started with beyond its file
IN_FOLDER = "experiment.toml"  # of a folder that is named instead of a file
RECIPE = "recipe.toml"  # the settings of the recipe that was chosen for it
LEARNING = frozenset(("actor", "learner", "policy", "algorithm"))  # a file without these sections gets a recipe


class Sections(BaseModel):
    """Every section as written, unchecked: what is passed on to the services."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: dict[str, Any] = {}
    env: dict[str, Any] = {}
    tasks: dict[str, Any] = {}
    actor: dict[str, Any] = {}
    inference: dict[str, Any] = {}
    learner: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    algorithm: dict[str, Any] = {}
    eval: dict[str, Any] = {}
    launch: dict[str, Any] = {}
    runtime: dict[str, Any] = {}


class LaunchSettings(RunSettings):
    """Every section, checked before anything starts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actor: ActorConfig = ActorConfig()
    inference: InferenceConfig = InferenceConfig()
    learner: LearnerConfig = LearnerConfig()
    algorithm: AlgorithmConfig = VTraceConfig()
    policy: PolicyConfig = PolicyConfig()
    eval: EvalConfig = EvalConfig()
    launch: LaunchConfig = LaunchConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    @model_validator(mode="after")
    def _check_algorithm(self) -> Self:
        if problem := algorithm_problem(self.algorithm, self.learner, self.policy, has_tasks=bool(self.tasks)):
            raise ValueError(problem)
        return self

    def actor_lanes(self, task: str) -> list[int]:
        """Lanes of each group of a training actor; `task` is empty where the run has none."""
        own = self.tasks.get(task)
        lanes, groups = (own.lanes, own.groups) if own else (None, None)
        return [lanes or self.actor.lanes] * (groups or self.actor.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A checked experiment and the folder of its run."""

    name: str
    file: Path | None  # none: only words
    words: Sequence[str]
    run_dir: Path
    settings: LaunchSettings
    recipe: Recipe | None  # that was chosen for it
    sections: Mapping[str, Mapping[str, Any]]  # as written, `run.dir` and `run.name` filled in

    @property
    def resume_command(self) -> str:
        """What to type in a shell to go on with the run."""
        return train_command(self.file, *self.words, "--resume", "--run-dir", str(self.run_dir))


def experiment_names() -> list[str]:
    """The experiments that come with the project."""
    return sorted(path.stem for path in EXPERIMENTS.glob("*.toml"))


def find_experiment(name: str) -> Path:
    """The file of an experiment: a path, a folder with an experiment.toml, or the name of one of the project's.

    Raises: ConfigError with the nearest name.
    """
    path = Path(name)
    if path.is_file():
        return path
    if (path / IN_FOLDER).is_file():
        return path / IN_FOLDER
    if path.suffix == ".toml" or len(path.parts) > 1:
        if path.is_dir():
            raise ConfigError(f"{name} is a folder without an {IN_FOLDER} or a {MANIFEST}: give a TOML file in it")
        near = difflib.get_close_matches(path.name, [item.name for item in path.parent.glob("*.toml")], n=1)
        hint = f"; did you mean {path.parent / near[0]}?" if near else ""
        raise ConfigError(f"{name}: no such experiment file{hint}")
    shipped = EXPERIMENTS / f"{name}.toml"
    if shipped.is_file():
        return shipped
    known = experiment_names()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known) or 'none'}"
    others = "or give a TOML file, or an environment as --env ID, also to resume its run"
    raise ConfigError(f"no experiment named {name!r}; {hint} ({others})")


def choose_source(
    experiment: str | None, words: Sequence[str], *, env: str | None, memory: bool
) -> tuple[Path | None, list[str]]:
    """What is trained, from what a user typed: the experiment's file, or none and words that name an environment.

    Raises: ConfigError if both or neither are given.
    """
    is_folder = env is None and experiment is not None and not (Path(experiment) / IN_FOLDER).is_file()
    if is_folder and experiment is not None and (Path(experiment) / MANIFEST).is_file():
        env, experiment = experiment, None  # a service alone, which needs no experiment
    if env is None:
        if memory:
            raise ConfigError("--memory goes with --env; in an experiment it is run.recipe = 'auto+memory'")
        if experiment is None:
            raise ConfigError(
                f"give an experiment or an environment, as --env ID. Experiments are {', '.join(experiment_names())}: "
                "`seedbed experiments` says what each is"
            )
        return find_experiment(experiment), list(words)
    if experiment is not None and "=" not in experiment:
        raise ConfigError(f"{experiment!r} and --env {env}: give an experiment or an environment, not both")
    recipe = f"{AUTO}+{MEMORY}" if memory else AUTO
    first = [] if experiment is None else [experiment]  # a setting, in the place of the experiment's name
    if (Path(env) / MANIFEST).is_file():
        service = open_folder(Path(env).resolve())
        named = [f"env.id={json.dumps(service.manifest.env_id)}", f"env.service={json.dumps(str(service.folder))}"]
    else:
        named = [f"env.id={json.dumps(env)}"]
    return None, [*named, f"run.recipe={recipe}", *first, *words]


def train_command(file: Path | None, *words: str) -> str:
    """What to type in a shell to train an experiment."""
    if file is not None:
        return shlex.join(["seedbed", "train", file.stem if file.parent == EXPERIMENTS else str(file), *words])
    named = next((word for word in words if word.startswith("env.id=")), "env.id=")
    env = ["--env", str(parse_value(named.removeprefix("env.id=")))]
    rest = [word for word in words if word not in (named, f"run.recipe={AUTO}")]
    return shlex.join(["seedbed", "train", *env, *rest])


def load_experiment(
    file: Path | None, words: Sequence[str], *, run_dir: Path | None, resume: bool, now: float | None = None,
    like: Path | None = None,
) -> Experiment:  # fmt: skip
    """Merge and check an experiment, choose its recipe if it asks for one, and settle its run folder.

    Args:
      file: experiment TOML; none: the words say everything.
      words: `section.key=value`, the strongest last; with `resume` those that the run was started with come before.
      run_dir: where the run goes; none: `run.dir`, or a new folder under runs/, or with `resume` the newest run there.
      now: wall-clock seconds, for the new folder's name.
      like: a run whose recipe, if one was chosen for it, is used for a new run too.
    Raises: ConfigError; also if the folder already holds a run and `resume` is off.
    """
    looked = look_at(file, words)
    name = run_name(file, looked)
    resume = resume or looked.run.resume
    folder = (run_dir or looked.run.dir or _default_folder(name, resume, time.time() if now is None else now)).resolve()
    if resume and not (folder / RECORD).is_file():
        raise ConfigError(f"{folder}: nothing to resume here; start without --resume, or give --run-dir")
    if not resume and (folder / RECORD).is_file():
        raise ConfigError(f"{folder}: already holds a run; go on with --resume, or give another --run-dir")
    if resume:
        words = merge_words(read_words(folder), words)
        looked = look_at(file, words)
    recipe = None
    if wants_recipe(file, looked):
        earlier = folder if resume else like
        recipe = (read_recipe_of(earlier) if earlier is not None else None) or recommend(looked)
    settings, sections = _merge(file, words, recipe)
    settings = locate_services(settings, file)
    write_services(settings, sections)
    check_lanes(settings)
    check_processes(settings, resume=resume)
    sections["run"] = {**sections.get("run", {}), "name": name, "dir": str(folder), "resume": resume}
    return Experiment(
        name=name, file=file, words=tuple(words), run_dir=folder, settings=settings, sections=sections, recipe=recipe
    )


class Looked(RunSettings):
    """What must be known of an experiment before its recipe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    actor: ActorConfig = ActorConfig()
    launch: LaunchConfig = LaunchConfig()


def look_at(file: Path | None, words: Sequence[str]) -> Looked:
    """What is trained, without a recipe. Raises: ConfigError, for unknown sections too."""
    load_settings(Sections, file, words, below={})
    return locate_services(load_settings(Looked, file, words, below={}), file)


def wants_recipe(file: Path | None, looked: Looked) -> bool:
    """Whether one is to be chosen: it was asked for, or the file says nothing of how to learn."""
    if looked.run.recipe:
        return is_open(looked.run.recipe)
    return file is not None and not LEARNING & read_toml(file).keys()


def recommend(looked: Looked) -> Recipe:
    """The recipe for an experiment's environment, on this machine.

    Raises: ConfigError with what is wrong with the environment.
    """
    if not (looked.launch.probe and (looked.launch.actors or looked.launch.eval_actors)):
        raise ConfigError(
            "[run] recipe: nothing says how to learn. A recipe is chosen by looking at the environment, and this run "
            "makes none (launch.actors, launch.eval_actors, launch.probe). Name one that `seedbed recipes` lists, such "
            "as run.recipe=vector-discrete, or run.recipe=none for every setting's own default"
        )
    env = looked.env_of(next(iter(looked.tasks), ""))
    probe = probe_environment(env, looked.actor.hang_s)
    memory = looked.run.recipe.endswith(f"+{MEMORY}")
    cores = looked.launch.cores or usable_cores()
    return choose_recipe(
        probe.spec, probe, memory=memory, is_atari=env.is_atari, cores=cores, has_accelerator=has_nvidia_driver()
    )


def run_name(file: Path | None, looked: Looked) -> str:
    """The name that was given, else the file's, else what the environment is called."""
    if "name" in looked.run.model_fields_set:
        return looked.run.name
    if file is not None:
        return file.resolve().parent.name if file.name == IN_FOLDER else file.stem
    named = EnvName.of(looked.env.id)
    parts = named.module.split(".") if named.is_function else [named.name.rpartition("/")[2]]
    return next((part for part in reversed(parts) if part not in ("env", "envs", "environment")), parts[-1])


def _merge(file: Path | None, words: Sequence[str], recipe: Recipe | None) -> tuple[LaunchSettings, dict[str, Any]]:
    """Every section, checked, and as written."""
    if recipe is not None:
        words = [*words, f"run.recipe={json.dumps(recipe.name)}"]
    below = None if recipe is None else recipe.settings
    sections = load_settings(Sections, file, words, below=below).model_dump(exclude_defaults=True)
    return load_settings(LaunchSettings, file, words, below=below), sections


def locate_services(settings: R, file: Path | None) -> R:
    """The settings with full paths of services in other languages.

    Raises: as `open_service`.
    """
    beside = file.parent if file is not None else Path()

    def located(env: EnvConfig) -> EnvConfig:
        return env.model_copy(update={"service": str(open_service(env, beside).folder)}) if env.service else env

    tasks = {name: task.model_copy(update={"env": located(task.env)}) for name, task in settings.tasks.items()}
    own = {"tasks": tasks} if tasks else {"env": located(settings.env)}
    return settings.model_copy(update=own)


def write_services(settings: RunSettings, sections: dict[str, Any]) -> None:
    """Put the paths of `locate_services` where they were written: what is passed on must not depend on the place."""
    for name, task in settings.tasks.items():
        if task.env.service:
            sections["tasks"][name].setdefault("env", {})["service"] = task.env.service
    if not settings.tasks and settings.env.service:
        sections["env"]["service"] = settings.env.service


def services_of(settings: RunSettings) -> list[ServiceFolder]:
    """The services in other languages that step a run's environments, each once. Raises: as `open_service`."""
    envs = [task.env for task in settings.tasks.values()] or [settings.env]
    return list({env.service: open_service(env) for env in envs if env.service}.values())


def write_words(experiment: Experiment) -> None:
    """Keep with the run what it was started with beyond its file: words and recipe. Raises: OSError."""
    keep_words(experiment.run_dir, experiment.words)
    if (recipe := experiment.recipe) is not None:
        text = "\n".join(
            (
                "# The recipe of this run, as it was chosen when it started; what the experiment says counts more.",
                f"name = {json.dumps(recipe.name)}\nreason = {json.dumps(recipe.reason)}\n",
                to_toml(recipe.settings),
            )
        )
        (experiment.run_dir / RECIPE).write_text(text, encoding="utf-8")


def keep_words(folder: Path, words: Sequence[str]) -> None:
    """Write what `read_words` returns. Raises: OSError."""
    (folder / WORDS).write_text(json.dumps(list(words)), encoding="utf-8")


def read_recipe_of(folder: Path) -> Recipe | None:
    """The recipe that was chosen for a run; none if that was not kept. Raises: ConfigError if the file is damaged."""
    if not (folder / RECIPE).is_file():
        return None
    tables = read_toml(folder / RECIPE)
    try:
        return Recipe(name=str(tables.pop("name")), reason=str(tables.pop("reason")), settings=tables)
    except KeyError as error:
        raise ConfigError(f"{folder / RECIPE}: has no {error}; delete it, and a recipe is chosen again") from error


def read_words(folder: Path) -> list[str]:
    """What a run was last started with beyond its file; nothing if that was not kept.

    Raises: ConfigError if the file is damaged.
    """
    try:
        words = json.loads((folder / WORDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder / WORDS}: {error}; delete it, and name the settings again") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"{folder / WORDS}: not a list of words; delete it, and name the settings again")
    return words


def merge_words(earlier: Sequence[str], words: Sequence[str]) -> list[str]:
    """Both, each setting once: the later word counts. Where a run lies and whether it goes on is not kept."""
    by_name = {word.partition("=")[0].strip(): word for word in (*earlier, *words)}
    given = {word.partition("=")[0].strip() for word in words}
    return [word for name, word in by_name.items() if name in given or name not in ("run.dir", "run.resume")]


def check_lanes(settings: LaunchSettings) -> None:
    """Raise ConfigError if rows must come too old: of all lanes, or of one task's for its share of the batches."""
    launch, actor = settings.launch, settings.actor
    if not settings.algorithm.is_lag_bounded:
        return
    if not settings.tasks:
        check_lag(settings.learner, launch.actors * actor.groups * actor.lanes, num_ranks=launch.learners)
    for name, share in normalised_weights(settings.tasks).items() if settings.tasks else ():
        task = settings.tasks[name]
        actors = launch.actors if task.actors is None else task.actors
        lanes = actors * (task.groups or actor.groups) * (task.lanes or actor.lanes)
        check_lag(settings.learner, lanes, task=name, share=share, num_ranks=launch.learners)


def check_processes(settings: LaunchSettings, *, resume: bool) -> None:
    """Raise ConfigError naming the setting with which a run cannot be deterministic, if it is to be."""
    launch = settings.launch
    check_deterministic(
        settings.run.model_copy(update={"resume": resume}), settings.learner, settings.tasks, num_ranks=launch.learners
    )
    if not settings.run.deterministic:
        if settings.inference.lockstep_groups:
            raise ConfigError(
                "inference.lockstep_groups: it is for run.deterministic = true alone: set that too, or leave it out"
            )
        return
    if launch.inference > 1 or launch.eval_actors > 1:
        name = "launch.inference" if launch.inference > 1 else "launch.eval_actors"
        raise ConfigError(f"{name}: with run.deterministic = true there is one process at most: set it to 1")
    if not launch.actors and not settings.inference.lockstep_groups:
        raise ConfigError(
            "inference.lockstep_groups: with run.deterministic = true and launch.actors = 0, set it to the number of "
            "groups of all training actors"
        )
    if settings.eval.every_steps and not launch.eval_actors:
        raise ConfigError(
            "eval.every_steps: with run.deterministic = true training waits for it: set launch.eval_actors = 1"
        )


def _default_folder(name: str, resume: bool, now: float) -> Path:
    """runs/<name>-<time>, or when resuming the newest such folder that has something to go on with."""
    if resume:
        earlier = [run for run in runs_of(name) if (run / RECORD).is_file()]
        if not earlier:
            raise ConfigError(f"no run of {name!r} under {RUNS.resolve()} to resume; give --run-dir")
        return newest_good(earlier, Need.POLICY, tell_user) or earlier[0]
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}"
