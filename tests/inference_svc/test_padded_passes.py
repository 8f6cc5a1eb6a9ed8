"""Passes of fixed sizes: padding changes no answer, and a batch waits for the device once."""

import gc
import weakref

import numpy as np
import pytest
import torch

from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.inference_svc.padded_passes import NUM_WARM_UPS, Outputs, Padding, Pass, choose_padding
from seedbed.inference_svc.unrolls import LatestRow
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.acting import Recording, Sample
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, Manifest, make_manifest
from seedbed.shared.protocol.rows import act_layout
from tests.support.fake_accelerator import META, FakeAccelerator
from tests.support.fed_groups import FedGroups
from tests.support.policy_cases import CASES, make_policy

T = 4
TICKS = 2 * T + 1
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    """How a product is cut into parts depends on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def published(policy: Policy, recording: Recording | None = None) -> tuple[Manifest, bytes]:
    """A policy's manifest and weights."""
    parameters = FlatParameters(policy)
    return make_manifest(policy, recording or Recording(unroll_length=T)), parameters.export()


def fed(case: str, sizes: tuple[int, ...], engine: Engine) -> FedGroups:
    """Groups of these sizes that act together for some ticks."""
    policy = make_policy(case)
    groups = FedGroups(policy.spec, *published(policy), sizes, engine=engine)
    groups.run(TICKS, together=True)
    return groups


def first_group(groups: FedGroups, of: int) -> tuple[list[list[bytes]], list[bytes]]:
    """What the first of so many groups did: the actions of every tick, and its unrolls."""
    return groups.acts[::of], [view.tobytes() for _, views in groups.unrolls[::of] for view in views]


def padded(*sizes: int) -> Engine:
    """An engine on the CPU that pads batches to these sizes."""
    return Engine(CPU, Padding(sizes, is_captured=False))


@pytest.mark.parametrize("case", CASES)
def test_an_answer_does_not_depend_on_how_full_the_pass_is(case: str) -> None:
    """Alone or beside other groups in a pass of one size: the same bits of actions, recorded fields and states."""
    alone = first_group(fed(case, (3,), padded(16)), 1)
    assert alone == first_group(fed(case, (3, 2), padded(16)), 2)
    assert alone == first_group(fed(case, (3, 8, 5), padded(16)), 3)


@pytest.mark.parametrize("case", CASES)
def test_a_full_pass_gives_the_bits_of_an_unpadded_batch(case: str) -> None:
    """Products have the same shapes, so actions, recorded fields and states agree in every bit."""
    assert first_group(fed(case, (9, 7), Engine(CPU)), 1) == first_group(fed(case, (9, 7), padded(16)), 1)


def test_evaluation_and_served_policies_are_padded_too() -> None:
    """Greedy groups with frozen weights act as without padding, while others train."""
    acts = []
    for engine in (Engine(CPU), padded(8)):
        policy = make_policy("lstm")
        groups = FedGroups(policy.spec, *published(policy), (8,), engine=engine)
        lanes = LaneBlock(start=8, count=8, seed=0, rows=LatestRow(), act_layout=act_layout(policy.spec, 8),
                          greedy=True, uses_frozen_weights=True)  # fmt: skip
        engine.forget(lanes)
        engine.freeze()
        found = []
        for tick in range(3):
            groups.write(lanes, first=float(tick == 0))
            found += engine.act([lanes])
            engine.load(tick + 2, None, np.zeros(engine.live.manifest.num_elements, np.float32).tobytes())
        acts.append(found)
    assert acts[0] == acts[1]
    assert len({frame for frames in acts[0] for frame in frames}) > 1


def test_passes_go_on_with_longer_tables() -> None:
    """A group that comes later makes the tables longer; the state of the others stays."""
    acts = []
    for engine in (Engine(CPU), padded(16)):
        policy = make_policy("lstm")
        groups = FedGroups(policy.spec, *published(policy), (8,), engine=engine)
        groups.run(2, together=True)
        engine.reserve(500)
        groups.write(groups.groups[0], first=0.0)
        acts.append([*groups.acts, *engine.act(groups.groups)])
    assert acts[0] == acts[1]


class Recorder:
    """Stands for CUDA graphs: the pass runs again where a graph would be replayed."""

    def __init__(self) -> None:
        self.captured = self.replayed = 0

    def __call__(self, run: Pass) -> Pass:
        self.captured += 1

        def replay() -> Outputs:
            self.replayed += 1
            return run()

        return replay


def test_each_size_is_captured_once_after_its_warm_up() -> None:
    """And then replayed, for batches of any number of lanes that it is padded from."""
    recorder = Recorder()
    engine = Engine(CPU, Padding((8, 16), is_captured=True), make_capture=lambda: recorder)
    policy = make_policy("mlp")
    groups = FedGroups(policy.spec, *published(policy), (5, 6), engine=engine)
    both, one = groups.groups, groups.groups[:1]
    for tick in range(NUM_WARM_UPS + 2):
        for group in both:
            groups.write(group, first=float(tick == 0))
            if group.rows.is_complete:
                groups.keep(group)
        engine.act(both)
    assert (recorder.captured, recorder.replayed) == (1, 2)
    for _ in range(NUM_WARM_UPS + 1):
        groups.write(one[0], first=0.0)
        if one[0].rows.is_complete:
            groups.keep(one[0])
        engine.act(one)
    assert (recorder.captured, recorder.replayed) == (2, 3)


class MemoryPool:
    """Stands for the memory of CUDA graphs: none can be captured into it once all others are gone."""

    def __init__(self) -> None:
        self._graphs: weakref.WeakSet[Pass] = weakref.WeakSet()
        self._is_new = True

    def __call__(self, run: Pass) -> Pass:
        if not self._is_new and not self._graphs:
            raise RuntimeError("the pool is not in use")

        def replay() -> Outputs:
            return run()

        self._is_new = False
        self._graphs.add(replay)
        return replay


def test_graphs_are_captured_again_when_the_tables_grow() -> None:
    """The former ones read and write the former tables; their memory goes with them, so the new ones have their own."""
    reasons: list[str] = []
    engine = Engine(CPU, Padding((8,), is_captured=True), make_capture=MemoryPool, report=reasons.append)
    policy = make_policy("lstm")
    groups = FedGroups(policy.spec, *published(policy), (8,), engine=engine)
    groups.run(2 * NUM_WARM_UPS, together=True)
    engine.reserve(500)
    gc.collect()
    groups.run(2 * NUM_WARM_UPS, together=True)
    assert reasons == []


def test_a_policy_that_cannot_be_captured_acts_all_the_same() -> None:
    """The reason is reported once, and no other size is tried."""

    def refuse(_run: Pass) -> Pass:
        raise RuntimeError("operation not permitted when stream is capturing\nand a stack")

    reasons: list[str] = []
    engine = Engine(CPU, Padding((8, 16), is_captured=True), make_capture=lambda: refuse, report=reasons.append)
    policy = make_policy("lstm")
    groups = FedGroups(policy.spec, *published(policy), (5, 6), engine=engine)
    groups.run(3 * NUM_WARM_UPS, together=True)
    groups.run(3 * NUM_WARM_UPS, together=False)
    assert reasons == ["operation not permitted when stream is capturing"]
    assert len(groups.acts) == 12 * NUM_WARM_UPS


@pytest.mark.parametrize(
    ("padding", "device", "found"),
    [
        ("auto", "cpu", None),
        ("off", "cuda", None),
        ("padded", "cpu", Padding((8, 32), is_captured=False)),
        ("padded", "cuda", Padding((8, 32), is_captured=False)),
        ("graphs", "cuda", Padding((8, 32), is_captured=True)),
        ("auto", "cuda", Padding((8, 32), is_captured=True)),
    ],
)
def test_batches_are_padded_where_the_settings_say_so(padding: str, device: str, found: Padding | None) -> None:
    """By default only on CUDA, and there with graphs."""
    config = InferenceConfig(padding=padding, padded_sizes=[32, 8, 32])
    assert choose_padding(config, torch.device(device)) == found


def test_graphs_need_cuda() -> None:
    """The setting that asks for them elsewhere is named."""
    with pytest.raises(ConfigError, match=r"inference\.padding"):
        choose_padding(InferenceConfig(padding="graphs"), CPU)


@pytest.mark.parametrize("padding", [None, Padding((8,), is_captured=False)])
@pytest.mark.parametrize("case", CASES)
def test_a_batch_waits_for_the_device_once_when_its_results_are_fetched(case: str, padding: Padding | None) -> None:
    """For every kind of policy: inputs are sent, actions and what is recorded fetched, and nothing else moves."""
    policy = make_policy(case)
    accelerator = FakeAccelerator()
    groups = FedGroups(policy.spec, *published(policy), (9, 7), engine=Engine(META, padding))
    num_results = 1 + len(groups.engine.live.wanted)
    with accelerator:
        for tick in range(2):
            for group in groups.groups:
                groups.write(group, first=float(tick == 0))
            sent, fetched = accelerator.num_sent, accelerator.num_fetched
            groups.engine.act(groups.groups)
            assert accelerator.waits == []
            num_states = 2 * len(policy.state_fields) if tick == 0 else 0
            assert accelerator.num_fetched - fetched == num_results + num_states
            if padding is not None:
                assert accelerator.num_sent - sent == 16 // padding.sizes[-1]


def test_epsilon_greedy_waits_for_nothing_either() -> None:
    """The acting rule of R2D2, which records Q."""
    policy = make_policy("lstm")
    recording = Recording(rule="epsilon_greedy", decided=("q", "max_q"), unroll_length=T)
    engine = Engine(META, Padding((8,), is_captured=False))
    groups = FedGroups(policy.spec, *published(policy, recording), (3,), engine=engine)
    groups.write(groups.groups[0], first=1.0)
    with FakeAccelerator() as accelerator:
        engine.act(groups.groups)
    assert (accelerator.waits, accelerator.num_sent, accelerator.num_fetched) == ([], 1, 3 + len(policy.state_fields))


@pytest.mark.parametrize(
    "wait", [lambda x: x.sum().item(), lambda x: x.cpu(), lambda x: torch.tensor([1.0], device=x.device)]
)
def test_a_hidden_wait_is_noticed(wait, monkeypatch) -> None:
    """A value or tensor fetched in between, or a constant sent by hand."""
    assert acting_waits(wait, monkeypatch)


@pytest.mark.parametrize("mistake", [lambda x: x[x > 0], lambda x: x + torch.ones(len(x)), lambda x: x.nonzero()])
def test_a_shape_that_depends_on_values_and_mixed_devices_raise(mistake, monkeypatch) -> None:
    """On a GPU the first two would wait and the third fail."""
    with pytest.raises((AssertionError, NotImplementedError)):
        acting_waits(mistake, monkeypatch)


def acting_waits(work, monkeypatch) -> list[str]:
    """What one batch waits for if the acting rule does this with the values."""
    decide = Sample.decide

    def working(self, distribution, outputs, *args):
        work(outputs.value)
        return decide(self, distribution, outputs, *args)

    monkeypatch.setattr(Sample, "decide", working)
    policy = make_policy("mlp")
    engine = Engine(META)
    groups = FedGroups(policy.spec, *published(policy), (3,), engine=engine)
    groups.write(groups.groups[0], first=1.0)
    with FakeAccelerator() as accelerator:
        engine.act(groups.groups)
    return accelerator.waits
