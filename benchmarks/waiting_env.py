"""CartPole as a simulator that somebody else computes: each tick of a group takes its time and no processor."""

import time
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper


class WaitingEnv(VectorWrapper):
    """`step_s`: how long a tick of all lanes takes, seconds."""

    def __init__(self, env: VectorEnv, step_s: float) -> None:
        super().__init__(env)
        self._step_s = step_s

    def step(self, actions: Any) -> Any:
        """Wait, then step."""
        time.sleep(self._step_s)
        return self.env.step(actions)


def make(num_envs: int, step_s: float) -> WaitingEnv:
    """For `env.id`."""
    return WaitingEnv(gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point"), step_s)
