"""Finds the algorithm that a configuration names: a built-in one, or one of the user's own."""

from pathlib import Path

import torch

from seedbed.learner_svc.algorithms.algorithm import Algorithm
from seedbed.learner_svc.algorithms.config import BUILT_IN, AlgorithmConfig, AlgorithmSettings, OwnAlgorithmConfig
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.ranks.ranks import ranks_here
from seedbed.learner_svc.sources.source import K, Source, SourcePlan
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.runtime.load_config import read_section
from seedbed.shared.runtime.modules import load_class
from seedbed.shared.runtime.tasks import normalised_weights

CPU = torch.device("cpu")
PACKAGE = __name__.rpartition(".")[0]


def find_algorithm(config: AlgorithmConfig) -> tuple[type[Algorithm], AlgorithmSettings]:
    """Return the class that the section [algorithm] names, and its checked settings.

    Raises: ConfigError naming the file and line, or the setting, at fault.
    """
    setting = f"[algorithm] name = {config.name!r}"
    if not isinstance(config, OwnAlgorithmConfig):
        return load_class(f"{PACKAGE}.{config.implementation}", setting, known=BUILT_IN, base=Algorithm), config
    kind = load_class(config.name, setting, known=BUILT_IN, base=Algorithm)
    # The model may be that of a built-in algorithm, which takes no other name than its own.
    settings = read_section("algorithm", kind.Settings, config.model_dump(exclude={"name"}))
    return kind, settings.model_copy(update={"name": config.name})


def make_algorithm(config: AlgorithmConfig, policy: Policy) -> Algorithm:
    """Make the algorithm that the configuration names. Raises: ConfigError."""
    kind, settings = find_algorithm(config)
    return kind(settings, policy)


def recording_of(config: AlgorithmConfig, unroll_length: int) -> Recording:
    """Return how inference acts for an algorithm, and what it records. Raises: ConfigError."""
    kind, settings = find_algorithm(config)
    return kind.recording(settings, unroll_length)


def make_source(
    settings: LearnerSettings, record: RecordSpec, folder: Path, *, rank: int = 0, device: torch.device = CPU
) -> Source[K]:
    """Make the source of batches that a learner rank trains on, with files in `folder` if it has any.

    For a `device` that is a GPU the batches are in page-locked memory.

    Raises: ConfigError, StorageError.
    """
    kind, own = find_algorithm(settings.algorithm)
    run, learner = settings.run, settings.learner
    if problem := own.problem_with(batch=learner.batch, unroll_length=learner.unroll_length, echo=learner.echo):
        raise ConfigError(problem)
    plan = SourcePlan(
        batch=learner.batch, num_buffers=1 if run.deterministic else learner.buffers,
        weights=normalised_weights(settings.tasks), tasks=tuple(settings.tasks.values()),
        folder=folder, seed=run.seed + rank,
        echo=learner.echo, echo_batches=learner.echo_batches, ranks_here=ranks_here(),
        is_pinned=device.type == "cuda",
    )  # fmt: skip
    return kind.make_source(own, record, plan)
