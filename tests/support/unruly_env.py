"""CartPole whose ticks take a while, and which fails on command: a file in its folder is an order to one lane.

| file | what the lane that finds it does, once, in the midst of an episode |
|---|---|
| `raise` | raises |
| `nan` | observes NaN |
| `hang` | never comes back |
"""

import threading
import time
from pathlib import Path

import gymnasium
import numpy as np

ORDERS = ("raise", "nan", "hang")


class UnrulyEnv(gymnasium.Wrapper):
    """One lane. `step_s`: how long a step takes, seconds."""

    def __init__(self, folder: str, step_s: float) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._folder, self._step_s = Path(folder), step_s
        self._t = 0

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        time.sleep(self._step_s)
        self._t += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        order = "" if self._t == 1 or terminated or truncated else self._take_order()
        if order == "raise":
            raise RuntimeError("told to raise")
        if order == "nan":
            observation = np.full_like(observation, np.nan)
        if order == "hang":
            threading.Event().wait()
        return observation, reward, terminated, truncated, info

    def _take_order(self) -> str:
        for name in ORDERS:
            try:
                (self._folder / name).unlink()
            except FileNotFoundError:
                continue
            return name
        return ""


def make(folder: str, step_s: float = 0.0) -> UnrulyEnv:
    """For `env.id`."""
    return UnrulyEnv(folder, step_s)
