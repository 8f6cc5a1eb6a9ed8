"""The engine: what it writes into unrolls is what the learner computes from them, for every kind of policy."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from seedbed.inference_svc.engine import LaneBlock
from seedbed.inference_svc.unrolls import LatestRow
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, Manifest, make_manifest
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import EnvSpec, Flags, act_layout
from tests.support.fed_groups import FedGroups
from tests.support.specs import make_spec

T = 5
VECTOR = Box(-2, 2, (3,), np.float32)
IMAGE = Box(0, 255, (36, 36), np.uint8)


def make_policy(spec: EnvSpec, **config: object) -> tuple[Manifest, bytes, Policy]:
    torch.manual_seed(1)
    policy = Policy(spec, PolicyConfig(**config))
    parameters = FlatParameters(policy)
    with torch.no_grad():  # a head of .01 would hide faults: make the policy opinionated
        policy.head.weight.mul_(30)
    return make_manifest(policy, Recording(unroll_length=T)), parameters.export(), policy


def log_ratio(spec: EnvSpec, policy: Policy, views: list[Array]) -> Array:
    """log pi - log mu of an unroll's valid rows, by one forward pass as the learner does it."""
    tensors = [torch.from_numpy(view.copy()) for view in views]
    leaves = len(spec.observation.leaves())
    obs, rest = tensors[:leaves], tensors[leaves:]
    mask = rest.pop(0) if spec.mask_size else None
    reward, flags, action, behaviour, _version, *state = rest
    first = (flags & int(Flags.FIRST)).bool()
    with torch.no_grad():
        output = policy(obs, reward, first, action, tuple(state))
        log_prob = policy.distribution.log_prob(output.params[:-1], action, mask[:-1] if mask is not None else None)
    return (log_prob - behaviour)[~first[1:]].numpy()


CASES = {
    "mlp": (make_spec(VECTOR, Discrete(4, start=2)), {}),
    "lstm": (make_spec(VECTOR, Discrete(4)), {"lstm": 8}),
    "masked lstm": (make_spec(VECTOR, Tuple((Discrete(3), MultiDiscrete([2, 4]))), masked=True), {"lstm": 8}),
    "box": (make_spec(VECTOR, Box(-1, 2, (2,), np.float32)), {"lstm": 8}),
    "clipped box": (make_spec(VECTOR, Box(-1, 2, (2,), np.float32)), {"squash": False}),
    "binary": (make_spec(VECTOR, MultiBinary(3)), {}),
    "composite": (
        make_spec(
            Dict({"a": VECTOR, "b": Discrete(3)}),
            Dict({"x": Box(-1, 1, (2,), np.float32), "y": Discrete(3), "z": MultiBinary(2)}),
            masked=True,
        ),
        {"lstm": 8},
    ),
    "stack": (make_spec(IMAGE, Discrete(3)), {"network": "impala_shallow", "stack": 4}),
    "stack and lstm": (make_spec(IMAGE, Discrete(3)), {"network": "impala_shallow", "stack": 3, "lstm": 8}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("together", [False, True])
def test_acting_and_learning_see_the_same_policy(case: str, together: bool) -> None:
    """At equal weights |log pi - log mu| < 1e-4 on every valid row: row 0, after `first`, across unrolls."""
    spec, config = CASES[case]
    manifest, weights, policy = make_policy(spec, **config)
    fed = FedGroups(spec, manifest, weights, [3, 2])
    fed.run(3 * T + 1, together=together)
    assert len(fed.unrolls) == 6
    ratios = np.concatenate([log_ratio(spec, policy, views) for _lanes, views in fed.unrolls])
    assert len(ratios) > 20
    assert np.abs(ratios).max() < 1e-4


def test_actions_do_not_depend_on_how_groups_are_batched() -> None:
    """Sampling noise is keyed by group seed, lane and tick: alone or together, the same actions."""
    spec, config = CASES["lstm"]
    manifest, weights, _policy = make_policy(spec, **config)
    actions = []
    for together in (False, True):
        fed = FedGroups(spec, manifest, weights, [3, 2])
        fed.run(T + 1, together=together)
        actions.append([views[3] for _lanes, views in fed.unrolls])
    for alone, shared in zip(*actions, strict=True):
        assert np.array_equal(alone, shared)


def test_an_evaluation_acts_with_frozen_weights() -> None:
    """New weights change training groups only; the frozen weights stay what they were."""
    spec, config = CASES["mlp"]
    manifest, weights, _policy = make_policy(spec, **config)
    fed = FedGroups(spec, manifest, weights, [4])
    lanes = LaneBlock(start=8, count=4, seed=0, rows=LatestRow(), act_layout=act_layout(spec, 4),
                  greedy=True, uses_frozen_weights=True)  # fmt: skip
    fed.engine.forget(lanes)
    fed.write(lanes, 1.0)
    assert fed.engine.freeze() == 1
    before = fed.engine.act([lanes])
    fed.engine.load(2, manifest, np.negative(np.frombuffer(weights, np.float32)).tobytes())
    assert fed.engine.act([lanes]) == before
    assert (fed.engine.version, fed.engine.frozen_version) == (2, 1)
    assert fed.engine.freeze_former(9, "another policy's", weights) == 0
    assert fed.engine.act([lanes]) == before
    fed.engine.freeze()
    assert fed.engine.act([lanes]) != before
    assert fed.engine.freeze_former(1, manifest.digest, weights) == 1
    assert fed.engine.act([lanes]) == before


def test_state_tables_grow_without_forgetting() -> None:
    """A group that comes later makes the tables longer; the state of the others stays."""
    spec, config = CASES["lstm"]
    manifest, weights, policy = make_policy(spec, **config)
    fed = FedGroups(spec, manifest, weights, [2])
    fed.run(T, together=False, first=0.0)
    fed.engine.reserve(500)
    fed.write(fed.groups[0], 0.0)
    fed.keep(fed.groups[0])
    fed.engine.act(fed.groups)
    for _ in range(T):
        fed.write(fed.groups[0], 0.0)
        if not fed.groups[0].rows.is_complete:
            fed.engine.act(fed.groups)
    fed.keep(fed.groups[0])
    assert np.abs(log_ratio(spec, policy, fed.unrolls[-1][1])).max() < 1e-4


def test_a_group_acts_as_its_task_until_its_slots_are_another_groups() -> None:
    """The task is in the state of every lane, through resets and longer tables, and in every unroll."""
    torch.manual_seed(1)
    spec = make_spec(VECTOR, Discrete(4))
    policy = Policy(spec, PolicyConfig(lstm=8, task_input=True, value_heads="per_task"), ("pong", "tennis"))
    manifest, weights = make_manifest(policy, Recording(unroll_length=T)), FlatParameters(policy).export()
    fed = FedGroups(spec, manifest, weights, [3, 2])
    assert fed.engine.policy.tasks == ("pong", "tennis")
    fed.groups[1].task = "tennis"
    fed.engine.forget(fed.groups[1])
    fed.run(T, together=True)
    fed.engine.reserve(500)
    fed.run(T + 1, together=True)
    place = [item.name for item in fed.record.fields].index("state/task")
    assert [(lanes, views[place].tolist()) for lanes, views in fed.unrolls] == [(3, [0] * 3), (2, [1] * 2)] * 2
    ratios = np.concatenate([log_ratio(spec, policy, views) for _lanes, views in fed.unrolls])
    assert np.abs(ratios).max() < 1e-4
    fed.groups[1].task = "pong"
    fed.engine.forget(fed.groups[1])
    fed.write(fed.groups[1], 1.0)
    fed.engine.act(fed.groups[1:])
    assert fed.engine._tables[0][:5].tolist() == [0] * 5
