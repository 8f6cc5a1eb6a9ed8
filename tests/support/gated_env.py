"""CartPole at half its reward until a file called `gate` lies in its folder: no run reaches its target before."""

from pathlib import Path

import gymnasium
from gymnasium.vector import VectorEnv, VectorWrapper


class GatedEnv(VectorWrapper):
    """Lanes behind one gate."""

    def __init__(self, env: VectorEnv, gate: Path) -> None:
        super().__init__(env)
        self._gate = gate

    def step(self, actions):
        observation, reward, terminated, truncated, info = self.env.step(actions)
        return observation, reward if self._gate.exists() else 0.5 * reward, terminated, truncated, info


def make(num_envs: int, folder: str) -> GatedEnv:
    """For `env.id`."""
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    return GatedEnv(env, Path(folder) / "gate")
