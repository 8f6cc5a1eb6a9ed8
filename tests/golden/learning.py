"""Golden records of acting and learning: what a fixed sequence of rows becomes, as digests and figures.

    python -m tests.golden.learning > tests/golden/learning.json    records anew what this code does

Groups of lanes play random rows, inference's engine acts and records, the learner cuts batches and updates, and the
engine takes the new weights: once around for every update. Arithmetic is pinned as far as it can be (one thread, no
instructions that only some processors have), yet its last bits belong to one processor and one release of torch: the
digests hold where `machine()` is the same, the figures everywhere.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from pydantic import TypeAdapter

from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.learner_svc.algorithms.config import AlgorithmConfig
from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.run.tasks import lane_tasks
from seedbed.learner_svc.sources.batch import Batch
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters, make_manifest
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import Flags, act_layout
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.tasks import TaskConfig
from tests.support.experience import random_flags
from tests.support.policy_cases import CASES, random_leaf

RECORDED = Path(__file__).with_suffix(".json")
EPOCH, T, BATCH = 3, 5, 6
GROUPS = (3, 1, 5, 4)  # lanes; none of them divides a batch
NUM_UPDATES = 6
PINNED = {
    "OMP_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A policy of `policy_cases` and the settings that it learns with."""

    policy: str
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 1
    minibatches: int = 1
    max_unroll_bytes: int = 8 << 20  # less: groups are cut into chunks
    max_policy_lag: int = 3
    task_scales: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})  # equal shares


LEARNING = {
    "vtrace": Case(policy="mlp"),
    "vtrace, every option": Case(
        policy="lstm",
        algorithm={
            "value_normalisation": "popart", "entropy_target": 0.9, "entropy_cost": 0.01, "kl_cost": 0.1,
            "normalise_advantage": True, "optimizer": "rmsprop", "grad_clip": 0.5,
            "rho_clip": 2.0, "c_clip": 0.9, "pg_rho_clip": 1.5,
        },
        passes=2,
    ),
    "vtrace, continuous": Case(
        policy="box", algorithm={"value_normalisation": "returns", "reward_clip": 1.0, "reward_scale": 0.5}
    ),
    "vtrace, frames": Case(policy="atari", max_unroll_bytes=20_000),
    "vtrace, composite": Case(policy="composite", max_policy_lag=64),
    "vtrace, two tasks": Case(policy="masked", task_scales={"easy": 1.0, "hard": 0.1}),
    "vtrace, separate value": Case(policy="separate value", minibatches=2),
    "appo": Case(policy="masked", algorithm={"name": "appo", "kl_target": 0.01}, passes=3, minibatches=2),
    "appo, gae": Case(
        policy="colour stack with lstm",
        algorithm={"name": "appo", "kl_target": 0.0, "targets": "gae", "value_clip": 0.2, "entropy_target": 1.0},
        passes=2, minibatches=3,
    ),
}  # fmt: skip


def digest(parts: Sequence[Any]) -> str:
    """Sixteen hex digits of arrays, bytes and texts in this order."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.encode() if isinstance(part, str) else part if isinstance(part, bytes) else part.tobytes())
    return found.hexdigest()[:16]


class Inference:
    """Groups on random rows, and the engine that acts for all of them in one batch."""

    def __init__(self, policy: Policy, weights: bytes) -> None:
        self.random = np.random.default_rng(5)
        recording = Recording(unroll_length=T)
        self.manifest, self.record = (
            make_manifest(policy, recording),
            recording.make_record(policy.spec, policy.state_fields),
        )
        self.engine = Engine(torch.device("cpu"))
        self.load(0, weights)
        self.groups: list[LaneBlock] = []
        start = 0
        for number, count in enumerate(GROUPS):
            rows = UnrollWriter(self.record, count, skip=number)
            layout = act_layout(policy.spec, count)
            group = LaneBlock(start, count, number, rows, layout, greedy=False, uses_frozen_weights=False)
            self.engine.forget(group)
            self.groups.append(group)
            start += count
        self.ticks = 0

    def load(self, step: int, weights: bytes) -> None:
        """Take new weights."""
        self.engine.load(pack_version(EPOCH, step), self.manifest, weights)

    def tick(self) -> tuple[list[tuple[int, int, bytes]], list[bytes]]:
        """One row of every group: (group, lanes, buffer) of the unrolls that it completed, and the actions."""
        unrolls: list[tuple[int, int, bytes]] = []
        for number, group in enumerate(self.groups):
            assert isinstance(group.rows, UnrollWriter)
            group.rows.write(self._row(group.count))
            group.tick += 1
            if group.rows.is_complete:
                unrolls += [(number, done.lanes, bytes(done.buffer)) for done in group.rows.complete()]
        acts = [frame for frames in self.engine.act(self.groups) for frame in frames]
        self.ticks += 1
        return unrolls, acts

    def _row(self, lanes: int) -> list[np.ndarray]:
        spec = self.manifest_spec
        inputs = [random_leaf(leaf, lanes, self.random) for leaf in spec.observation.leaves()]
        if spec.mask_size:
            inputs.append(self.random.integers(0, 2, (lanes, spec.mask_size), np.uint8))
        flags = random_flags(self.random, 2, lanes)[1] if self.ticks else np.full(lanes, Flags.FIRST, np.uint8)
        reward = self.random.standard_normal(lanes).astype(np.float32)
        reward[(flags & Flags.FIRST) != 0] = 0
        return [*inputs, reward, flags]

    @property
    def manifest_spec(self) -> Any:
        """What the engine's policy is for."""
        return self.engine.policy.spec


def run(case: Case) -> dict[str, Any]:
    """Digests of every update's unrolls, batch, weights, state and figures; the last figures themselves."""
    spec, config = CASES[case.policy]()
    torch.manual_seed(11)
    policy = Policy(spec, config)
    parameters = FlatParameters(policy)
    names = list(case.task_scales)
    configs = {name: TaskConfig(env=EnvConfig(id="x"), reward_scale=scale) for name, scale in case.task_scales.items()}
    updater = Updater(
        policy, parameters, TypeAdapter(AlgorithmConfig).validate_python({"learning_rate": 0.01, **case.algorithm}),
        passes=case.passes, minibatches=case.minibatches, seed=1, run_steps=10_000,
        tasks=configs if len(names) > 1 else None,
    )  # fmt: skip
    tasks = dict.fromkeys(case.task_scales, 1 / len(case.task_scales))
    inference = Inference(policy, parameters.export())
    source: QueueSource[int] = QueueSource(inference.record, batch=BATCH, weights=tasks)
    task_of = {}
    updates: list[dict[str, str]] = []
    seen: list[Any] = []
    step = trained = keys = 0
    figures: dict[str, float] = {}
    while len(updates) < NUM_UPDATES:
        unrolls, acts = inference.tick()
        seen += acts
        for number, lanes, buffer in unrolls:
            seen.append(buffer)
            task_of[keys] = names[number % len(names)]
            source.offer(keys, lanes, buffer, task=task_of[keys])
            keys += 1
        source.fill()
        while (filled := source.take()) is not None and len(updates) < NUM_UPDATES:
            batch = Batch.from_arrays(inference.record, filled.arrays)
            tensors = batch.named_tensors().values()
            result = updater.update(
                batch, step=step, trained_steps=trained, max_policy_lag=case.max_policy_lag,
                version_now=pack_version(EPOCH, step),
                task_B=lane_tasks(tasks, filled.tasks) if len(tasks) > 1 else None,
            )  # fmt: skip
            figures = {name: value for name, value in result.metrics.items() if name != "update_ms"}
            state, _ = updater.state()
            updates.append(
                {
                    "acted": digest(seen),
                    "batch": digest([part for x in tensors for part in (str(x.dtype), str(tuple(x.shape)), x.numpy())]),
                    "weights": digest([parameters.export()]),
                    "state": digest([part for name in sorted(state) for part in (name, state[name])]),
                    "figures": digest([json.dumps(figures, sort_keys=True)]),
                }
            )  # fmt: skip
            step, trained, seen = step + result.applied, trained + result.valid_steps, []
            source.release(filled)
            if step % 2:
                inference.load(step, parameters.export())
    return {"updates": updates, "figures": figures}


def machine() -> str:
    """On which processor and with which libraries digests are compared."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if sys.platform == "linux" else ""
    facts = dict(re.findall(r"^(model name|flags)\s*: (.*)$", text, re.MULTILINE))
    processor = f"{facts.get('model name', platform.processor())} {digest([facts.get('flags', '')])[:6]}"
    return f"{processor}, torch {torch.__version__}, numpy {np.__version__}"


def record() -> dict[str, Any]:
    """What the code does now."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    cases = {}
    for name, case in LEARNING.items():
        with patch("seedbed.inference_svc.unrolls.MAX_UNROLL_BYTES", case.max_unroll_bytes):
            cases[name] = run(case)
    return {"machine": machine(), "cases": cases}


def record_pinned() -> dict[str, Any]:
    """The same in a process of its own, whose arithmetic is pinned."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name if __spec__ else "tests.golden.learning"]
    done = subprocess.run(
        command, env=os.environ | PINNED, cwd=Path(__file__).parents[2], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    if all(os.environ.get(name) == value for name, value in PINNED.items()):
        print(json.dumps(record(), indent=1))
    else:
        print(json.dumps(record_pinned(), indent=1))
