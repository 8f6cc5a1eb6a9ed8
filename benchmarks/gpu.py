"""All that a machine with a GPU is needed for, in one command of at most ten minutes; JSON lines.

    .venv/bin/python benchmarks/gpu.py
    .venv/bin/python benchmarks/gpu.py --only inference learner
    .venv/bin/python benchmarks/gpu.py --device cpu          # tries every part of this program, with small bounds

| part | says |
|---|---|
| tests | whether the tests that know devices pass |
| identity | how far acting and learning are apart at equal weights: mean |log π - log μ| at lag 0, by precision |
| cartpole | whether CartPole is solved, and in how many seconds of training |
| pong | trained steps per second of Pong with all services |
| inference | requests and rows per second of one engine, by batch size: as they come, padded, as captured graphs |
| learner | rows per second of one update thread, by network and precision; batches are copied during updates |
| deterministic | whether two runs with the same seed have the same weights, by algorithm |

Each part is a process of its own with a bound; what fails or takes too long is reported, and the others go on. A
request is the STEP of a group of eight lanes, and a row one lane's. Exit status 1 means that a part failed.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from rich.console import Console

from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.inference_svc.padded_passes import NUM_WARM_UPS, Padding
from seedbed.inference_svc.unrolls import CompleteUnroll, UnrollWriter
from seedbed.learner_svc.algorithms.registry import make_source
from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.learning.trainer import Trainer
from seedbed.learner_svc.ranks.ranks import ALONE
from seedbed.learner_svc.run.checkpoint import load_latest
from seedbed.learner_svc.sources.batch_buffer import BatchBuffer, batch_buffers
from seedbed.services.tools.cli.app import log_warnings_only
from seedbed.services.tools.cli.bench.experiment import measure
from seedbed.services.tools.cli.experiment import find_experiment
from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.run_state import read_object
from seedbed.services.tools.cli.seeds import RESULT, train_seeds
from seedbed.shared.errors import SeedbedError
from seedbed.shared.figures import columns
from seedbed.shared.policy.policy import POLICY_GAIN
from seedbed.shared.policy.precision import TF32, has_tf32
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.recording import ACTION, VERSION
from seedbed.shared.protocol.rows import EnvSpec, Flags, act_layout
from seedbed.shared.protocol.spaces import Leaf, space_from_gymnasium

Line = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/inference_svc/test_devices.py", "tests/inference_svc/test_padded_passes.py",
    "tests/learner_svc/test_accelerator.py", "tests/shared/policy/test_transfers.py",
)  # fmt: skip
GROUP_LANES = 8
BATCH_LANES = (8, 32, 64, 128, 256, 512, 1024, 2048)
SOLVED = 475.0  # CartPole's return
DETERMINISTIC = {
    "vtrace": ("cartpole", "run.steps=200000"),
    "appo": ("cartpole", "run.steps=200000", "algorithm.name=appo", "learner.reuse=2", "learner.minibatches=2"),
    "r2d2": ("cartpole_r2d2", "run.steps=40000"),
}
NEEDS_CUDA = "needs a CUDA device"
GRACE_S = 10.0  # for a part to end when it is asked to
EPOCH = 1


@dataclass(frozen=True)
class Network:
    """A network, the environment that it is for, and what it is trained with."""

    observation: spaces.Space[Any]
    policy: Mapping[str, Any]
    learner: Mapping[str, Any]
    num_actions: int = 6
    image: str = ""
    algorithm: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> EnvSpec:
        """The specification of the environment."""
        return EnvSpec(
            env_id="bench",
            observation=space_from_gymnasium(self.observation, image=self.image),
            action=space_from_gymnasium(spaces.Discrete(self.num_actions), image=None),
        )


ATARI = spaces.Box(0, 255, (84, 84), np.uint8)
SHALLOW = {"network": "impala_shallow", "stack": 4, "normalise_observation": True}
NETWORKS = {
    "mlp": Network(
        spaces.Box(-10.0, 10.0, (4,), np.float32), {"hidden": [64, 64]}, {"unroll_length": 32, "batch": 512}, 2
    ),
    "lstm": Network(
        spaces.Box(-10.0, 10.0, (4,), np.float32), {"hidden": [64], "lstm": 64}, {"unroll_length": 32, "batch": 64}
    ),
    "impala_shallow": Network(ATARI, SHALLOW, {"unroll_length": 20, "batch": 64}),
    "impala_deep": Network(
        spaces.Box(0, 255, (64, 64, 3), np.uint8), {"network": "impala_deep"}, {"unroll_length": 32, "batch": 64}, 15,
        image="HWC",
    ),
    "r2d2": Network(
        ATARI, SHALLOW | {"lstm": 512}, {"unroll_length": 80, "batch": 64},
        algorithm={"name": "r2d2", "burn_in": 40, "replay_sequences": 64, "replay_start": 64},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Bounds:
    """The device, and how long a part may take, seconds."""

    device: torch.device
    seconds: float

    @property
    def is_small(self) -> bool:
        """Whether only the program is tried, on a machine without a GPU."""
        return self.device.type == "cpu"


# The parts


def run_tests(bounds: Bounds) -> Iterator[Line]:
    """Run the tests that know devices; those for a GPU are skipped where there is none."""
    with tempfile.TemporaryDirectory(prefix="seedbed-gpu-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *TESTS]
        code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
        suite = ElementTree.parse(report).getroot().find("testsuite")
        assert suite is not None
        numbers = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
        cases = [(f"{case.get('classname')}::{case.get('name')}", case) for case in suite.iter("testcase")]
        failed = [name for name, case in cases if case.find("failure") is not None or case.find("error") is not None]
        skipped = {name.partition("[")[0] for name, case in cases if case.find("skipped") is not None}
        yield numbers | {"failed": failed, "skipped_in": sorted(skipped)}
    if code:
        raise SeedbedError(f"{len(failed)} tests failed")


def measure_identity(bounds: Bounds) -> Iterator[Line]:
    """Act with an engine, and train once on what it recorded, at equal weights."""
    yield from skipped_precisions(bounds)
    for name in ("mlp", "lstm", "impala_shallow", "impala_deep"):
        for precision in precisions(bounds.device):
            learner = Learner(name, precision, bounds, batch=GROUP_LANES)
            with torch.no_grad():  # an untrained policy is nearly uniform, whatever its network computes
                learner.trainer.policy.head.weight.mul_(1 / POLICY_GAIN)
            padding = Padding((GROUP_LANES,), is_captured=not bounds.is_small)
            engine, (group,) = learner.start_acting(padding=padding)
            rows = Rows(learner.trainer, group)
            while not (unrolls := rows.write(group)):
                engine.act([group])
            (unroll,) = unrolls
            views = learner.trainer.record.layout(GROUP_LANES).views([unroll.buffer])
            learner.fill(0, views)
            metrics = learner.train(0).result.metrics
            yield {
                "network": name, "precision": precision, "lanes": GROUP_LANES, "rows": learner.trainer.record.num_rows,
                "log_rho_lag0": metrics[columns.LOG_RHO_LAG0.name],
            }  # fmt: skip


def solve_cartpole(bounds: Bounds) -> Iterator[Line]:
    """Train the experiment until an evaluation says that it is solved; then play on other seeds."""
    limits = ["launch.video=false", f"run.seconds={bounds.seconds / 2}", *on_device(bounds.device)]
    with tempfile.TemporaryDirectory(prefix="seedbed-gpu-") as folder:
        place = Path(folder) / "seeds"
        code = train_seeds(
            find_experiment("cartpole"), limits, 1, run_dir=place, resume=False, console=Console(stderr=True),
            episodes=100,
        )  # fmt: skip
        if code:
            raise SeedbedError(f"training ended with exit code {code}")
        found = read_object(place / RESULT)["seeds"][0]
    yield {"is_solved": found["fresh_return_mean"] >= SOLVED} | found
    if found["fresh_return_mean"] < SOLVED:
        raise SeedbedError(f"the mean return is {found['fresh_return_mean']}, expected {SOLVED} or more")


def measure_pong(bounds: Bounds) -> Iterator[Line]:
    """Train Pong with as many actors as there are cores for them, and batches of twice the experiment's size."""
    actors = max(2, usable_cores() - 3)
    words = [f"launch.actors={actors}", "launch.eval_actors=0", "learner.batch=24", *on_device(bounds.device)]
    yield from measure("pong", 0.3 * bounds.seconds, words)


def measure_inference(bounds: Bounds) -> Iterator[Line]:
    """Act for more and more lanes, in every way that the device has."""
    ways = {"off": None, "padded": False, "graphs": True}
    if bounds.is_small:
        del ways["graphs"]
        yield {"padding": "graphs", "skipped": NEEDS_CUDA}
    names = ("mlp",) if bounds.is_small else ("impala_shallow", "mlp")
    sizes = BATCH_LANES[:3] if bounds.is_small else BATCH_LANES
    share_s = 0.5 * bounds.seconds / (len(ways) * len(names) * len(sizes))
    for name in names:
        learner = Learner(name, "fp32", bounds, batch=GROUP_LANES)
        for way, is_captured in ways.items():
            padding = None if is_captured is None else Padding(sizes, is_captured=is_captured)
            uncaptured: list[str] = []
            for lanes in sizes:
                engine, groups = learner.start_acting(lanes, padding, uncaptured.append)
                rows = Rows(learner.trainer, groups[0])
                seconds = np.array(list(act_for(share_s, engine, groups, rows)))
                yield {
                    "network": name, "padding": way, "lanes": lanes, "batches": len(seconds),
                    "requests_per_s": round(len(groups) / seconds.mean(), 1),
                    "rows_per_s": round(lanes / seconds.mean(), 1),
                    "p50_ms": round(1e3 * float(np.median(seconds)), 4),
                    "p99_ms": round(1e3 * float(np.percentile(seconds, 99)), 4),
                } | ({"uncaptured": uncaptured[0]} if uncaptured else {})  # fmt: skip


def measure_learner(bounds: Bounds) -> Iterator[Line]:
    """Train on two batches by turns; while one is trained on, the other one is copied, as in a run."""
    names = ("impala_shallow", "impala_deep", "r2d2")
    chosen = precisions(bounds.device)
    yield from skipped_precisions(bounds)
    share_s = 0.3 * bounds.seconds / (len(names) * len(chosen))
    for name in names:
        for precision in chosen:
            learner = Learner(name, precision, bounds, batch=1 if bounds.is_small else None)
            for index in range(2):
                learner.fill_at_random(index)
                learner.buffers[index].send()
            learner.train(0)
            learner.buffers[0].send()
            learner.train(1)
            began, trained, updates = time.perf_counter(), 0, 0
            while (spent := time.perf_counter() - began) < share_s or not updates:
                learner.buffers[(updates + 1) % 2].send()
                trained += learner.train(updates % 2).result.valid_steps
                updates += 1
            settings, used = learner.settings.learner, learner.trainer.policy.precision
            yield {
                "network": name, "precision": precision, "channels_last": used.channels_last, "batch": settings.batch,
                "unroll_length": settings.unroll_length, "updates": updates,
                "rows_per_s": round(trained / spent, 1), "update_ms": round(1e3 * spent / updates, 3),
            }  # fmt: skip


def compare_deterministic_runs(bounds: Bounds) -> Iterator[Line]:
    """Train by each algorithm in two runs of one seed, side by side in deterministic mode; compare their weights."""
    differing = []
    for algorithm, words in DETERMINISTIC.items():
        with tempfile.TemporaryDirectory(prefix="seedbed-gpu-") as folder:
            folders = [Path(folder) / name for name in ("first", "second")]
            command = [
                sys.executable, "-m", "seedbed.services.tools.cli.app", "train", *words, *on_device(bounds.device),
                "run.deterministic=true", "eval.episodes=2", "launch.video=false", "--run-dir",
            ]  # fmt: skip
            runs = [subprocess.Popen([*command, str(place)], stdout=subprocess.DEVNULL) for place in folders]
            codes = [run.wait() for run in runs]
            if any(codes):
                raise SeedbedError(f"training by {algorithm} failed in deterministic mode")
            first, second = (load_latest(place / "checkpoints") for place in folders)
            assert first is not None
            assert second is not None
            names = [name for name, array in first.arrays.items() if not np.array_equal(array, second.arrays[name])]
            yield {"algorithm": algorithm, "updates": first.step, "arrays": len(first.arrays), "differing": names}
            differing += names
    if differing:
        raise SeedbedError("two runs with the same seed differ")


PARTS: Mapping[str, tuple[Callable[[Bounds], Iterator[Line]], float, float]] = {
    # name: (function, its seconds on a GPU, and on a CPU)
    "tests": (run_tests, 90.0, 180.0),
    "identity": (measure_identity, 40.0, 90.0),
    "cartpole": (solve_cartpole, 80.0, 100.0),
    "pong": (measure_pong, 110.0, 70.0),
    "inference": (measure_inference, 80.0, 50.0),
    "learner": (measure_learner, 110.0, 100.0),
    "deterministic": (compare_deterministic_runs, 90.0, 150.0),
}


# What they are made of


def precisions(device: torch.device) -> list[str]:
    """Return the precisions that the device computes in."""
    return ["fp32", *([TF32] if has_tf32(device) else []), "bf16"]


def skipped_precisions(bounds: Bounds) -> Iterator[Line]:
    """Yield a line for TF32 where the device does not have it."""
    if not has_tf32(bounds.device):
        yield {"precision": TF32, "skipped": "needs a CUDA device that has TF32"}


def on_device(device: torch.device) -> list[str]:
    """Return the settings that have a run's networks computed there."""
    return [f"learner.device={device.type}", f"inference.device={device.type}"]


class Learner:
    """A trainer, the buffers that its batches are in, and engines that act with its weights."""

    def __init__(self, name: str, precision: str, bounds: Bounds, *, batch: int | None) -> None:
        """Build the network of this name. `batch`: lanes, instead of the network's own number."""
        network, self._folder = NETWORKS[name], tempfile.TemporaryDirectory(prefix="seedbed-gpu-")
        learner = {**network.learner, "precision": precision, "device": bounds.device.type}
        if batch is not None:
            learner["batch"] = batch
        self.settings = LearnerSettings.model_validate(
            {"env": {"id": "bench"}, "policy": network.policy, "learner": learner, "algorithm": dict(network.algorithm)}
        )
        folder = Path(self._folder.name)
        self.trainer = Trainer(self.settings, folder, None, epoch=EPOCH, origin=network.spec)
        self.device = self.trainer.updater.device
        self._arrays = make_source(self.settings, self.trainer.record, folder, device=self.device).buffers
        self.buffers: Sequence[BatchBuffer] = batch_buffers(self.trainer.record, self._arrays, self.device)

    def fill(self, index: int, arrays: Sequence[Array]) -> None:
        """Write a batch into a buffer, and send it to the device."""
        for target, array in zip(self._arrays[index], arrays, strict=True):
            target[...] = array if target.ndim == array.ndim else array[:, None]
        self.buffers[index].send()

    def fill_at_random(self, index: int) -> None:
        """Write random observations and rewards, acted by the present weights."""
        record, generator = self.trainer.record, np.random.default_rng(index)
        arrays = dict(zip((item.name for item in record.fields), self._arrays[index], strict=True))
        for name, leaf in zip(record.step_names, self.trainer.policy.spec.observation.leaves(), strict=False):
            arrays[name][...] = random_rows(leaf, arrays[name].shape, generator)
        arrays["reward"][...] = generator.standard_normal(arrays["reward"].shape)
        arrays[ACTION][...] = generator.integers(0, 2, arrays[ACTION].shape)
        arrays[VERSION][...] = pack_version(EPOCH, 0)

    def train(self, index: int) -> Any:
        """Train on a buffer's batch, whatever its lag."""
        self.trainer.max_policy_lag = 1 << 30
        counted = self.trainer.count(self.buffers[index])
        counts = self.trainer.agree(counted, ALONE.gather(counted.numbers))
        return self.trainer.train(counted, counts, wants_weights=False, wants_snapshot=False)

    def start_acting(
        self, lanes: int = GROUP_LANES, padding: Padding | None = None,
        report: Callable[[str], None] = lambda _reason: None,
    ) -> tuple[Engine, list[LaneBlock]]:  # fmt: skip
        """Return an engine with the present weights, and its groups."""
        engine = Engine(self.device, padding, report=report)
        engine.load(self.trainer.version, self.trainer.manifest, self.trainer.weights()[1])
        spec, record = self.trainer.policy.spec, engine.live.record
        groups = [
            LaneBlock(
                start=start, count=GROUP_LANES, seed=start, rows=UnrollWriter(record, GROUP_LANES),
                act_layout=act_layout(spec, GROUP_LANES), greedy=False, uses_frozen_weights=False,
            )
            for start in range(0, lanes, GROUP_LANES)
        ]  # fmt: skip
        engine.reserve(lanes)
        for group in groups:
            engine.forget(group)
        return engine, groups


class Rows:
    """The rows of a group: random observations, and an episode that begins at the first."""

    def __init__(self, trainer: Trainer, group: LaneBlock) -> None:
        generator, spec = np.random.default_rng(0), trainer.policy.spec
        leaves = [random_rows(leaf, (group.count, *leaf.wire_shape), generator) for leaf in spec.observation.leaves()]
        self._inputs = [*leaves, np.zeros(group.count, np.float32)]
        self._flags = np.zeros(group.count, np.uint8)

    def write(self, group: LaneBlock) -> Sequence[CompleteUnroll]:
        """Write the rows of the group's next tick, and return the unrolls that these complete."""
        assert isinstance(group.rows, UnrollWriter)
        group.tick += 1
        group.rows.write([*self._inputs, self._flags if group.tick else self._flags | Flags.FIRST])
        return group.rows.complete() if group.rows.is_complete else ()


def random_rows(leaf: Leaf, shape: Sequence[int], generator: np.random.Generator) -> Array:
    """Return random pixels, or normal numbers."""
    if leaf.image:
        return generator.integers(0, 255, shape, np.uint8)
    return generator.standard_normal(shape).astype(leaf.wire_dtype)


def act_for(seconds: float, engine: Engine, groups: Sequence[LaneBlock], rows: Rows) -> Iterator[float]:
    """Yield how long each batch took in this time, seconds, after those in which graphs are captured."""

    def act() -> float:
        for group in groups:
            rows.write(group)
        start = time.perf_counter()
        engine.act(groups)
        return time.perf_counter() - start

    for _ in range(NUM_WARM_UPS + 1):
        act()
    began = time.perf_counter()
    yield act()
    while time.perf_counter() - began < seconds:
        yield act()


# The program


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts, or those that are named; return 0 if all of them succeeded, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), metavar="PART")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)  # of the process of one part
    chosen = parser.parse_args(argv)
    device = torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("this PyTorch finds no CUDA device; --device cpu tries the program without one")
    if chosen.inside:
        (name,) = chosen.only
        return run_inside(name, device)
    print_line({"part": "machine", **describe(device)})
    began = time.monotonic()
    is_good = [run_part(name, device) for name in chosen.only]
    print_line({"part": "all", "seconds": round(time.monotonic() - began, 1), "failed": is_good.count(False)})
    return int(not all(is_good))


def describe(device: torch.device) -> Line:
    """Return what the figures depend on."""
    found: Line = {
        "device": device.type,
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        found |= {
            "gpu": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
            "gpu_bytes": torch.cuda.get_device_properties(0).total_memory, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }  # fmt: skip
    return found


def run_part(name: str, device: torch.device) -> bool:
    """Run one part in a process of its own; return whether it succeeded in its time."""
    began, seconds = time.monotonic(), bound_s(name, device)
    command = [sys.executable, __file__, "--inside", "--device", device.type, "--only", name]
    part = subprocess.Popen(command, start_new_session=True)
    failure = ""
    try:
        code = part.wait(seconds)
        failure = f"exit status {code}" if code else ""
    except subprocess.TimeoutExpired:
        failure = f"not over after {seconds:g} s"
    finally:
        end_session(part)
    line: Line = {"part": name, "ended": True, "seconds": round(time.monotonic() - began, 1)}
    print_line(line | ({"failure": failure} if failure else {}))
    return not failure


def bound_s(name: str, device: torch.device) -> float:
    """Return how long a part may take, seconds."""
    _, on_gpu, on_cpu = PARTS[name]
    return on_cpu if device.type == "cpu" else on_gpu


def end_session(part: "subprocess.Popen[bytes]") -> None:
    """End a part and what it started: it is asked to, and killed after a while."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(part.pid, number)
        with suppress(subprocess.TimeoutExpired):
            part.wait(GRACE_S)
            return


def run_inside(name: str, device: torch.device) -> int:
    """Print the results of one part, and return its exit status."""
    log_warnings_only()
    try:
        for line in PARTS[name][0](Bounds(device, bound_s(name, device))):
            print_line({"part": name, **line})
    except SeedbedError as error:
        print_line({"part": name, "failure": str(error)})
        return 1
    return 0


def print_line(line: Line) -> None:
    """Print a result at once, so that it is not lost with its process."""
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
