"""CartPole with a pause in each tick, like a simulator that runs elsewhere: a tick takes time and no processor."""

import time
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper


class WaitingEnv(VectorWrapper):
    """A vector environment that waits `step_s` seconds before each step of all lanes."""

    def __init__(self, env: VectorEnv, step_s: float) -> None:
        super().__init__(env)
        self._step_s = step_s

    def step(self, actions: Any) -> Any:
        """Wait, then step."""
        time.sleep(self._step_s)
        return self.env.step(actions)


def make(num_envs: int, step_s: float) -> WaitingEnv:
    """Make CartPole of `num_envs` lanes that waits `step_s` seconds in each step; named by `env.id`."""
    return WaitingEnv(gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point"), step_s)
