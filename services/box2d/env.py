"""CarRacing as a small machine can learn it: gray, shrunk, several frames for each action."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actor_svc.backends.area import AreaShrink
from shared.protocol.layout import Array

ROAD_ROWS = 84  # of the 96 rows; below is the dashboard
GRAY = np.array([0.299, 0.587, 0.114], np.float32)  # what red, green and blue weigh in brightness (ITU-R BT.601)


class SmallRacing(gymnasium.Wrapper[Array, Any, Array, Any]):
    """CarRacing-v3 with every action held for `frames`, whose rewards are summed.

    An observation is uint8 [2, size, size]: the road in gray, now and one action ago, so that it shows motion.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], *, size: int, frames: int) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "image": "CHW"}
        self.observation_space = spaces.Box(0, 255, (2, size, size), np.uint8)
        self._size, self._frames = size, frames
        self._shrink = AreaShrink(ROAD_ROWS, 96, size)
        self._before: Array = np.zeros((1, size, size), np.uint8)

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        """Begin on a track, with the same picture twice."""
        screen, info = self.env.reset(**options)
        self._before = self._shrunk(screen)
        return np.concatenate([self._before, self._before]), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Hold the action for some frames, or until the episode ends."""
        total = 0.0
        for _ in range(self._frames):
            screen, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        now, before = self._shrunk(screen), self._before
        self._before = now
        return np.concatenate([now, before]), total, terminated, truncated, info

    def _shrunk(self, screen: Array) -> Array:
        """uint8 [96, 96, 3] as uint8 [1, size, size]."""
        gray = (screen[:ROAD_ROWS].astype(np.float32) @ GRAY).astype(np.uint8)
        small: Array = np.empty((1, self._size, self._size), np.uint8)
        self._shrink(gray[None], small)
        return small


def make_racing(
    *, continuous: bool = False, size: int = 48, frames: int = 4, render_mode: str | None = None
) -> SmallRacing:
    """The environment of `env.id = "services.box2d.env:make_racing"`.

    Args:
      continuous: steering, gas and brake as three numbers; else one of five actions.
      size: height and width of an observation, pixels; 84 and 96 pixels are shrunk to it.
      frames: for each action.
    Raises: ImportError without Box2D.
    """
    made = gymnasium.make("CarRacing-v3", continuous=continuous, render_mode=render_mode, disable_env_checker=True)
    return SmallRacing(made, size=size, frames=frames)
