"""A module with DeepMind Lab's Python API, as far as its documentation says, for where the simulator is missing.

Levels compile a map through the cache at a reset. An episode has `frames` frames (a level's setting). The reward is
the number of frames in which FIRE was pressed. Observations are only to be had while it runs, and their memory is used
again.
"""

from pathlib import Path

import numpy as np


class Lab:
    """What `deepmind_lab.Lab` offers."""

    made: list["Lab"] = []  # noqa: RUF012 of all tests, those not closed yet
    compiled: list[str] = []  # noqa: RUF012 keys of maps that no cache had
    fails_on = ""  # part of the name of a level that cannot be made

    def __init__(self, level, observations, config=None, renderer="software", level_cache=None):
        assert all(isinstance(value, str) for value in config.values())
        assert renderer in ("software", "hardware")
        if self.fails_on and self.fails_on in level:
            raise RuntimeError(f"cannot load {level}")
        self.level, self.names, self.config, self.cache = level, list(observations), dict(config), level_cache
        self.frames = int(config.get("frames", 12))
        self._image = np.zeros((int(config["height"]), int(config["width"]), 3), np.uint8)
        self.actions = []
        self._running = False
        Lab.made.append(self)

    def reset(self, episode=-1, seed=None):
        assert seed is not None
        self.seed, self._left, self._running = seed, self.frames, True
        if self.cache is not None:
            key, path = f"{self.level} {seed % 2}", Path(self.config["maps"]) / f"{id(self)}.pk3"
            if not self.cache.fetch(key, str(path)):
                path.write_text(key)
                self.compiled.append(key)
                self.cache.write(key, str(path))
            assert path.read_text() == key

    def is_running(self):
        return self._running

    def step(self, action, num_steps=1):
        assert self._running
        assert action.dtype == np.intc
        assert action.shape == (7,)
        self.actions.append((action.tolist(), num_steps))
        frames = min(num_steps, self._left)
        self._left -= frames
        self._running = self._left > 0
        return float(frames * action[4])

    def observations(self):
        if not self._running:
            raise RuntimeError("Environment in wrong status to query observations")
        self._image.fill(self._left)
        values = {"RGB_INTERLEAVED": self._image, "INSTR": f"Get the red hat {self.seed}"}
        return {name: values[name] for name in self.names}

    def close(self):
        Lab.made.remove(self)


def set_runfiles_path(path):
    """As the real one: tells where the simulator's files are."""
    Lab.runfiles = path
