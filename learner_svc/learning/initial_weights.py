"""Starts a run from the weights of another (`learner.init_from`): policy and statistics, nothing else.

Optimiser, counters and versions start from zero. The environment may be another one, as long as its observations and
actions are the same; precision and memory format are those of the new run.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
import torch

from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.run.checkpoint import Checkpoint, load, load_latest
from seedbed.learner_svc.run.saved_policy import read_policy
from seedbed.shared.errors import CheckpointError, ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.protocol.rows import describe_difference

log = structlog.get_logger(__name__)


def find_source(path: Path) -> Checkpoint:
    """Return the newest valid checkpoint of a run folder, or the checkpoint of this manifest.

    Raises: ConfigError if there is none, CheckpointError if it cannot be read.
    """
    if path.is_file():
        return load(path)
    found = load_latest(path / "checkpoints")
    if found is None:
        raise ConfigError(f"learner.init_from: {path} has no checkpoint; name a run folder, or a checkpoint's .json")
    return found


def start_from(updater: Updater, source: Checkpoint) -> None:
    """Give a new updater the policy of `source`, with its statistics of observations and value targets.

    Raises: ConfigError naming what does not fit, or CheckpointError; the updater is unchanged then.
    """
    where, policy = f"learner.init_from: {source.path}", updater.policy
    try:
        saved = read_policy(source)
    except CheckpointError as error:
        raise CheckpointError(f"learner.init_from: {error}") from error
    theirs, flat, ours = saved.policy, torch.from_numpy(saved.flat), policy.spec
    alike = replace(theirs.spec, env_id=ours.env_id, settings=ours.settings, statistics=ours.statistics)
    if difference := describe_difference(ours, alike):
        raise ConfigError(f"{where} is of {theirs.spec.env_id}, whose spaces differ from these: {difference}")
    if difference := policy_difference(policy.config, theirs.config):
        raise ConfigError(f"{where}: {difference}: set it as there, or leave out learner.init_from")
    if difference := task_difference(policy.tasks, theirs.tasks):
        raise ConfigError(f"{where}: {difference}: set them as there, or leave out learner.init_from")
    if problem := updater.units_problem(source.meta.get("updater", {})):
        raise ConfigError(f"{where}: {problem}, or leave out learner.init_from")
    statistics = {name: x for name, x in source.arrays.items() if name in updater.statistics()}
    if missing := sorted(updater.statistics().keys() - statistics.keys()):
        raise ConfigError(f"{where} has no {', '.join(missing)}: set algorithm.value_normalisation as in that run")
    updater.start_from({place.name: place.view(flat) for place in saved.manifest.places}, statistics)
    log.info("weights_taken_over", path=str(source.path), step=source.step, kind=source.kind)


def policy_difference(ours: PolicyConfig, theirs: PolicyConfig) -> str:
    """Return the first setting of [policy] that differs, with both values; empty if none does."""
    other = theirs.model_dump(mode="json")
    for name, value in ours.model_dump(mode="json").items():
        if other.get(name) != value:
            return f"policy.{name} is {value!r} here and {other.get(name)!r} there"
    return ""


def task_difference(ours: Sequence[str], theirs: Sequence[str]) -> str:
    """Return how the tasks differ from those that another policy tells apart; empty if they do not, or it does not."""
    if not theirs or tuple(ours) == tuple(theirs):
        return ""
    return f"the tasks here are {', '.join(ours)}, and there, in this order, {', '.join(theirs)}"
