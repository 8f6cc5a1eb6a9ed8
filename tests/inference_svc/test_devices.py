"""The engine on a GPU: the answers of the CPU, by captured graphs, in every precision, with one wait for a batch.

What can be, is tried on the CPU as well, so that these tests themselves are known to run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from seedbed.inference_svc.engine import Engine
from seedbed.inference_svc.padded_passes import NUM_WARM_UPS, Padding
from seedbed.shared.policy.acting import Recording, Sample
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.precision import allow_tf32
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from tests.support.devices import DEVICES, NEEDS_CUDA, reported_waits
from tests.support.fed_groups import FedGroups
from tests.support.policy_cases import CASES, make_policy

T = 4
TICKS = NUM_WARM_UPS + 2 * T + 1
SIZES = (5, 2, 4)  # lanes of the groups
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True)
class Way:
    """Where and how an engine runs batches."""

    device: torch.device
    padding: Padding | None


GRAPHS = Way(CUDA, Padding((8, 16), is_captured=True))
WAYS = {
    "cpu, padded": Way(CPU, Padding((8, 16), is_captured=False)),
    "cpu, several passes": Way(CPU, Padding((8,), is_captured=False)),
    "cuda": Way(CUDA, None),
    "cuda, padded": Way(CUDA, Padding((8, 16), is_captured=False)),
    "cuda, graphs": GRAPHS,
    "cuda, graphs, several passes": Way(CUDA, Padding((8,), is_captured=True)),
}
PARAMETERS = [
    pytest.param(way, marks=[NEEDS_CUDA] * (way.device.type == "cuda"), id=name) for name, way in WAYS.items()
]


@pytest.fixture(autouse=True)
def tf32_is_off() -> Iterator[None]:
    """An engine's manifest says whether TF32 is used, and that holds for the process."""
    yield
    allow_tf32(False)


def acted(policy: Policy, way: Way, sizes: Sequence[int] = SIZES, **engine: object) -> FedGroups:
    """Groups that acted together for some ticks, with other weights from the middle on."""
    parameters = FlatParameters(policy)
    manifest = make_manifest(policy, Recording(unroll_length=T))
    made = Engine(way.device, way.padding, **engine)
    groups = FedGroups(policy.spec, manifest, parameters.export(), sizes, engine=made)
    groups.run(TICKS, together=True)
    parameters.flat.mul_(0.5)
    made.load(2, None, parameters.export())
    groups.run(TICKS, together=True)
    return groups


def differences(groups: FedGroups, others: FedGroups) -> list[float]:
    """The largest difference of each array of the unrolls."""
    return [
        float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max())
        for (_, mine), (_, yours) in zip(groups.unrolls, others.unrolls, strict=True)
        for ours, theirs in zip(mine, yours, strict=True)
    ]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", PARAMETERS)
def test_a_device_gives_the_answers_of_the_cpu(way: Way, case: str) -> None:
    """Actions, recorded fields and states, up to rounding."""
    groups = acted(make_policy(case), way)
    assert max(differences(groups, acted(make_policy(case), Way(CPU, None)))) < 1e-3
    assert groups.unrolls


@NEEDS_CUDA
@pytest.mark.parametrize("case", CASES)
def test_a_graph_gives_the_answers_of_the_pass_that_it_was_captured_from(case: str) -> None:
    """With new weights and several passes too."""
    captured, plain = (Way(CUDA, Padding((8,), is_captured=is_captured)) for is_captured in (True, False))
    assert max(differences(acted(make_policy(case), captured), acted(make_policy(case), plain))) < 1e-5


@pytest.mark.parametrize("precision", [Precision(dtype="bfloat16", channels_last=True), Precision(tf32=True)])
@pytest.mark.parametrize("way", PARAMETERS)
def test_lower_precision_changes_little(way: Way, precision: Precision) -> None:
    """Log-probabilities of the same actions are those of float32 up to the rounding of eight or ten bits."""
    low, exact = make_policy("atari"), make_policy("atari")
    low.use(precision)
    log_prob = [
        [view for item, view in zip(groups.record.fields, views, strict=True) if item.name == "log_prob"]
        for groups in (acted(low, way), acted(exact, Way(CPU, None)))
        for _, views in groups.unrolls[: len(SIZES)]
    ]
    half = len(log_prob) // 2
    distance = np.concatenate(
        [np.abs(a - b).ravel() for (a,), (b,) in zip(log_prob[:half], log_prob[half:], strict=True)]
    )
    assert np.median(distance) < 0.05  # few of the sampled actions are others


@NEEDS_CUDA
@pytest.mark.parametrize("padding", [None, Padding((16,), is_captured=False), Padding((8,), is_captured=True)])
def test_a_batch_waits_for_a_gpu_only_to_fetch_its_results(padding: Padding | None) -> None:
    """CUDA itself reports every other wait as an error; the batch's own is that of its stream."""
    policy = make_policy("composite")
    manifest = make_manifest(policy, Recording(unroll_length=T))
    engine = Engine(CUDA, padding)
    groups = FedGroups(policy.spec, manifest, FlatParameters(policy).export(), SIZES, engine=engine)
    groups.run(TICKS, together=True)
    with reported_waits("error"):
        groups.run(2 * T, together=True)


@NEEDS_CUDA
def test_a_policy_that_waits_for_a_gpu_acts_without_graphs(monkeypatch) -> None:
    """Its capture fails, which is reported once; its answers are right, and the GPU's random numbers can be drawn."""
    expected = acted(make_policy("lstm"), WAYS["cuda, padded"]).acts
    decide = Sample.decide

    def waiting(self, distribution, outputs, *args):
        float(outputs.value.sum())
        return decide(self, distribution, outputs, *args)

    monkeypatch.setattr(Sample, "decide", waiting)
    reasons: list[str] = []
    assert acted(make_policy("lstm"), GRAPHS, report=reasons.append).acts == expected
    assert len(reasons) == 1
    assert torch.rand(8, device=CUDA).unique().numel() > 1


@pytest.mark.parametrize("device", DEVICES)
def test_weights_come_back_as_they_were_loaded(device: torch.device) -> None:
    """Through page-locked memory, on a GPU."""
    policy = make_policy("lstm")
    weights = FlatParameters(policy).export()
    parameters = FlatParameters(make_policy("lstm", seed=1).to(device))
    parameters.load_(weights)
    assert parameters.export() == weights
