"""How fast a replay stores, draws and copies sequences, on one core: what its share of the learner's loop costs.

Sequences are R2D2's, 40 transitions of burn-in and 80 trained, of CartPole's observations. The replay is full before
anything is measured. Then unrolls of 16 lanes come, as many as a ratio of 1 has use for, and batches of 64 are drawn,
copied and given back with random priorities.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium import spaces

from seedbed.learner_svc.sources.replay import ReplaySource
from seedbed.learner_svc.sources.source import SourcePlan
from seedbed.shared.policy.acting import RECORDED_MAX_Q, RECORDED_Q
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.spaces import space_from_gymnasium

CAPACITY, BATCH, LANES = 100_000, 64, 16
BURN_IN, LENGTH = 40, 80


@dataclass(slots=True)
class _Times:
    """How long each call of one kind took, s."""

    values: list[float]

    def percentile_ms(self, percent: float) -> float:
        """The time that so many per cent of the calls did not exceed, ms."""
        return round(1e3 * float(np.percentile(self.values, percent)), 3)


def measure(seconds: float) -> Iterator[dict[str, str | int | float]]:
    """One result: sequences drawn and copied in a second of this thread, and how long storing and drawing took."""
    generator = np.random.default_rng(1)
    observation, action = (space_from_gymnasium(space) for space in (spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)))
    spec = EnvSpec(env_id="bench", observation=observation, action=action)
    record = RecordSpec(spec, LENGTH, BURN_IN, decided=(RECORDED_Q, RECORDED_MAX_Q))
    plan = SourcePlan(batch=BATCH, num_buffers=2, weights={"": 1.0}, folder=Path())
    source: ReplaySource[int] = ReplaySource(
        record, plan, capacity=CAPACITY, max_bytes=1 << 34, start=CAPACITY, ratio=1.0, priority_exponent=0.9,
        importance_exponent=0.6, is_file=False,
        first_priorities=lambda arrays, _task: np.abs(arrays["reward"][0]) + generator.exponential(size=LANES),
    )  # fmt: skip
    frame = bytes(record.layout(LANES).allocate()[0])
    while source.size < CAPACITY:
        source.offer(0, LANES, frame)
        source.fill()
    stored, drawn = _Times([]), _Times([])
    sequences, began = 0, time.thread_time()
    while (spent := time.thread_time() - began) < seconds:
        source.offer(0, LANES, frame)
        start = time.perf_counter()
        source.fill()
        (drawn if source.num_drawn > sequences else stored).values.append(time.perf_counter() - start)
        sequences = source.num_drawn
        while (batch := source.take()) is not None:
            source.release(batch, generator.exponential(size=BATCH).astype(np.float32))
    yield {
        "sequences": CAPACITY, "sequence_bytes": int(source.metrics()["replay_bytes"] / source.size), "batch": BATCH,
        "drawn_per_s": round(sequences / spent), "stored_per_s": round(source.num_stored / spent),
        "store_p50_ms": stored.percentile_ms(50), "store_p99_ms": stored.percentile_ms(99),
        "draw_p50_ms": drawn.percentile_ms(50), "draw_p99_ms": drawn.percentile_ms(99),
    }  # fmt: skip
