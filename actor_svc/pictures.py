"""Draws lane 0 of a group for people: as the environment renders it, else as the policy sees it."""

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seedbed.actor_svc.envs import MakeEnvironment, make_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.shared.errors import ConfigError, EnvError, LocalWireError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.pictures import pack_picture
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.runtime.config import EnvConfig

HEADLESS = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
MAX_SIDE = 400  # longest side of a picture that is sent, pixels
MAX_SHARE = 0.1  # largest share of the environment thread's time for drawing: some environments draw all lanes


def be_headless() -> None:
    """Set the variables that keep drawing libraries from looking for a screen or a sound card."""
    for name, value in HEADLESS.items():
        os.environ.setdefault(name, value)


def make_watched_group(
    env: EnvConfig, lanes: int, *, make: MakeEnvironment | None = None, threads: int = 0
) -> EnvGroup:
    """Return a group whose lane 0 can be drawn, or one without drawing where the environment does not support it.

    Raises: as `make_group`.
    """
    be_headless()
    try:
        return make_group(env, lanes, make=make, render=True, threads=threads)
    except (ConfigError, EnvError):  # it has no render_mode, or not this one; any other error is raised again below
        return make_group(env, lanes, make=make, threads=threads)


def picture_of(group: EnvGroup) -> Array:
    """Return lane 0 as the environment draws it, else as the policy sees it, u8 [height, width, 3].

    Raises: EnvError if it can be shown in neither way.
    """
    why = "it draws no pictures (support render_mode 'rgb_array', or in another language the capability 'render')"
    try:
        picture: Any = group.render()
    except EnvError as error:
        picture, why = None, f"render() failed with {str(error).rstrip(': ')}"
    if picture is None:
        picture = observed_picture(group.spec, group.views.observation)
    if picture is None:
        raise EnvError(f"{group.spec.env_id} cannot be shown: {why}, and no observation is an image")
    shown: Array = picture
    return shown


def observed_picture(spec: EnvSpec, observation: Sequence[Array]) -> Array | None:
    """Return lane 0's first image observation as u8 [height, width, 3]; None if there is none.

    Args:
      observation: observation leaves [L, ...].
    """
    images = (
        as_rgb(view[0], leaf.image)
        for leaf, view in zip(spec.observation.leaves(), observation, strict=True)
        if leaf.image
    )
    return next(images, None)


def as_rgb(image: Array, axes: str) -> Array:
    """Return an image with the given axes, "HW", "HWC" or "CHW", as [height, width, 3].

    These are its first three channels, or its first one three times where it has fewer.
    """
    image = image[..., None] if axes == "HW" else np.moveaxis(image, 0, -1) if axes == "CHW" else image
    return image[..., :3] if image.shape[-1] >= 3 else np.repeat(image[..., :1], 3, -1)


def shrink(picture: Array, max_side: int = MAX_SIDE) -> Array:
    """Shrink a picture until no side is longer than `max_side`, by means over squares of pixels.

    Rows and columns that fill no square are cut off.
    """
    factor = -(-max(picture.shape[:2]) // max_side)
    if factor == 1:
        return picture
    height, width = (size // factor for size in picture.shape[:2])
    if not height or not width:  # the picture is narrower than one square
        return picture[::factor, ::factor]
    squares = picture[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    shrunk: Array = squares.mean((1, 3), dtype=np.float32).astype(np.uint8)
    return shrunk


class Camera:
    """Draws a group's lane 0 until that fails once. Owned by the thread of the group's environments.

    Args:
      max_share: largest share of the thread's time that drawing may take; 1: draw whenever it is asked for.
    """

    def __init__(
        self, group: EnvGroup, max_share: float = MAX_SHARE, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._group, self._max_share, self._clock = group, max_share, clock
        self._rest_until = -math.inf
        self.problem = ""  # why there are no pictures

    def capture(self) -> bytes | None:
        """Return the payload frame of lane 0's picture; None if it cannot be drawn, or it is too early for another."""
        if self.problem or (started := self._clock()) < self._rest_until:
            return None
        try:
            frame = pack_picture(shrink(picture_of(self._group)))
            ended = self._clock()
            self._rest_until = ended + (ended - started) * (1 / self._max_share - 1)
            return frame
        except (EnvError, LocalWireError) as error:
            self.problem = str(error)
            return None
