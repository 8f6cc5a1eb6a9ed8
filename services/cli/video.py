"""Groups as pictures, and pictures as MP4."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actor_svc.envs import make_smallest_group
from actor_svc.group import Group
from actor_svc.pictures import be_headless, picture_of
from shared.errors import ConfigError, MissingExtraError
from shared.protocol.layout import Array
from shared.runtime.config import EnvConfig

MAX_VIDEO_FRAMES = 4000  # of one episode
VIDEO_FPS = 30
MIN_VIDEO_HEIGHT = 300  # smaller pictures are enlarged by whole factors, pixels
QUIET = ["-loglevel", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a video shows."""

    frames: int
    returns: tuple[float, ...]  # of the episodes that ended in it


def make_shown_group(env: EnvConfig) -> Group:
    """A group of as few lanes as can be, whose lane 0 can be shown, without a window.

    Raises: ConfigError, EnvError as `make_group`.
    """
    be_headless()
    if env.backend != "envpool":  # the one back-end that shows what it steps, and may alone have the environment
        env = env.model_copy(update={"backend": "auto"})
    return make_smallest_group(env, render=True)


def play_randomly(group: Group, seed: int) -> Iterator[None]:
    """Reset the group, then step it with random actions, one tick for each `next`, without end."""
    generator = np.random.default_rng(seed)
    group.reset(seed)
    yield
    while True:
        group.advance(group.random_actions(generator))
        yield


def write_video(group: Group, ticks: Iterator[None], file: Path, *, fps: float, episodes: int = 1) -> Recorded:
    """Write lane 0's first episodes as MP4.

    Args:
      ticks: each `next` makes one tick of the group; the first one resets it.
    Raises: MissingExtraError without imageio, EnvError if the environment cannot be shown, ConfigError if
      the file cannot be written.
    """
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: F401  the encoder that imageio finds
    except ImportError as error:
        raise MissingExtraError(error.name or "imageio", "torch") from error
    next(ticks)
    frame = enlarge(picture_of(group))
    _claim(file)
    frames, returns = 0, []
    writer: Any = imageio.get_writer(file, format="FFMPEG", fps=fps, macro_block_size=2, output_params=QUIET)
    with writer:
        while frames < MAX_VIDEO_FRAMES * episodes:
            writer.append_data(frame)
            frames += 1
            if group.ended_lanes.size and group.ended_lanes[0] == 0:
                returns.append(float(group.ended_statistics[0, 0]))
                if len(returns) == episodes:
                    break
            next(ticks)
            frame = enlarge(picture_of(group))
    return Recorded(frames=frames, returns=tuple(returns))


def enlarge(picture: Array) -> Array:
    """At least MIN_VIDEO_HEIGHT high, by a whole factor."""
    factor = -(-MIN_VIDEO_HEIGHT // len(picture))
    return np.ascontiguousarray(picture.repeat(factor, 0).repeat(factor, 1))


def _claim(file: Path) -> None:
    """See that a file can be written before the encoder tries, whose complaint would be a broken pipe."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise ConfigError(f"{file}: no video can be written here: {error.strerror}") from error
