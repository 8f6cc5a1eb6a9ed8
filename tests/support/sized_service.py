"""An environment service whose spaces are words: `python -m tests.support.sized_service SIZE DTYPE …`.

All of them call their environment `sized`, so that only their spaces tell them apart.
"""

import sys

import gymnasium
import numpy as np

from seedbed.actor_svc.serve import serve


class SizedEnv(gymnasium.Env):
    """A dict of an image and a vector of some size and dtype; episodes of ten steps."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int, dtype: str) -> None:
        self.observation_space = gymnasium.spaces.Dict(
            speed=gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
            place=gymnasium.spaces.Box(-1.0, 1.0, (size,), np.dtype(dtype).type),
        )
        self._t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self._t = 0
        return self._observe(), {}

    def step(self, action):
        self._t += 1
        return self._observe(), float(action), self._t == 10, False, {}

    def _observe(self):
        return {name: np.full(box.shape, self._t / 10, box.dtype) for name, box in self.observation_space.items()}


if __name__ == "__main__":
    size, dtype, *words = sys.argv[1:]
    sys.exit(serve(lambda: SizedEnv(int(size), dtype), name="sized", argv=words))
