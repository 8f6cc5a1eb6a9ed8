"""The checkpoint reward of football, for carrying the ball towards the opponents' goal through ten circles around it.

The first time in an episode that our team owns the ball within a circle pays 0.1. A goal pays for all circles left.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REWARD = 0.1  # for each checkpoint
RADII: Array = np.linspace(0.99, 0.19, 10)  # from the goal's centre; the pitch is 2 wide
GOAL = np.array([1.0, 0.0])  # the goal that our team, which plays to the right, attacks
HALF_HEIGHT = 1 / 2.25  # largest y on the part of the pitch that the planes show; x is in -1…1
BALL_PLANE = 2


def ball_position(planes: Array) -> Array:
    """Return the ball's x and y on the pitch, f64 [L, 2]: the centre of its cell, exact to half a cell (0.010, 0.006).

    Args:
      planes: u8 [L, planes, 72, 96]; the ball is the one marked cell of the third plane.
    """
    height, width = planes.shape[2:]
    row, column = np.divmod(planes[:, BALL_PLANE].reshape(len(planes), -1).argmax(1), width)
    x = (column + 0.5) / width * 2 - 1
    y = ((row + 0.5) / height * 2 - 1) * HALF_HEIGHT
    return np.stack([x, y], 1)


class Checkpoints:
    """Counts the checkpoints that each lane has collected in its episode."""

    def __init__(self, lanes: int) -> None:
        self.collected: Array = np.zeros(lanes, np.int64)

    def reset(self, lanes: Array) -> None:
        """Begin an episode in some lanes, given as indices or a boolean mask."""
        self.collected[lanes] = 0

    def collect(self, ball: Array, has_ball: Array, has_scored: Array) -> Array:
        """Count the checkpoints of one step and return the reward for them, f32 [L].

        Args:
          ball: the ball's position, [L, 2].
          has_ball: whether our team owns it, bool [L].
          has_scored: whether our team scored in this step, bool [L].
        """
        distance = np.hypot(*(ball - GOAL).T)
        passed = (distance[:, None] <= RADII).sum(1)
        reached = np.where(has_scored, len(RADII), np.where(has_ball, passed, 0))
        fresh = np.maximum(reached - self.collected, 0)
        self.collected += fresh
        reward: Array = (REWARD * fresh).astype(np.float32)
        return reward
