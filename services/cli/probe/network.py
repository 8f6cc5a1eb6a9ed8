"""The process that builds an experiment's policy for what a probe found, and passes a few rows through it and back."""

import inspect
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.cli.probe.child import answer_to
from services.cli.probe.record import spec_from_json
from shared.errors import ConfigError, SeedbedError
from shared.policy.config import PolicyConfig
from shared.policy.policy import Policy, PolicyOutput
from shared.policy.weights import acting_parameters
from shared.protocol.layout import Array
from shared.protocol.rows import EnvSpec
from shared.protocol.spaces import Leaf
from shared.runtime.modules import describe_failure, is_users, shown_path

ROWS, LANES = 2, 3  # of the trial
COUNTS = (1, LANES, ROWS * LANES)  # of rows in its passes
ROUNDING = 1e-4  # batches of other sizes are summed in another order


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Try request["policy"], a [policy] section, with request["spec"]."""
    config = PolicyConfig.model_validate(request["policy"])
    try:
        try_policy(spec_from_json(request["spec"]), config)
    except SeedbedError:
        raise
    except (Exception, SystemExit) as error:  # whatever the network's author wrote
        raise ConfigError(f"[policy] network = {config.network!r}: {describe_failure(error)}") from error
    return {}


def try_policy(spec: EnvSpec, config: PolicyConfig) -> None:
    """Build it and do what acting and learning will do with it.

    Raises: ConfigError for features of another shape, or that are not the same twice; else whatever is wrong with it.
    """
    policy = Policy(spec, config)
    where = f"[policy] network = {config.network!r}{_place_of_class(policy.torso)}"
    policy.torso.register_forward_hook(lambda torso, _inputs, features: _check_features(where, torso, features))
    with torch.no_grad():
        first, again, alone = _forward(policy, 1), _forward(policy, 1), _forward(policy, 1, lanes=1)
    if not torch.equal(first.params, again.params):
        raise ConfigError(
            f"{where}: the same observations give other features each time. Leave out dropout, noise and the like: "
            "inference and learner must agree"
        )
    if not torch.allclose(first.params[:, :1], alone.params, rtol=ROUNDING, atol=ROUNDING):
        raise ConfigError(
            f"{where}: a row's features depend on the rows beside it. Leave out batch normalisation and the like: "
            "inference has other batches than the learner"
        )
    output = _forward(policy, ROWS)
    torch.autograd.backward(output.params.sum() + output.value.sum())
    try:
        acting_parameters(policy)
    except SeedbedError as error:  # what cannot travel, such as the counters of batch normalisation
        raise ConfigError(f"{where}: {error}") from error


def _check_features(where: str, torso: Any, features: Any) -> None:
    """Refuse what the policy's head cannot take."""
    if not isinstance(features, Tensor):
        raise ConfigError(f"{where}: forward() gave a {type(features).__name__}: return features [N, output_size]")
    if features.dim() != 2 or features.shape[1] != torso.output_size or features.shape[0] not in COUNTS:
        raise ConfigError(
            f"{where}: forward() gave features {list(features.shape)} for N = {LANES} rows: return [N, output_size], "
            f"and output_size is {torso.output_size}"
        )


def _place_of_class(torso: object) -> str:
    """Where a network of the user's own stands."""
    try:
        file, (_, line) = inspect.getfile(type(torso)), inspect.getsourcelines(type(torso))
    except (OSError, TypeError):
        return ""
    return f" ({shown_path(file)}, line {line})" if is_users(file) else ""


def _forward(policy: Policy, rows: int, *, lanes: int = LANES) -> PolicyOutput:
    """One pass of the first lanes of random observations, the same each time."""
    generator = np.random.default_rng(0)
    leaves = [
        torch.from_numpy(_random_rows(leaf, rows, generator)[:, :lanes]) for leaf in policy.spec.observation.leaves()
    ]
    action = torch.zeros(rows - 1, lanes, policy.distribution.action_size) if rows > 1 else None
    first = torch.zeros(rows, lanes, dtype=torch.bool)
    output: PolicyOutput = policy(leaves, torch.zeros(rows, lanes), first, action, policy.initial_state(lanes))
    return output


def _random_rows(leaf: Leaf, rows: int, generator: np.random.Generator) -> Array:
    """Rows of one leaf [rows, LANES, *wire_shape]: small random numbers in a box, else the smallest value."""
    shape = (rows, LANES, *leaf.wire_shape)
    if leaf.kind == "box":
        return generator.integers(0, 100, shape).astype(leaf.wire_dtype)
    values: Array = np.zeros(shape, leaf.wire_dtype)
    return values + np.reshape(leaf.starts, leaf.shape).astype(leaf.wire_dtype) if leaf.nvec else values


if __name__ == "__main__":
    answer_to(look)
