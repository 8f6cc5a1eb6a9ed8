"""MiniGrid environments with observations that the protocol can carry: image, direction and mission."""

from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from seedbed.shared.errors import ConfigError

View = Literal["agent", "full"]
Encoding = Literal["image", "categories", "rgb"]

LETTERS = "".join(chr(code) for code in range(32, 127))
DIRECTIONS = 4  # which an agent may face; in a view of the whole grid its cell's state says which


class MiniGridEnv(gymnasium.ObservationWrapper[dict[str, Any], Any, Any]):
    """A MiniGrid environment; observations are a Dict of `image`, and `direction` and `mission` if asked for.

    Args:
      env: a MiniGrid environment whose `image` is uint8 [width, height, 3]: what lies in a cell, its colour and state.
      encoding: "image" or "rgb": `image` as the environment gives it, cells or pixels, uint8 "HWC"; "categories": the
        cells as MultiDiscrete, which the policy sees one-hot.
      direction: whether to add a leaf Discrete(4), where the agent looks: right, down, left, up.
      mission_length: longest instruction, characters, as a Text leaf; longer ones are cut; 0: without it.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, encoding: Encoding, direction: bool, mission_length: int
    ) -> None:
        super().__init__(env)
        own = env.observation_space
        assert isinstance(own, spaces.Dict)
        image = own["image"]
        assert isinstance(image, spaces.Box)
        self._mission_length = mission_length
        leaves: dict[str, spaces.Space[Any]] = {"image": image}
        if encoding == "categories":
            leaves["image"] = spaces.MultiDiscrete(np.broadcast_to(_categories(), image.shape), dtype=np.uint8)
        if direction:
            leaves["direction"] = own["direction"]
        if mission_length:
            leaves["mission"] = spaces.Text(mission_length, min_length=0, charset=LETTERS)
        self._names = tuple(leaves)
        self.observation_space = spaces.Dict(leaves)
        self.metadata = {**env.metadata, "image": {"image": "HWC"}}

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the chosen parts of MiniGrid's own observation, with the mission cut to its length."""
        chosen = {name: observation[name] for name in self._names}
        if self._mission_length:
            chosen["mission"] = observation["mission"][: self._mission_length]
        return chosen


def _categories() -> list[int]:
    """Return how many objects, colours and states there are for a cell: three numbers."""
    from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX

    return [len(OBJECT_TO_IDX), len(COLOR_TO_IDX), max(len(STATE_TO_IDX), DIRECTIONS)]


def make(
    env: str,
    *,
    view: View = "agent",
    encoding: Encoding = "image",
    direction: bool = True,
    mission_length: int = 128,
    tile_size: int = 8,
    options: dict[str, Any] | None = None,
    render_mode: str | None = None,
) -> MiniGridEnv:
    """Make the environment of `env.id = "seedbed.services.minigrid.env:make"`.

    Args:
      env: a registered id such as MiniGrid-DoorKey-5x5-v0 or BabyAI-GoToObj-v0.
      view: "agent": the 7 × 7 cells before the agent; "full": the whole grid with the agent in it.
      encoding: how cells are encoded: "image", "categories" or "rgb" (pixels).
      direction, mission_length: as in MiniGridEnv.
      tile_size: edge of a cell in "rgb", pixels.
      options: keyword arguments of the environment's constructor.
    Raises: ConfigError for an unknown view or encoding, ImportError without minigrid.
    """
    if view not in ("agent", "full"):
        raise ConfigError(f"env.kwargs.view: {view!r}; known: agent, full")
    if encoding not in ("image", "categories", "rgb"):
        raise ConfigError(f"env.kwargs.encoding: {encoding!r}; known: image, categories, rgb")
    from minigrid import wrappers  # registers the environments as well

    made = gymnasium.make(env, disable_env_checker=True, render_mode=render_mode, **(options or {}))
    if encoding == "rgb":
        wrap = wrappers.RGBImgObsWrapper if view == "full" else wrappers.RGBImgPartialObsWrapper
        made = wrap(made, tile_size=tile_size)
    elif view == "full":
        made = wrappers.FullyObsWrapper(made)
    return MiniGridEnv(made, encoding=encoding, direction=direction, mission_length=mission_length)
