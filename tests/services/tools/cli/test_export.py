"""`seedbed export`: what other programs get does what the policy does."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from seedbed.learner_svc.run.checkpoint import Checkpoint
from seedbed.services.tools.cli.export import export_policy
from seedbed.shared.errors import ConfigError, StorageError
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from tests.support.experience import RECORDING
from tests.support.policy_cases import CASES, make_policy, random_leaf

PLAIN = Precision()
LANES, QUICK = 5, ("masked", "lstm", "atari")


def make_trained(name, folder, precision=PLAIN):
    """A policy that trains in a precision, and its checkpoint."""
    policy = make_policy(name)
    policy.use(precision)
    arrays = {"policy.flat": FlatParameters(policy).flat.numpy()}
    meta = {"manifest": make_manifest(policy, RECORDING).to_json()}
    return policy, Checkpoint(path=folder / "c.json", kind="latest", serial=1, step=7, meta=meta, arrays=arrays)


GRAPHS = [pytest.param(name, PLAIN, marks=() if name in QUICK else pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize(("name", "precision"), [*GRAPHS, ("atari", Precision(dtype="bfloat16", channels_last=True))])
def test_the_graph_acts_as_the_policy_does(tmp_path, name, precision):
    """Tick by tick with its own state, for another number of lanes than it was traced with; always in float32."""
    onnxruntime = pytest.importorskip("onnxruntime")
    policy, checkpoint = make_trained(name, tmp_path, precision)
    rng = np.random.default_rng(3)
    names = export_policy(checkpoint, tmp_path / "policy.onnx")
    policy.use(PLAIN)
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert {item.name for item in session.get_inputs()} <= set(names.inputs)
    state, remembered = policy.initial_state(LANES), [part.numpy() for part in policy.initial_state(LANES)]
    for tick in range(3):
        leaves = [torch.from_numpy(random_leaf(leaf, LANES, rng)) for leaf in policy.spec.observation.leaves()]
        reward, first = torch.from_numpy(rng.normal(size=LANES).astype(np.float32)), torch.full((LANES,), tick == 0)
        mask = torch.from_numpy((rng.random((LANES, policy.spec.mask_size)) < 0.7).astype(np.uint8))
        masks = [mask] if policy.spec.mask_size else []
        rows = [*leaves, reward, first, *masks]
        given = dict(zip(names.inputs, [*(row.numpy() for row in rows), *remembered], strict=True))
        wanted = {item.name: given[item.name] for item in session.get_inputs()}
        action, _parameters, value, *remembered = session.run(list(names.outputs), wanted)
        with torch.no_grad():
            acted = policy.act(leaves, reward, first, state, mask=mask if masks else None)
        state = acted.state
        np.testing.assert_allclose(action, acted.action, atol=1e-4)
        np.testing.assert_allclose(value, acted.value, atol=1e-4)
        for mine, theirs in zip(remembered, state, strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-4)


def test_weights_go_by_name_with_what_they_are_for(tmp_path):
    """Any reader of safetensors has them; specification and configuration are in the file's metadata."""
    policy, checkpoint = make_trained("lstm", tmp_path, Precision(dtype="bfloat16"))
    export_policy(checkpoint, tmp_path / "new" / "policy.safetensors")
    with safe_open(tmp_path / "new" / "policy.safetensors", "pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
        assert json.loads(file.metadata()["seedbed"])["spec"]
    wanted = policy.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_nothing_is_written_where_it_cannot_be(tmp_path):
    """Another suffix, or a folder that is a file; no half of a file stays."""
    _policy, checkpoint = make_trained("mlp", tmp_path)
    with pytest.raises(ConfigError, match=r"policy.pt: the suffix says"):
        export_policy(checkpoint, tmp_path / "policy.pt")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        export_policy(checkpoint, tmp_path / "file" / "policy.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
