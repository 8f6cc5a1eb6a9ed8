"""DeepMind Lab's levels with the nine actions, images and instruction tokens that SEED RL and IMPALA use."""

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from seedbed.actor_svc.backends.lanes import LaneBackend
from seedbed.services.dmlab.level_cache import LevelCache
from seedbed.services.dmlab.levels import DMLAB_30, LevelPool, level_path
from seedbed.shared.errors import ConfigError

Pixels = npt.NDArray[np.uint8]

LOOK = 20  # how far to turn in a frame, pixels
# The parts of DeepMind Lab's action: look right, look up, strafe right, move forward, fire, jump, crouch.
ACTIONS: Mapping[str, tuple[int, int, int, int, int, int, int]] = {
    "forward": (0, 0, 0, 1, 0, 0, 0),
    "backward": (0, 0, 0, -1, 0, 0, 0),
    "strafe_left": (0, 0, -1, 0, 0, 0, 0),
    "strafe_right": (0, 0, 1, 0, 0, 0, 0),
    "look_left": (-LOOK, 0, 0, 0, 0, 0, 0),
    "look_right": (LOOK, 0, 0, 0, 0, 0, 0),
    "look_left_forward": (-LOOK, 0, 0, 1, 0, 0, 0),
    "look_right_forward": (LOOK, 0, 0, 1, 0, 0, 0),
    "fire": (0, 0, 0, 0, 1, 0, 0),
}
RGB, INSTRUCTION = "RGB_INTERLEAVED", "INSTR"


def instruction_tokens(text: str, words: int, buckets: int) -> npt.NDArray[np.uint16]:
    """Return the first words of an instruction as tokens, u16 [words]: 1 + CRC-32 mod (buckets − 1), or 0 for no word.

    Words are in lower case and separated by spaces. Two words may have the same token.
    """
    tokens = np.zeros(words, np.uint16)
    for position, word in enumerate(text.lower().split()[:words]):
        tokens[position] = 1 + zlib.crc32(word.encode()) % (buckets - 1)
    return tokens


class LabEnv(gymnasium.Env[Any, Any]):
    """One level of DeepMind Lab.

    An observation is a Dict of `image`, u8 [height, width, 3], and `instruction`, u16 [words]; the image alone if words
    is 0. DeepMind Lab shows nothing after the end of an episode, so the step that ends it repeats the last observation.
    It does not say why an episode ended either, so every end is `terminated`.

    Args:
      lab: makes a `deepmind_lab.Lab` for the path of a level.
      pool: the levels; one is taken here and given back by `close`.
      action_repeat: frames for each agent step.
      words: length of the instruction in tokens; 0: without it.
      buckets: number of different tokens.
    """

    def __init__(
        self,
        lab: Callable[[str], Any],
        pool: LevelPool,
        *,
        width: int,
        height: int,
        action_repeat: int,
        words: int,
        buckets: int,
        render_mode: str | None = None,
    ) -> None:
        self.metadata = {
            "image": {"image": "HWC", "": "HWC"},
            "statistics": ("level",),
            "render_modes": ["rgb_array"],
            "render_fps": 60 // action_repeat,
        }
        self.render_mode = render_mode
        self._action_repeat, self._words, self._buckets = action_repeat, words, buckets
        self._raw_actions = np.array(list(ACTIONS.values()), np.intc)
        self.action_space = spaces.Discrete(len(ACTIONS))
        image = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self._image: Pixels = np.zeros(image.shape, np.uint8)
        self._instruction = np.zeros(words, np.uint16)
        self.observation_space: spaces.Space[Any] = image
        if words:
            tokens = spaces.MultiDiscrete(np.full(words, buckets), dtype=np.uint16)
            self.observation_space = spaces.Dict({"image": image, "instruction": tokens})
        self._pool, self._level = pool, pool.take()
        with contextlib.ExitStack() as undo:
            undo.callback(pool.give_back, self._level)
            self._lab = lab(level_path(pool.levels[self._level]))
            undo.pop_all()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, seeded by the environment's own generator."""
        super().reset(seed=seed, options=options)
        self._lab.reset(seed=int(self.np_random.integers(2**31 - 1)))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Repeat one of the nine actions for some frames."""
        reward = float(self._lab.step(self._raw_actions[int(action)], num_steps=self._action_repeat))
        is_over = not self._lab.is_running()
        observation = self._observation() if is_over else self._observe()
        return observation, reward, is_over, False, {"level": self._level}

    def _observe(self) -> Any:
        """Read the simulator's observation, keep it, and return it as a value of the observation space."""
        shown = self._lab.observations()
        self._image = np.array(shown[RGB], np.uint8)  # the simulator may use its memory again
        if self._words:
            self._instruction = instruction_tokens(str(shown[INSTRUCTION]), self._words, self._buckets)
        return self._observation()

    def _observation(self) -> Any:
        return {"image": self._image, "instruction": self._instruction} if self._words else self._image

    def render(self) -> Any:
        """The newest image, u8 [height, width, 3]."""
        return self._image

    def close(self) -> None:
        """Give the level back and end the simulator."""
        self._pool.give_back(self._level)
        self._lab.close()


def make(
    level: str | Sequence[str],
    *,
    lanes: int,
    width: int = 96,
    height: int = 72,
    action_repeat: int = 4,
    instruction_words: int = 16,
    instruction_buckets: int = 256,
    level_cache: str = "",
    renderer: str = "software",
    runfiles: str = "",
    config: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
) -> LaneBackend:
    """Make the backend of `env.id = "seedbed.services.dmlab.env:make"`.

    Args:
      level: a level's name, several names, or "dmlab30"; lanes take the levels in turn.
      lanes: number of lanes, L.
      width, height: of the image, pixels.
      action_repeat: frames for each agent step.
      instruction_words, instruction_buckets: size of the instruction leaf; 0 words: without it.
      level_cache: directory of compiled maps; empty: none.
      renderer: "software" or "hardware".
      runfiles: directory of DeepMind Lab's own files, if the package does not find it; empty: it does.
      config: more of DeepMind Lab's settings, such as datasetPath for psychlab levels.
      max_episode_steps: episodes are truncated after this many agent steps; None: where the level ends.
    Raises: ConfigError for settings that cannot be used, ImportError without deepmind_lab.
    """
    import deepmind_lab

    names = DMLAB_30 if level == "dmlab30" else (level,) if isinstance(level, str) else tuple(level)
    if not names:
        raise ConfigError("env.kwargs.level: no level named")
    if instruction_words < 0 or not 2 <= instruction_buckets <= 65536:
        raise ConfigError("env.kwargs: instruction_words must be 0 or more, instruction_buckets 2 to 65536")
    if action_repeat < 1:
        raise ConfigError(f"env.kwargs.action_repeat: {action_repeat}; must be at least 1")
    if runfiles:
        deepmind_lab.set_runfiles_path(runfiles)
    cache = LevelCache(Path(level_cache)) if level_cache else None
    settings = {"width": width, "height": height, "logLevel": "WARN", **(config or {})}
    shown = [RGB, INSTRUCTION] if instruction_words else [RGB]

    def lab(path: str) -> Any:
        texts = {name: str(value) for name, value in settings.items()}
        return deepmind_lab.Lab(path, shown, config=texts, renderer=renderer, level_cache=cache)

    pool = LevelPool(names)

    def lane() -> gymnasium.Env[Any, Any]:
        made: gymnasium.Env[Any, Any] = LabEnv(
            lab,
            pool,
            width=width,
            height=height,
            action_repeat=action_repeat,
            words=instruction_words,
            buckets=instruction_buckets,
            render_mode=render_mode,
        )
        return made if max_episode_steps is None else gymnasium.wrappers.TimeLimit(made, max_episode_steps)

    return LaneBackend(lane, lanes)
