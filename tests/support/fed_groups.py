"""Groups of lanes that an engine acts for, fed with random rows."""

from collections.abc import Sequence

import numpy as np
import torch

from seedbed.inference_svc.engine import Engine, LaneBlock
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.shared.policy.weights import Manifest
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.rows import EnvSpec, Flags, act_layout
from tests.support.policy_cases import random_leaf


class FedGroups:
    """Groups fed with random rows, sharing or not sharing batches."""

    def __init__(
        self, spec: EnvSpec, manifest: Manifest, weights: bytes, sizes: Sequence[int], seed: int = 0,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self._random: dict[int, np.random.Generator] = {}  # by group, so that its rows do not depend on others
        self._seed = seed
        self.engine = engine or Engine(torch.device("cpu"))
        self.engine.load(1, manifest, weights)
        self.record = self.engine.live.record
        self.groups, start = [], 0
        for number, count in enumerate(sizes):
            rows = UnrollWriter(self.record, count)
            self.groups.append(
                LaneBlock(start=start, count=count, seed=number, rows=rows, act_layout=act_layout(spec, count),
                      greedy=False, uses_frozen_weights=False)
            )  # fmt: skip
            self.engine.forget(self.groups[-1])
            start += count
        self.unrolls: list[tuple[int, list[Array]]] = []
        self.acts: list[list[bytes]] = []  # payload frames, in the order in which groups acted

    def write(self, group: LaneBlock, first: float) -> None:
        """One tick of random rows; each lane is reset with probability `first`."""
        random = self._random.setdefault(group.start, np.random.default_rng((self._seed, group.start)))
        inputs = [random_leaf(leaf, group.count, random) for leaf in self.spec.observation.leaves()]
        if self.spec.mask_size:
            inputs.append(random.integers(0, 2, (group.count, self.spec.mask_size), np.uint8))
        flags = np.where(random.random(group.count) < first, Flags.FIRST, 0).astype(np.uint8)
        reward = random.standard_normal(group.count).astype(np.float32) * 3
        reward[flags != 0] = 0
        group.rows.write([*inputs, reward, flags])
        group.tick += 1

    def keep(self, group: LaneBlock) -> None:
        """Take a group's complete unroll."""
        assert isinstance(group.rows, UnrollWriter)
        for done in group.rows.complete():
            self.unrolls.append((done.lanes, self.record.layout(done.lanes).views([done.buffer])))

    def run(self, ticks: int, *, together: bool, first: float = 0.3) -> None:
        for tick in range(ticks):
            for group in self.groups:
                self.write(group, 1.0 if tick == 0 else first)
                assert isinstance(group.rows, UnrollWriter)
                if group.rows.is_complete:
                    self.keep(group)
            for batch in [self.groups] if together else [[group] for group in self.groups]:
                self.acts += self.engine.act(batch)
