"""The process that builds an experiment's policy for what a probe found, and passes a few rows through it and back."""

from typing import Any

import numpy as np
import torch

from services.cli.probe.child import answer_to
from services.cli.probe.record import spec_from_json
from shared.errors import ConfigError, SeedbedError
from shared.policy.config import PolicyConfig
from shared.policy.policy import Policy
from shared.policy.weights import acting_parameters
from shared.protocol.layout import Array
from shared.protocol.rows import EnvSpec
from shared.protocol.spaces import Leaf
from shared.runtime.modules import describe_failure

ROWS, LANES = 2, 3  # of the trial


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Try request["policy"], a [policy] section, with request["spec"]."""
    config = PolicyConfig.model_validate(request["policy"])
    try:
        try_policy(spec_from_json(request["spec"]), config)
    except SeedbedError as error:
        said = str(error)
        raise ConfigError(said if "[policy]" in said else f"[policy] network = {config.network!r}: {said}") from error
    except (Exception, SystemExit) as error:  # whatever the network's author wrote
        raise ConfigError(f"[policy] network = {config.network!r}: {describe_failure(error)}") from error
    return {}


def try_policy(spec: EnvSpec, config: PolicyConfig) -> None:
    """Build it and do what learning and publishing will do with it. Raises whatever is wrong with it."""
    policy = Policy(spec, config)
    generator = np.random.default_rng(0)
    leaves = [torch.from_numpy(_random_rows(leaf, generator)) for leaf in spec.observation.leaves()]
    action = torch.zeros(ROWS - 1, LANES, policy.distribution.action_size)
    first = torch.zeros(ROWS, LANES, dtype=torch.bool)
    output = policy(leaves, torch.zeros(ROWS, LANES), first, action, policy.initial_state(LANES))
    torch.autograd.backward(output.params.sum() + output.value.sum())
    acting_parameters(policy)


def _random_rows(leaf: Leaf, generator: np.random.Generator) -> Array:
    """Rows of one leaf [ROWS, LANES, *wire_shape]: small random numbers in a box, else the smallest value."""
    shape = (ROWS, LANES, *leaf.wire_shape)
    if leaf.kind == "box":
        return generator.integers(0, 100, shape).astype(leaf.wire_dtype)
    values: Array = np.zeros(shape, leaf.wire_dtype)
    return values + np.reshape(leaf.starts, leaf.shape).astype(leaf.wire_dtype) if leaf.nvec else values


if __name__ == "__main__":
    answer_to(look)
