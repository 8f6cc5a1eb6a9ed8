"""Updates on an accelerator: each optimiser step waits for the device once, and batches arrive without a wait."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.sources.batch import Batch
from seedbed.learner_svc.sources.batch_buffer import batch_buffers
from seedbed.learner_svc.sources.source import allocate
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.config import Precision
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.precision import allow_tf32
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import Flags
from tests.support.devices import DEVICES, NEEDS_CUDA, reported_waits
from tests.support.experience import EPOCH, algorithm_config, random_flags
from tests.support.fake_accelerator import META, FakeAccelerator
from tests.support.policy_cases import CASES, TASKS, make_policy, random_leaf

LANES, T = 6, 7
EXACT = Precision()
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
Q_LEARNING = {"name": "r2d2", "burn_in": 3, "n_step": 2}
Q_CASES = [name for name in CASES if name in ("masked", "lstm", "atari", "colour stack with lstm", "several tasks")]


@dataclass(frozen=True)
class Case:
    """The settings of an algorithm, and how it uses a batch."""

    policy: str
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1
    minibatches: int = 1


UPDATES = {
    **{f"vtrace, {name}": Case(name) for name in CASES},
    **{f"r2d2, {name}": Case(name, Q_LEARNING) for name in Q_CASES},
    "vtrace, every option": Case(
        "lstm",
        {
            "value_normalisation": "popart", "entropy_target": 0.9, "entropy_cost": 0.01, "kl_cost": 0.1,
            "normalise_advantage": True, "optimizer": "rmsprop", "reward_clip": 1.0, "reward_transform": "asymmetric",
        },
        passes=2,
    ),
    "vtrace, values of tasks": Case("several tasks", {"value_normalisation": "popart"}, minibatches=2),
    "appo": Case("masked", {"name": "appo", "kl_target": 0.01}, passes=3, minibatches=2),
    "appo, gae": Case(
        "colour stack with lstm",
        {"name": "appo", "targets": "gae", "value_clip": 0.2, "value_normalisation": "popart", "entropy_target": 1.0},
        minibatches=3,
    ),
    "r2d2, zero states": Case("lstm", Q_LEARNING | {"stored_state": "zero"}, minibatches=2),
}  # fmt: skip


def make_updater(case: Case, device: torch.device, policy: Policy | None = None) -> Updater:
    """An updater of the case's policy, or of another one."""
    policy = (policy or make_policy(case.policy)).to(device)
    config = algorithm_config(dict(case.algorithm))
    return Updater(policy, FlatParameters(policy), config, passes=case.passes, minibatches=case.minibatches)


def make_arrays(policy: Policy, recording: Recording) -> tuple[Any, list[np.ndarray]]:
    """A batch's record and its arrays, random rows with every kind of flag."""
    record = recording.make_record(policy.spec, policy.state_fields)
    random, rows = np.random.default_rng(0), record.num_rows
    arrays = {item.name: np.zeros(item.array_shape(rows, LANES), item.dtype) for item in record.fields}
    for name, leaf in zip(record.step_names, policy.spec.observation.leaves(), strict=False):
        arrays[name][...] = random_leaf(leaf, rows * LANES, random).reshape(rows, LANES, *leaf.wire_shape)
    arrays["flags"][...] = random_flags(random, rows, LANES)
    arrays["flags"][2:4, 1] |= np.uint8(Flags.ABSENT)
    arrays["version"] = np.full((rows - 1, LANES), pack_version(EPOCH, 0))
    return record, list(arrays.values())


def run(updater: Updater, batch: Batch, tasks: bool) -> Any:
    """One update on a batch of replayed lanes, of some of which the observations were counted before."""
    fresh_B = np.arange(LANES) % 2 == 0
    return updater.update(
        batch, step=0, trained_steps=0, max_policy_lag=3, version_now=pack_version(EPOCH, 1),
        task_B=np.arange(LANES) % len(TASKS) if tasks else None, weight_B=np.ones(LANES, np.float32), fresh_B=fresh_B,
    )  # fmt: skip


@pytest.mark.parametrize("name", UPDATES)
def test_each_optimiser_step_waits_for_the_device_once(name: str) -> None:
    """For its loss, norms and metrics together; and the batch is there before the update begins."""
    case = UPDATES[name]
    updater = make_updater(case, META)
    recording = updater.algorithm.recording(updater.config, T)
    record, arrays = make_arrays(updater.policy, recording)
    (buffer,) = batch_buffers(record, [arrays], META)
    with FakeAccelerator() as accelerator:
        buffer.send()
        assert accelerator.num_sent == len(record.fields) - 1  # all but the versions, which stay on the host
        result = run(updater, buffer, bool(updater.policy.tasks))
        fields_sent = accelerator.num_sent
        run(updater, buffer, bool(updater.policy.tasks))
    assert result.applied
    assert len(accelerator.waits) == 2 * case.passes * case.minibatches
    assert accelerator.num_fetched == 0
    assert accelerator.num_sent - fields_sent < len(record.fields) + 10 * case.passes * case.minibatches


def test_a_buffer_on_the_cpu_is_not_copied() -> None:
    """Its memory is that of the source's arrays."""
    updater = make_updater(Case("mlp"), CPU)
    record, arrays = make_arrays(updater.policy, updater.algorithm.recording(updater.config, T))
    (buffer,) = batch_buffers(record, [arrays], CPU)
    buffer.send()
    with buffer.on(CPU) as there:
        assert all(np.shares_memory(there[item.name].numpy(), a) for item, a in zip(record.fields, arrays, strict=True))


def trained(name: str, device: torch.device, precision: Precision = EXACT) -> tuple[list[dict[str, float]], np.ndarray]:
    """The metrics of some updates on two buffers by turns, each copied during the update before it, and the weights."""
    case = UPDATES[name]
    policy = make_policy(case.policy)
    policy.use(precision)
    updater = make_updater(case, device, policy)
    tasks = bool(policy.tasks)
    record, arrays = make_arrays(policy, updater.algorithm.recording(updater.config, T))
    memory = [allocate(record, LANES, is_pinned=device.type == "cuda") for _ in range(2)]
    buffers, metrics = batch_buffers(record, memory, device), []
    fill(memory[0], arrays)
    buffers[0].send()
    for step in range(6):
        after = (step + 1) % 2
        fill(memory[after], [np.roll(array, step, 0 if array.ndim == 1 else 1) for array in arrays])
        buffers[after].send()
        metrics.append(run(updater, buffers[step % 2], tasks).metrics)
    return metrics, np.frombuffer(updater.parameters.export(), np.float32)


def fill(memory: list[np.ndarray], arrays: list[np.ndarray]) -> None:
    """Write a batch into a buffer."""
    for target, array in zip(memory, arrays, strict=True):
        target[...] = array


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *((CPU, name) for name in ("vtrace, mlp", "r2d2, lstm")),
        *(pytest.param(CUDA, name, marks=NEEDS_CUDA) for name in UPDATES),
    ],
)
def test_a_device_makes_the_updates_of_the_cpu(device: torch.device, name: str) -> None:
    """Metrics and weights, up to rounding."""
    metrics, weights = trained(name, device)
    expected, expected_weights = trained(name, CPU)
    for ours, theirs in zip(metrics, expected, strict=True):
        assert ours.keys() == theirs.keys()
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3, abs=1e-4)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("precision", [Precision(dtype="bfloat16", channels_last=True), Precision(tf32=True)])
@pytest.mark.parametrize("device", DEVICES)
def test_lower_precision_changes_the_first_loss_little(device: torch.device, precision: Precision) -> None:
    """The torso's rounding is all that differs."""
    allow_tf32(precision.tf32)
    try:
        low, _ = trained("vtrace, atari", device, precision)
    finally:
        allow_tf32(False)
    exact, _ = trained("vtrace, atari", CPU)
    assert low[0]["loss"] == pytest.approx(exact[0]["loss"], rel=0.1)


@NEEDS_CUDA
@pytest.mark.parametrize("name", UPDATES)
def test_cuda_reports_one_wait_for_each_optimiser_step(name: str) -> None:
    """It warns of every operation that waits."""
    case = UPDATES[name]
    updater = make_updater(case, CUDA)
    record, arrays = make_arrays(updater.policy, updater.algorithm.recording(updater.config, T))
    memory = [allocate(record, LANES, is_pinned=True)]
    fill(memory[0], arrays)
    (buffer,) = batch_buffers(record, memory, CUDA)
    buffer.send()
    run(updater, buffer, bool(updater.policy.tasks))
    buffer.send()
    with reported_waits("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(updater, buffer, bool(updater.policy.tasks))
    waits = [str(item.message) for item in caught if "synchroniz" in str(item.message)]
    assert len(waits) == case.passes * case.minibatches
