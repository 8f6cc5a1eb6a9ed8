"""Batches as inference would cut them: a real policy acts on seeded random rows with ends of every kind."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces
from pydantic import TypeAdapter

from seedbed.learner_svc.algorithms.config import AlgorithmConfig
from seedbed.learner_svc.learning.update import Updater
from seedbed.learner_svc.sources.batch import Batch
from seedbed.shared.policy.acting import Recording
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.policy.weights import FlatParameters
from seedbed.shared.protocol.messages import pack_version
from seedbed.shared.protocol.rows import EnvSpec, Flags
from tests.support import specs

EPOCH = 3
RECORDING = Recording(unroll_length=8)
OBSERVATION = spaces.Box(-10.0, 10.0, (4,), np.float32)


def make_spec(action: spaces.Space | None = None, *, masked: bool = False) -> EnvSpec:
    """A vector observation of four, and an action space (two choices by default)."""
    return specs.make_spec(OBSERVATION, action or spaces.Discrete(2), env_id="Random-v0", masked=masked)


def make_policy(
    spec: EnvSpec | None = None, *, tasks: Sequence[str] = (), **config: object
) -> tuple[Policy, FlatParameters]:
    """A seeded small policy and its flat weights."""
    torch.manual_seed(7)
    policy = Policy(spec or make_spec(), PolicyConfig.model_validate({"hidden": [16, 16]} | config), tasks)
    return policy, FlatParameters(policy)


def make_updater(spec: EnvSpec | None = None, policy: dict[str, object] | None = None, **config: object) -> Updater:
    """An updater of a fresh policy; `config` is its algorithm's section, the rest of it defaults."""
    names = (
        "run_steps", "tasks", "epoch_start_step", "crash_folder", "passes", "minibatches", "seed", "ranks",
    )  # fmt: skip
    keywords = {name: config.pop(name) for name in names if name in config}
    return Updater(*make_policy(spec, **(policy or {})), algorithm_config(config), **keywords)  # type: ignore[arg-type]


def algorithm_config(table: dict[str, object]) -> AlgorithmConfig:
    """A section [algorithm] as a learner reads it."""
    return TypeAdapter(AlgorithmConfig).validate_python(table)


def random_flags(generator: np.random.Generator, rows: int, lanes: int) -> np.ndarray:
    """Rows of episodes that end in every way, with reset rows behind their ends, lives lost and rebuilt lanes."""
    flags = np.zeros((rows, lanes), np.uint8)
    kinds = np.array([Flags.TERMINATED, Flags.TRUNCATED, Flags.LIFE_LOST, Flags.FIRST, 0], np.uint8)
    for t in range(rows):
        drawn = generator.choice(kinds, lanes, p=[0.1, 0.1, 0.05, 0.05, 0.7])
        ended = (flags[t - 1] & (Flags.TERMINATED | Flags.TRUNCATED)) != 0 if t else np.zeros(lanes, bool)
        flags[t] = np.where(ended, np.uint8(Flags.FIRST), drawn)
    return flags


@torch.no_grad()
def make_batch(
    policy: Policy, *, rows: int = 9, lanes: int = 6, seed: int = 0, version: int | None = None,
    recording: Recording = RECORDING, task_B: Sequence[int] = (),
) -> Batch:  # fmt: skip
    """The policy acts on `rows` rows of `lanes` lanes; what it did is the behaviour that the batch records.

    `task_B`: the numbers of the lanes' tasks, for a policy that tells tasks apart.
    """
    generator = np.random.default_rng(seed)
    observation = generator.normal(size=(rows, lanes, 4)).astype(np.float32)
    reward = generator.normal(size=(rows, lanes)).astype(np.float32)
    flags = random_flags(generator, rows, lanes)
    reward[(flags & Flags.FIRST) != 0] = 0
    mask = None
    if policy.spec.mask_size:
        mask = generator.integers(0, 2, (rows, lanes, policy.spec.mask_size)).astype(np.uint8)
    rule, actions, recorded = recording.make_rule(), [], []
    noise = [torch.from_numpy(array) for array in rule.noise(policy.distribution, seed, 0, rows, range(lanes))]
    state = start = policy.initial_state(lanes)
    if task_B:
        state[0].copy_(torch.tensor(task_B))
    for t in range(rows):
        acted = policy.act(
            (torch.from_numpy(observation[t]),),
            torch.from_numpy(reward[t]),
            torch.from_numpy((flags[t] & Flags.FIRST) != 0),
            state,
            rule,
            [array[t] for array in noise],
            None if mask is None else torch.from_numpy(mask[t]),
            wanted=recording.decided,
        )
        state = acted.state
        actions.append(acted.action)
        recorded.append(acted.recorded)
    tensors = {
        "observation": torch.from_numpy(observation),
        "reward": torch.from_numpy(reward),
        "flags": torch.from_numpy(flags),
        "action": torch.stack(actions[:-1]),
        **{name: torch.stack([each[name] for each in recorded[:-1]]) for name in recording.decided},
        "version": torch.full((rows - 1, lanes), pack_version(EPOCH, 0) if version is None else version),
        **{item.name: part for item, part in zip(policy.state_fields, start, strict=True)},
    }
    if mask is not None:
        tensors["mask"] = torch.from_numpy(mask)
    return Batch(
        replace(recording, unroll_length=rows - 1 - recording.overlap).make_record(policy.spec, policy.state_fields),
        tensors,
    )
