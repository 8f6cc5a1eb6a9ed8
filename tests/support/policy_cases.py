"""Environment specifications and policies of every shape, and random experience for them, acted row by row."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from seedbed.shared.policy.acting import Sample
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.policy.policy import Policy
from seedbed.shared.protocol.recording import LOG_PROB
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import Leaf, encode_text
from tests.support.specs import make_spec

VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
COMPOSITE_ACTION = spaces.Dict(
    {
        "aim": spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
        "buttons": spaces.MultiBinary(3),
        "free": spaces.Box(-np.inf, np.inf, (2,), np.float32),
        "gear": spaces.Discrete(3, start=-1),
        "keys": spaces.MultiDiscrete([2, 4, 3], start=[0, 1, 2]),
        "steps": spaces.Box(-3, 4, (1,), np.int32),
    }
)
COMPOSITE_OBSERVATION = spaces.Dict(
    {
        "bits": spaces.MultiBinary(4),
        "camera": spaces.Box(0, 255, (3, 20, 22), np.uint8),
        "level": spaces.Discrete(5, start=2),
        "memo": spaces.Text(6, charset="abcdé"),
        "pose": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
        "ram": spaces.Box(0, 255, (7,), np.uint8),
        "slots": spaces.MultiDiscrete([3, 2]),
        "ticks": spaces.Box(np.array([-100, 5]), np.array([10_000, 300]), dtype=np.int64),
    }
)

TASKS = ("near", "far", "farther")  # of policies that tell tasks apart

CASES: dict[str, Callable[[], tuple[EnvSpec, PolicyConfig]]] = {
    "mlp": lambda: (make_spec(VECTOR, spaces.Discrete(2)), PolicyConfig()),
    "separate value": lambda: (
        make_spec(VECTOR, spaces.Discrete(3)),
        PolicyConfig(hidden=[8], value_network="separate", normalise_observation=True),
    ),
    "masked": lambda: (make_spec(VECTOR, spaces.Discrete(5), masked=True), PolicyConfig(hidden=[8])),
    "lstm": lambda: (make_spec(VECTOR, spaces.Discrete(5, start=3), masked=True), PolicyConfig(hidden=[8], lstm=6)),
    "lstm without extras": lambda: (
        make_spec(VECTOR, spaces.Discrete(4)),
        PolicyConfig(hidden=[8], lstm=6, previous_action=False, previous_reward=False),
    ),
    "vector stack": lambda: (make_spec(VECTOR, spaces.Discrete(4)), PolicyConfig(hidden=[8], stack=3)),
    "atari": lambda: (
        make_spec(spaces.Box(0, 255, (36, 36), np.uint8), spaces.Discrete(6)),
        PolicyConfig(network="impala_shallow", network_kwargs={"features": 32}, stack=4, normalise_observation=True),
    ),
    "colour stack with lstm": lambda: (
        make_spec(spaces.Box(0, 255, (20, 24, 3), np.uint8), spaces.MultiDiscrete([3, 3]), masked=True, image="HWC"),
        PolicyConfig(
            network="impala_deep", network_kwargs={"channels": [4, 4], "features": 16}, stack=2, lstm=8
        ),
    ),
    "box": lambda: (
        make_spec(VECTOR, spaces.Box(-2, 2, (1,), np.float32)),
        PolicyConfig(hidden=[8], normalise_observation=True),
    ),
    "box with a deviation for each state": lambda: (
        make_spec(VECTOR, spaces.Box(-2, 2, (2,), np.float32)),
        PolicyConfig(hidden=[8], std="state", initial_std=0.5, lstm=4),
    ),
    "codes in a grid": lambda: (
        make_spec(spaces.Box(0, 255, (3, 4, 2), np.uint8), spaces.Discrete(4), image="HWC"),
        PolicyConfig(hidden=[8], grid_codes=128, stack=2, lstm=4),
    ),
    "several tasks": lambda: (
        make_spec(spaces.Box(0, 255, (20, 24, 3), np.uint8), spaces.Discrete(4), image="HWC"),
        PolicyConfig(
            network="impala_shallow", network_kwargs={"features": 16}, stack=2, lstm=4, value_heads="per_task",
            task_input=True,
        ),
    ),
    "several tasks, separate value": lambda: (
        make_spec(VECTOR, spaces.Discrete(4)),
        PolicyConfig(hidden=[8], value_heads="per_task", value_network="separate", task_input=True),
    ),
    "scalars": lambda: (
        make_spec(
            spaces.Dict(far=spaces.Box(0, 2**40, (), np.int64), speed=spaces.Box(-np.inf, np.inf, (), np.float32)),
            spaces.Box(-1, 1, (), np.float32),
        ),
        PolicyConfig(hidden=[8], normalise_observation=True),
    ),
    "one scalar": lambda: (make_spec(spaces.Box(-1, 1, (), np.float64), spaces.Discrete(3)), PolicyConfig(hidden=[8])),
    "multi binary": lambda: (make_spec(VECTOR, spaces.MultiBinary(4)), PolicyConfig(hidden=[8], lstm=4)),
    "composite": lambda: (
        make_spec(COMPOSITE_OBSERVATION, COMPOSITE_ACTION, masked=True, image="CHW"),
        PolicyConfig(
            network="impala_shallow",
            network_kwargs={"features": 24},
            stack=3,
            lstm=7,
            normalise_observation=True,
        ),
    ),
}  # fmt: skip


def make_policy(name: str, seed: int = 0) -> Policy:
    """A case's policy with weights large enough that everything in a row matters to its action."""
    spec, config = CASES[name]()
    torch.manual_seed(seed)
    policy = Policy(spec, config, TASKS)
    with torch.no_grad():
        policy.head.weight.normal_(0, 0.5)
        if policy.log_std is not None:
            policy.log_std.normal_(-0.3, 0.3)
        for normaliser in policy.normalisers():
            is_image = normaliser.rstd.shape != normaliser.mean.shape
            normaliser.mean.normal_(*((100, 20) if is_image else (0, 1)))
            normaliser.rstd.uniform_(*((0.01, 0.02) if is_image else (0.5, 2)))
    return policy


def random_leaf(leaf: Leaf, lanes: int, rng: np.random.Generator) -> np.ndarray:
    """Values of one leaf for some lanes."""
    if leaf.kind == "text":
        texts = ["".join(rng.choice(list(leaf.charset), rng.integers(0, leaf.max_length + 1))) for _ in range(lanes)]
        return encode_text(leaf, texts)
    shape = (lanes, *leaf.shape)
    if leaf.nvec:
        nvec, starts = np.reshape(leaf.nvec, leaf.shape), np.reshape(leaf.starts, leaf.shape)
        return (rng.integers(0, nvec, shape) + starts).astype(leaf.dtype)
    if leaf.dtype.startswith("float"):
        return rng.normal(size=shape).astype(leaf.dtype)
    return rng.integers(0, 2 if leaf.kind == "multi_binary" else 255, shape).astype(leaf.dtype)


@dataclass
class ActedUnroll:
    """Rows 0…T as inference saw them, and what it decided at rows 0…T-1."""

    obs: tuple[Tensor, ...]  # [T+1, B, ...]
    mask: Tensor | None
    reward: Tensor
    first: Tensor
    action: Tensor  # [T, B, A]
    log_prob: Tensor  # [T, B]
    value: Tensor
    state: tuple[Tensor, ...]  # before row 0


class RandomActor:
    """Acts row by row on random rows, as inference does: state carried over unrolls, row T again as row 0."""

    def __init__(self, policy: Policy, lanes: int, seed: int = 0) -> None:
        self.policy, self.lanes = policy, lanes
        self._rng = np.random.default_rng(seed)
        self._state = policy.initial_state(lanes)
        if policy.tasks:
            self._state[0].copy_(torch.arange(lanes) % len(policy.tasks))
        self._row = self._next_row(is_start=True)
        self._tick = 0

    def _next_row(self, *, is_start: bool = False) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor, Tensor]:
        spec, rng = self.policy.spec, self._rng
        leaves = tuple(torch.from_numpy(random_leaf(leaf, self.lanes, rng)) for leaf in spec.observation.leaves())
        mask = None
        if spec.mask_size:
            mask = torch.from_numpy((rng.random((self.lanes, spec.mask_size)) < 0.6).astype(np.uint8))
        first = torch.from_numpy((rng.random(self.lanes) < 0.2) | is_start)
        reward = torch.from_numpy(rng.normal(size=self.lanes).astype(np.float32))
        return leaves, mask, reward, first

    @torch.no_grad()
    def unroll(self, length: int) -> ActedUnroll:
        """The next T transitions."""
        state = tuple(part.clone() for part in self._state)
        rows, decided = [self._row], []
        for _ in range(length):
            obs, mask, reward, first = self._row
            noise = self.policy.distribution.noise(7, self._tick, 1, self.lanes)
            drawn = [torch.from_numpy(x[0]) for x in noise]
            acted = self.policy.act(obs, reward, first, self._state, Sample(), drawn, mask, wanted=[LOG_PROB])
            self._state = acted.state
            decided.append(acted)
            self._row = self._next_row()
            rows.append(self._row)
            self._tick += 1
        masks = [row[1] for row in rows if row[1] is not None]
        return ActedUnroll(
            obs=tuple(torch.stack(parts) for parts in zip(*(row[0] for row in rows), strict=True)),
            mask=torch.stack(masks) if masks else None,
            reward=torch.stack([row[2] for row in rows]),
            first=torch.stack([row[3] for row in rows]),
            action=torch.stack([acted.action for acted in decided]),
            log_prob=torch.stack([acted.recorded[LOG_PROB] for acted in decided]),
            value=torch.stack([acted.value for acted in decided]),
            state=state,
        )
