"""The process that builds an experiment's policy for what a probe found, and passes a few rows through it and back."""

from typing import Any

import numpy as np
import torch

from services.cli.probe.child import answer_to
from services.cli.probe.record import spec_from_json
from shared.errors import ConfigError
from shared.policy.config import PolicyConfig
from shared.policy.policy import Policy
from shared.protocol.layout import Array
from shared.protocol.rows import EnvSpec
from shared.runtime.modules import describe_failure

ROWS, LANES = 2, 3  # of the trial


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Try request["policy"], a [policy] section, with request["spec"]."""
    config = PolicyConfig.model_validate(request["policy"])
    try:
        try_policy(spec_from_json(request["spec"]), config)
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, ArithmeticError) as error:
        raise ConfigError(f"[policy] network = {config.network!r}: {describe_failure(error)}") from error
    return {}


def try_policy(spec: EnvSpec, config: PolicyConfig) -> None:
    """Build it and do what acting and learning will do with it. Raises whatever is wrong with it."""
    policy = Policy(spec, config)
    with torch.no_grad():
        _forward(policy, 1)
    output = _forward(policy, ROWS)
    (output.params.sum() + output.value.sum()).backward()


def _forward(policy: Policy, rows: int) -> Any:
    """One pass of zeros."""
    leaves = [torch.from_numpy(_zeros(rows, leaf)) for leaf in policy.spec.observation.leaves()]
    action = torch.zeros(rows - 1, LANES, policy.distribution.action_size) if rows > 1 else None
    first = torch.zeros(rows, LANES, dtype=torch.bool)
    return policy(leaves, torch.zeros(rows, LANES), first, action, policy.initial_state(LANES))


def _zeros(rows: int, leaf: Any) -> Array:
    return np.zeros((rows, LANES, *leaf.wire_shape), leaf.wire_dtype)


if __name__ == "__main__":
    answer_to(look)
