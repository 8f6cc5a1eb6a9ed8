"""The process that builds an experiment's policy and algorithm for what a probe found, and tries them on a few rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from seedbed.learner_svc.algorithms.config import AlgorithmConfig, OwnAlgorithmConfig
from seedbed.learner_svc.algorithms.registry import make_algorithm, recording_of
from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.sources.batch import Batch
from seedbed.learner_svc.sources.source import allocate
from seedbed.services.tools.cli.probe.child import answer_to
from seedbed.services.tools.cli.probe.record import spec_from_json
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, acting_parameters
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.recording import VERSION
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import Leaf
from seedbed.shared.runtime.modules import describe_failure

ROWS, LANES = 2, 3  # of the policy's trial; an algorithm's has as many rows as the run's unrolls


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Try request["policy"], a [policy] section, with request["spec"]; request["algorithm"] too if it is there.

    request["tasks"] has the names of the run's tasks, if it has any.
    An algorithm of one's own makes an update on a few lanes of request["unroll_length"]; one of ours is built for it.
    """
    config, spec = PolicyConfig.model_validate(request["policy"]), spec_from_json(request["spec"])
    tasks = request.get("tasks", ())
    with _telling("policy", f"network = {config.network!r}"):
        try_policy(spec, config, tasks)
    if "algorithm" in request:
        algorithm: AlgorithmConfig = TypeAdapter(AlgorithmConfig).validate_python(request["algorithm"])
        with _telling("algorithm", f"name = {algorithm.name!r}"):
            if isinstance(algorithm, OwnAlgorithmConfig):
                try_algorithm(Policy(spec, config, tasks), algorithm, request["unroll_length"])
            else:
                recording_of(algorithm, request["unroll_length"])
                make_algorithm(algorithm, Policy(spec, config, tasks))
    return {}


@contextmanager
def _telling(section: str, what: str) -> Iterator[None]:
    """Turns whatever comes of a user's own code into a ConfigError that names the setting."""
    try:
        yield
    except SeedbedError as error:
        said = str(error)
        raise ConfigError(said if f"[{section}]" in said else f"[{section}] {what}: {said}") from error
    except (Exception, SystemExit) as error:  # whatever its author wrote
        raise ConfigError(f"[{section}] {what}: {describe_failure(error)}") from error


def try_policy(spec: EnvSpec, config: PolicyConfig, tasks: Sequence[str] = ()) -> None:
    """Build it and do what learning and publishing will do with it. Raises whatever is wrong with it."""
    policy = Policy(spec, config, tasks)
    generator = np.random.default_rng(0)
    leaves = [torch.from_numpy(_random_rows(leaf, generator)) for leaf in spec.observation.leaves()]
    action = torch.zeros(ROWS - 1, LANES, policy.distribution.action_size)
    first = torch.zeros(ROWS, LANES, dtype=torch.bool)
    output = policy(leaves, torch.zeros(ROWS, LANES), first, action, policy.initial_state(LANES))
    torch.autograd.backward(output.params.sum() + output.value.sum())
    acting_parameters(policy)


def try_algorithm(policy: Policy, config: AlgorithmConfig, unroll_length: int) -> None:
    """One update on a few lanes. Raises whatever is wrong with the algorithm, its acting rule or its settings."""
    record = recording_of(config, unroll_length).make_record(policy.spec, policy.state_fields)
    arrays = dict(zip((item.name for item in record.fields), allocate(record, LANES), strict=True))
    generator = np.random.default_rng(0)
    for name, leaf in zip(record.step_names, policy.spec.observation.leaves(), strict=False):
        arrays[name][...] = np.stack([_random_rows(leaf, generator)[0]] * len(arrays[name]))
    arrays[VERSION][...] = version = pack_version(1, 0)
    updater = Updater(policy, FlatParameters(policy), config)
    batch = Batch.from_arrays(record, list(arrays.values()))
    task_B = np.zeros(LANES, np.int64) if policy.tasks else None
    updater.update(batch, step=0, trained_steps=0, max_policy_lag=1, version_now=version, task_B=task_B)


def _random_rows(leaf: Leaf, generator: np.random.Generator) -> Array:
    """Rows of one leaf [ROWS, LANES, *wire_shape]: small random numbers in a box, else the smallest value."""
    shape = (ROWS, LANES, *leaf.wire_shape)
    if leaf.kind == "box":
        return generator.integers(0, 100, shape).astype(leaf.wire_dtype)
    values: Array = np.zeros(shape, leaf.wire_dtype)
    return values + np.reshape(leaf.starts, leaf.shape).astype(leaf.wire_dtype) if leaf.nvec else values


if __name__ == "__main__":
    answer_to(look)
