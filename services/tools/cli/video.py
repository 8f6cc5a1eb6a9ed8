"""Groups as pictures, and pictures as MP4."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seedbed.actor_svc.envs import make_smallest_group
from seedbed.actor_svc.group import EnvGroup
from seedbed.actor_svc.pictures import be_headless, picture_of
from seedbed.shared.errors import ConfigError, MissingExtraError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.config import EnvConfig

MAX_VIDEO_FRAMES = 4000  # of one episode, or of a video that is to be long enough
MIN_VIDEO_S = 8.0  # of a video whose number of episodes nobody gave
PAUSE_S = 0.5  # for which the last picture of an episode stays, so that its end is seen
VIDEO_FPS = 30.0  # of environments that do not say (metadata["render_fps"])
MAX_FPS = 60.0  # of faster ones each second, third, … picture is shown
ATARI_FPS = 60.0  # of the console, of whose frames each step is several
SUFFIXES = (".mp4", ".m4v", ".mov", ".mkv", ".avi", ".webm")  # of files that the encoder writes
MIN_VIDEO_HEIGHT = 300  # smaller pictures are enlarged by whole factors, pixels
MAX_VIDEO_WIDTH = 1280  # to which they are enlarged at most
QUIET = ["-loglevel", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """How long a video is, and the returns of the episodes in it."""

    frames: int
    seconds: float
    returns: tuple[float, ...]  # of the episodes that ended in it


def make_shown_group(env: EnvConfig) -> EnvGroup:
    """A group of as few lanes as can be, whose lane 0 can be shown, without a window.

    Raises: ConfigError, EnvError as `make_group`.
    """
    be_headless()
    if env.backend != "envpool":  # the one back-end that shows what it steps, and may alone have the environment
        env = env.model_copy(update={"backend": "auto"})
    return make_smallest_group(env, render=True)


def play_randomly(group: EnvGroup, seed: int) -> Iterator[None]:
    """Reset the group, then step it with random actions, one tick for each `next`, without end."""
    generator = np.random.default_rng(seed)
    group.reset(seed)
    yield
    while True:
        group.advance(group.random_actions(generator))
        yield


def speed(group: EnvGroup, env: EnvConfig) -> float:
    """Steps in a second at which an environment is watched: as its metadata says, Atari's as on the console."""
    return ATARI_FPS / env.frame_skip if env.is_atari else group.about.fps or VIDEO_FPS


def write_video(
    group: EnvGroup, ticks: Iterator[None], file: Path, *, fps: float, episodes: int | None = None
) -> Recorded:
    """Write lane 0's first episodes as MP4.

    Args:
      ticks: each `next` makes one tick of the group; the first one resets it.
      fps: so many ticks take a second.
      episodes: so many; none: whole ones until the video is `MIN_VIDEO_S` long.
    Raises: MissingExtraError without imageio, EnvError if the environment cannot be shown, ConfigError if
      the file cannot be written.
    """
    try:
        import imageio.v2 as imageio
        import imageio_ffmpeg  # type: ignore[import-untyped]  # noqa: F401  the encoder that imageio finds
    except ImportError as error:
        raise MissingExtraError(error.name or "imageio", "torch") from error
    check_video_name(file)
    next(ticks)
    picture_of(group)  # what cannot be shown leaves no file
    _claim(file)
    every = math.ceil(fps / MAX_FPS)
    shown_fps, frames, tick, returns = fps / every, 0, 0, []
    writer: Any = imageio.get_writer(file, format="FFMPEG", fps=shown_fps, macro_block_size=2, output_params=QUIET)
    with writer:
        while frames < MAX_VIDEO_FRAMES * (episodes or 1):
            has_ended = bool(group.ended_lanes.size) and group.ended_lanes[0] == 0
            if has_ended or tick % every == 0:
                frame = enlarge(picture_of(group))
                for _ in range(1 + round(PAUSE_S * shown_fps) if has_ended else 1):
                    writer.append_data(frame)
                    frames += 1
            if has_ended:
                returns.append(float(group.ended_statistics[0, 0]))
                if len(returns) == episodes or (episodes is None and frames >= MIN_VIDEO_S * shown_fps):
                    break
            next(ticks)
            tick += 1
    return Recorded(frames=frames, seconds=frames / shown_fps, returns=tuple(returns))


def enlarge(picture: Array) -> Array:
    """Enlarge a picture by a whole factor to at least MIN_VIDEO_HEIGHT, unless it would be too wide."""
    height, width = picture.shape[:2]
    factor = max(1, min(-(-MIN_VIDEO_HEIGHT // height), MAX_VIDEO_WIDTH // width))
    return np.ascontiguousarray(picture.repeat(factor, 0).repeat(factor, 1))


def check_video_name(file: Path) -> None:
    """Raise ConfigError unless a file's name says what the encoder can write."""
    if file.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{file}: a video's name ends in one of {', '.join(SUFFIXES)}")


def _claim(file: Path) -> None:
    """See that a file can be written before the encoder tries, whose complaint would be a broken pipe."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError as error:
        raise ConfigError(f"{file}: no video can be written here: {error.strerror}") from error
