"""What is looked at before any service starts, so that a mistake costs seconds and leaves no run folder.

Every environment is made and stepped once, and a policy that may fail is built for it and tried, in short processes of
their own. A run that goes on is looked at only where the user's own code may have changed.
"""

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.markup import escape

from seedbed.learner_svc.algorithms.config import OwnAlgorithmConfig
from seedbed.services.tools.cli.experiment import Experiment, LaunchSettings
from seedbed.services.tools.cli.plan import plan_actors
from seedbed.services.tools.cli.probe.ask import probe_environments
from seedbed.services.tools.cli.probe.child import Child
from seedbed.services.tools.cli.probe.record import Probe, spec_to_json
from seedbed.services.tools.cli.recommend import choose_recipe
from seedbed.services.tools.cli.run_state import read_tables
from seedbed.services.tools.cli.runs import RECORD
from seedbed.shared.errors import ConfigError
from seedbed.shared.protocol.rows import describe_space_difference
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.env_name import EnvName
from seedbed.shared.runtime.recipes import is_named, kind_of

TRIAL_S = 60.0  # for torch to load and a policy to be tried
Probes = Mapping[str, Probe]  # by task; under "" where the run has one environment


def look_before_start(experiment: Experiment, console: Console) -> Experiment:
    """Find mistakes in environments, network and algorithm; the experiment with what steps them in its [env].

    Raises: ConfigError with the mistake.
    """
    if not experiment.settings.launch.probe:
        return experiment
    is_resumed = bool(experiment.sections["run"]["resume"])
    with ExitStack() as stack:
        trial = None
        if needs_trial(experiment, is_resumed=is_resumed):  # torch is loaded while environments are made
            settings = experiment.settings
            what = f"policy.network: {settings.policy.network}"
            if not settings.algorithm.takes_every_policy:
                what += f", algorithm.name: {settings.algorithm.name}"
            trial = stack.enter_context(Child("seedbed.services.tools.cli.probe.network", what, TRIAL_S))
        probes = _probe_all(experiment, with_known=trial is not None or not is_resumed)
        _check_lanes(experiment.settings, probes)
        _check_evaluation(experiment.settings, probes)
        spec = next((probe.spec for probe in probes.values()), None)
        if trial is not None and spec is not None:
            policy = experiment.settings.policy.model_dump(mode="json", exclude_unset=True)
            tasks = list(experiment.settings.tasks)
            request: dict[str, Any] = {"spec": spec_to_json(spec), "policy": policy, "tasks": tasks}
            if not (algorithm := experiment.settings.algorithm).takes_every_policy:
                request["algorithm"] = algorithm.model_dump(mode="json")
                request["unroll_length"] = experiment.settings.learner.unroll_length
            trial.send(request)
            trial.answer()
    _tell(experiment, probes, console)
    return _with_steppers(experiment, {task: probe.stepped_by for task, probe in probes.items()})


def needs_trial(experiment: Experiment, *, is_resumed: bool) -> bool:
    """Whether network or algorithm may fail: the plain mlp takes everything, and so do most algorithms.

    Of a run that goes on only the user's own may.
    """
    policy, algorithm = experiment.settings.policy, experiment.settings.algorithm
    if ":" in policy.network or isinstance(algorithm, OwnAlgorithmConfig):
        return True
    return not is_resumed and (
        policy.network != "mlp" or bool(policy.network_kwargs) or not algorithm.takes_every_policy
    )


def _environments(experiment: Experiment) -> dict[str, EnvConfig]:
    """Return the environments that actors on this machine will step, by task."""
    tasks = dict.fromkeys(task for _, _, task in plan_actors(experiment.settings))
    return {task: experiment.settings.env_of(task) for task in tasks}


def _probe_all(experiment: Experiment, *, with_known: bool) -> dict[str, Probe]:
    """A probe of each environment. Raises: ConfigError, also if their spaces differ.

    Args:
      with_known: also of those that come from a package, and cannot have changed since the run began.
    """
    envs = {task: env for task, env in _environments(experiment).items() if with_known or EnvName.of(env.id).module}
    found = dict(zip(envs, probe_environments(list(envs.values()), experiment.settings.actor.hang_s), strict=True))
    first = next(iter(found), "")
    for task, probe in found.items():
        if difference := describe_space_difference(found[first].spec, probe.spec):
            said = difference.replace("ours", first).replace("theirs", task)
            raise ConfigError(f"[tasks]: one policy needs the same spaces in all tasks: {said}")
    return found


def _check_lanes(settings: LaunchSettings, probes: Probes) -> None:
    """Raise ConfigError if lanes that come together, such as the agents of a world, do not fill a group's lanes."""
    for task, probe in probes.items():
        if settings.env_of(task).service:
            continue  # whose lanes are its own matter
        own = settings.tasks[task].lanes if task else None
        trained = ("actor.lanes", settings.actor.lanes) if own is None else (f"tasks.{task}.lanes", own)
        for name, lanes in (trained, ("eval.lanes", settings.eval.lanes)):
            if lanes % probe.lanes:
                fitting = probe.lanes * math.ceil(lanes / probe.lanes)
                raise ConfigError(
                    f"{name} is {lanes}, and {probe.lanes} lanes of {settings.env_of(task).id} come together: set it "
                    f"to a multiple, such as {fitting}"
                )


def _check_evaluation(settings: LaunchSettings, probes: Probes) -> None:
    """Raise ConfigError if evaluations have an environment of their own that cannot be made, or has other spaces."""
    if not settings.eval.env or not settings.launch.eval_actors:
        return
    tasks = [task for task in probes if not settings.env_of(task).service]
    found = probe_environments([settings.eval.own_env(settings.env_of(task)) for task in tasks], settings.actor.hang_s)
    for task, probe in zip(tasks, found, strict=True):
        if difference := describe_space_difference(probes[task].spec, probe.spec):
            said = difference.replace("ours", "in training").replace("theirs", "in evaluations")
            raise ConfigError(f"[eval] env: an environment must have the same spaces in evaluations: {said}")


def _tell(experiment: Experiment, probes: Probes, console: Console) -> None:
    """What steps each environment, and what should be known of it."""

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    for task, probe in probes.items():
        env_id = experiment.settings.env_of(task).id
        say(f"[dim]environment[/]  {escape(task or env_id)} [dim]{escape(probe.stepped_by)}[/]")
        if better := better_recipe(experiment, task, probe):
            say(f"[yellow]recipe {experiment.settings.run.recipe} is for other spaces; {better} suits these[/]")
        if probe.newer_id:
            say(f"[yellow]{env_id} is out of date: {probe.newer_id} is its newest version[/]")
        if probe.failure:
            say(f"[yellow]{escape(env_id)} failed while it was looked at: {escape(probe.failure)}[/]")


def better_recipe(experiment: Experiment, task: str, probe: Probe) -> str:
    """The kind of recipe that suits an environment, if the experiment names one of another kind; else ""."""
    name = experiment.settings.run.recipe
    suited = choose_recipe(probe.spec, is_atari=experiment.settings.env_of(task).is_atari).name
    return suited if is_named(name) and kind_of(name) != kind_of(suited) else ""


def _with_steppers(experiment: Experiment, steppers: Mapping[str, str]) -> Experiment:
    """The experiment, with what steps each environment in its sections; where none is given, as its record says."""
    known = _steppers_of(experiment)
    sections: dict[str, Any] = {name: dict(table) for name, table in experiment.sections.items()}
    for task in _environments(experiment):
        if not (said := steppers.get(task) or known.get(task, "")):
            continue
        if task:
            sections["tasks"][task] = dict(sections["tasks"][task])
        owner = sections["tasks"][task] if task else sections
        owner["env"] = {**owner.get("env", {}), "stepped_by": said}
    return replace(experiment, sections=sections)


def _steppers_of(experiment: Experiment) -> dict[str, str]:
    """What the run's record says of an earlier life; empty where there was none."""
    record = read_tables(experiment.run_dir / RECORD)
    tables = {"": record, **record.get("tasks", {})}
    return {task: str(table.get("env", {}).get("stepped_by", "")) for task, table in tables.items()}
