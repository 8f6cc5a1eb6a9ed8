"""A trained policy that is served without a learner, and the statistics of the episodes played with it.

Groups in `eval` and `play` mode act at once and for as long as they like, with the same weights; nothing is learned.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Hello, Reject

MAX_RETURNS = 1000  # of the newest episodes, over which the mean is taken


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """The policy of one checkpoint, served without a learner."""

    source: str  # name of the checkpoint, for messages
    run_id: str
    run_seed: int
    version: int  # packed
    manifest: str  # JSON
    buffer: bytes
    greedy: bool  # the most likely action instead of a sampled one


class ServedStatistics:
    """Number and mean return of the episodes played. Owned by the service's loop; memory: MAX_RETURNS numbers."""

    def __init__(self, *, greedy: bool) -> None:
        self.greedy = greedy
        self.num_episodes = 0
        self._returns: deque[float] = deque(maxlen=MAX_RETURNS)

    def add(self, statistics: Array) -> None:
        """Add the episodes that ended in one tick, f32 [n, K]; the first column is the return."""
        self.num_episodes += len(statistics)
        self._returns.extend(statistics[:, 0].tolist())

    @property
    def return_mean(self) -> float:
        """Mean return of the newest episodes; NaN before the first."""
        return float(np.mean(self._returns)) if self._returns else float("nan")

    @staticmethod
    def refuse_training(hello: Hello) -> Reject | None:
        """Return a REJECT for a training group; None for evaluation and play."""
        if hello.mode != "train":
            return None
        return Reject(
            nonce=hello.nonce,
            code="not_training",
            retryable=False,
            message="this inference service serves a finished policy and does not train",
            hint="start the actor with actor.mode=eval or actor.mode=play, or set actor.upstream to a run that trains",
        )
