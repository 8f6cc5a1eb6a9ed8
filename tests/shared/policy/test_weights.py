"""One flat buffer under all weights, and a manifest from which the same policy is built."""

import json
from collections.abc import Sequence

import pytest
import torch
from gymnasium import spaces
from torch import nn

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.policy.config import PolicyConfig, Precision
from seedbed.shared.policy.networks import ImageShape, Torso
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import (
    ALIGNMENT,
    FlatParameters,
    Manifest,
    acting_parameters,
    make_manifest,
    plan_layout,
    policy_from_manifest,
)
from tests.support.experience import RECORDING
from tests.support.policy_cases import CASES, VECTOR, RandomActor, make_policy
from tests.support.specs import make_spec


@pytest.mark.parametrize("name", CASES)
def test_a_reader_of_the_manifest_builds_the_same_policy(name: str) -> None:
    """Manifest and buffer alone give the same outputs, in the same layout."""
    policy = make_policy(name)
    unroll = RandomActor(policy, 3).unroll(3)
    inputs = (unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    parameters = FlatParameters(policy)
    manifest = make_manifest(policy, RECORDING)
    copied = Manifest.from_json(manifest.to_json())
    assert copied == manifest
    assert copied.digest == manifest.digest
    assert copied.extra == RECORDING.to_json()
    reader = policy_from_manifest(copied)
    acting = acting_parameters(reader)
    assert len(parameters.export()) == manifest.num_bytes
    acting.load_(parameters.export())
    expected, found = policy(*inputs), reader(*inputs)
    torch.testing.assert_close(found.params, expected.params, atol=0, rtol=0)
    torch.testing.assert_close(found.value, expected.value, atol=0, rtol=0)


def test_flattening_changes_no_output_and_every_tensor_is_a_view() -> None:
    """Parameters and gradients live in the flat tensors; a step on the flat tensor moves the policy."""
    policy = make_policy("composite")
    unroll = RandomActor(policy, 3).unroll(3)
    inputs = (unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    before = policy(*inputs).params
    parameters = FlatParameters(policy)
    torch.testing.assert_close(policy(*inputs).params, before, atol=0, rtol=0)
    output = policy(*inputs)
    (output.params.square().sum() + output.value.square().sum()).backward()
    low, high = parameters.grad.data_ptr(), parameters.grad.data_ptr() + 4 * parameters.grad.numel()
    for parameter in policy.parameters():
        assert parameter.grad is not None
        assert low <= parameter.grad.data_ptr() < high
    norm = torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]).norm()
    torch.testing.assert_close(parameters.grad.norm(), norm)
    parameters.trained.sub_(0.01 * parameters.grad)
    assert (policy(*inputs).params - before).abs().max() > 1e-4
    parameters.grad.zero_()
    assert all(not p.grad.any() for p in policy.parameters() if p.grad is not None)


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    """Parameters first, then statistics; offsets are multiples of a cache line; padding is zero."""
    policy = make_policy("composite")
    parameters = FlatParameters(policy)
    marks = torch.zeros(parameters.plan.num_elements)
    for place in parameters.plan.places:
        assert place.offset % ALIGNMENT == 0
        place.view(marks).add_(1)
    assert marks.max() == 1
    assert not parameters.flat[marks == 0].any()
    statistics = [place for place in parameters.plan.places if place.offset >= parameters.plan.num_trained]
    assert [place.name for place in statistics] == [
        "encoder.mean_1", "encoder.rstd_1", "encoder.mean_4", "encoder.rstd_4",
    ]  # fmt: skip
    assert set(parameters.views(parameters.grad)) == {name for name, _ in policy.named_parameters()}


def test_channels_last_strides_survive_flattening_and_the_wire() -> None:
    """Convolution weights keep their memory format on both sides; the manifest tells formats apart."""
    policy = make_policy("atari")
    plain = make_manifest(policy, RECORDING).digest
    policy.use(Precision(channels_last=True))
    parameters = FlatParameters(policy)
    weight = policy.torso.encoders[0][2].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
    manifest = make_manifest(policy, RECORDING)
    assert manifest.digest != plain
    reader = policy_from_manifest(manifest)
    acting = acting_parameters(reader)
    acting.load_(parameters.export())
    assert torch.equal(reader.torso.encoders[0][2].weight, weight)
    assert reader.precision == Precision(channels_last=True)


def test_bf16_acting_weights_are_cast_once_and_agree_with_autocast() -> None:
    """The torso is kept in bf16 after each load; actions' parameters equal the learner's autocast ones."""
    policy = make_policy("atari")
    policy.use(Precision(dtype="bfloat16", channels_last=True))
    parameters = FlatParameters(policy)
    reader = policy_from_manifest(make_manifest(policy, RECORDING))
    acting = acting_parameters(reader)
    acting.load_(parameters.export())
    assert all(p.dtype == torch.bfloat16 for p in reader.torso.parameters())
    assert reader.head.weight.dtype == torch.float32
    unroll = RandomActor(policy, 3).unroll(3)
    inputs = (unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    for _ in range(2):  # again after new weights
        torch.testing.assert_close(reader(*inputs).params, policy(*inputs).params, atol=2e-2, rtol=2e-2)
        parameters.trained.mul_(1.1)
        acting.load_(parameters.export())


class Normed(Torso):
    """A torso with norms, whose weights autocast leaves alone, and a layer within a layer."""

    def __init__(self, image_shapes: Sequence[ImageShape], vector_size: int) -> None:
        super().__init__()
        norm = nn.LayerNorm(16)
        nn.init.uniform_(norm.weight, 0.7, 1.3)
        self.layers = nn.Sequential(nn.Linear(vector_size, 16), norm, nn.Sequential(nn.ELU(), nn.Linear(16, 16)))
        self.output_size = 16

    def forward(self, images: Sequence[torch.Tensor], vector: torch.Tensor | None) -> torch.Tensor:
        return self.layers(vector)


def test_an_own_torso_in_bf16_acts_exactly_as_it_learns() -> None:
    """Autocast keeps the weights of norms in float32; acting does so too."""
    policy = Policy(make_spec(VECTOR, spaces.Discrete(3)), PolicyConfig(network=f"{__name__}:Normed"))
    policy.use(Precision(dtype="bfloat16"))
    parameters = FlatParameters(policy)
    reader = policy_from_manifest(make_manifest(policy, RECORDING))
    acting_parameters(reader).load_(parameters.export())
    unroll = RandomActor(policy, 3).unroll(3)
    inputs = (unroll.obs, unroll.reward, unroll.first, unroll.action, unroll.state)
    assert torch.equal(reader(*inputs).params, policy(*inputs).params)


def test_a_buffer_of_another_size_is_refused() -> None:
    """Nothing is written then."""
    parameters = FlatParameters(make_policy("mlp"))
    before = parameters.export()
    with pytest.raises(RemoteWireError, match="bytes"):
        parameters.load_(before[:-4])
    assert parameters.export() == before
    parameters.load_(memoryview(before))


def corrupt(change: str) -> str:
    """A manifest's text with one thing wrong."""
    whole = json.loads(make_manifest(make_policy("mlp"), RECORDING).to_json())
    match change:
        case "format":
            whole["format"] = 99
        case "outside":
            whole["tensors"][0][3] = 1 << 30
        case "negative":
            whole["tensors"][0][3] = -16
        case "text":
            whole["tensors"][0][1] = "x"
        case "size":
            whole["num_elements"] = "big"
        case "missing":
            del whole["tensors"]
    return json.dumps(whole)


@pytest.mark.parametrize("change", ["format", "outside", "negative", "text", "size", "missing"])
def test_a_broken_manifest_is_a_remote_error(change: str) -> None:
    """Figures are checked before anything is built."""
    with pytest.raises(RemoteWireError):
        Manifest.from_json(corrupt(change))


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", "[" * 100_000])
def test_text_that_is_no_manifest_is_a_remote_error(text: str) -> None:
    """Whatever the JSON."""
    with pytest.raises(RemoteWireError):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("spec", [1, 2], "spec"),
        ("policy", {"hidden": [8]}, "another layout"),
        ("policy", {"nonsense": 1}, "nonsense"),
        ("policy", {"network": "impala_shallow"}, "cannot be built"),
        ("precision", {"dtype": "int4", "channels_last": False}, "int4"),
        ("precision", {}, "manifest"),
    ],
)
def test_a_manifest_that_contradicts_itself_builds_nothing(key: str, value: object, expected: str) -> None:
    """The error says which part."""
    manifest = make_manifest(make_policy("mlp"), RECORDING)
    wrong = Manifest(manifest.places, manifest.num_elements, manifest.body | {key: value})
    with pytest.raises(RemoteWireError, match=expected):
        policy_from_manifest(wrong)


def test_the_plan_is_the_same_before_and_after_flattening() -> None:
    """Learner and reader may plan at any time."""
    policy = make_policy("composite")
    before = plan_layout(policy)
    FlatParameters(policy)
    assert plan_layout(policy) == before


@pytest.mark.parametrize("tf32", [False, True])
def test_a_manifest_names_tf32_only_where_it_is_used(tf32: bool) -> None:
    """So that older programs can read all other manifests, and newer ones compute as the learner does."""
    policy = make_policy("mlp")
    policy.use(Precision(tf32=tf32))
    manifest = make_manifest(policy, RECORDING)
    assert ("tf32" in manifest.body["precision"]) is tf32
    assert policy_from_manifest(Manifest.from_json(manifest.to_json())).precision == Precision(tf32=tf32)
