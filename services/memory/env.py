"""A cue is shown once and asked for later: only a policy with memory does better than chance.

The first row shows one of four cues, the next 5 to 15 rows nothing, the last one a question; the action taken at the
question earns `reward` if it names the cue, or with a `shift` the cue that many further on. So an episode has 7 to 17
rows, and episodes and unrolls do not fall into step. Without memory a quarter of the answers are right, with it all.
"""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = npt.NDArray[np.float32]


class MemoryEnv(gymnasium.Env[Observation, np.int64]):
    """Recall one of `cues` after a random delay of `min_delay` to `max_delay` steps, for a `reward`.

    The right answer is the cue that is `shift` after it, in a circle.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4, "statistics": ("success",)}  # noqa: RUF012 as Gymnasium has it

    def __init__(
        self, *, cues: int = 4, min_delay: int = 5, max_delay: int = 15, reward: float = 1.0, shift: int = 0,
        render_mode: str | None = None,
    ) -> None:  # fmt: skip
        if cues < 2 or not 0 <= min_delay <= max_delay:
            raise ValueError(f"cues={cues}, delays {min_delay} to {max_delay}: at least 2 cues, delays ascending")
        self.render_mode = render_mode
        self._cues, self._delays, self._reward, self._shift = cues, (min_delay, max_delay), reward, shift
        self.observation_space = spaces.Box(0.0, 1.0, (cues + 1,), np.float32)  # one for each cue, one for the question
        self.action_space = spaces.Discrete(cues)
        self._cue = self._wait = self._shown = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw a cue and a delay, and show the cue."""
        super().reset(seed=seed, options=options)
        self._cue = int(self.np_random.integers(self._cues))
        self._wait = int(self.np_random.integers(self._delays[0], self._delays[1] + 1))
        return self._observe(self._cue), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Count down the delay, show the question, or, if it was shown, reward the action as the answer."""
        if self._shown == self._cues:  # the question was on show: this is the answer
            is_right = int(action) == (self._cue + self._shift) % self._cues
            return self._observe(None), self._reward * is_right, True, False, {"success": float(is_right)}
        self._wait -= 1
        return self._observe(self._cues if self._wait < 0 else None), 0.0, False, False, {}

    def _observe(self, shown: int | None) -> Observation:
        """Show a cue, the question (`cues`) or nothing (None); return it one-hot, f32 [cues + 1], zeros for nothing."""
        self._shown = -1 if shown is None else shown
        observation = np.zeros(self._cues + 1, np.float32)
        if shown is not None:
            observation[shown] = 1.0
        return observation

    def render(self) -> Any:
        """Draw a bar for each cue and a white one for the question, lit where shown, u8 [64, 32·(cues + 1), 3]."""
        picture = np.full((64, 32 * (self._cues + 1), 3), 32, np.uint8)
        if self._shown >= 0:
            lit = (255, 255, 255) if self._shown == self._cues else (64, 200, 64 + 40 * (self._shown % 4))
            picture[:, 32 * self._shown : 32 * (self._shown + 1)] = lit
        return picture


def make(**kwargs: Any) -> MemoryEnv:
    """Make the environment of `env.id = "seedbed.services.memory.env:make"`; arguments are those of MemoryEnv."""
    return MemoryEnv(**kwargs)
