"""CarRacing made cheap enough to learn on a small machine: small gray images, several frames for each action.

Gymnasium draws each frame with some hundred antialiased polygons in Python, which takes twenty times as long as the
physics. Here only what an agent sees is drawn: one frame for each action, and of that what lies in view.
"""

import math
from typing import Any

import gymnasium
import numpy as np
import pygame
from gymnasium import spaces
from gymnasium.envs.box2d.car_racing import FPS, GRASS_DIM, SCALE, WINDOW_H, WINDOW_W, ZOOM, CarRacing
from gymnasium.wrappers import TimeLimit

from seedbed.actor_svc.backends.area import AreaShrink
from seedbed.shared.protocol.layout import Array

MAX_STEPS = 1000  # frames of an episode, as CarRacing-v3 is registered
# Size of the picture before it is shrunk, pixels: twice CarRacing's 84 rows of road and 96 columns.
HEIGHT, WIDTH = 168, 192
ACROSS, DOWN = WIDTH / WINDOW_W, HEIGHT / (WINDOW_H * 84 / 96)  # pixels of the picture for each pixel of the window
MARGIN = 60.0  # pixels around the window: every tile that reaches into view has a corner within this margin
GRAY = (0.299, 0.587, 0.114)  # weights of red, green and blue in brightness (ITU-R BT.601)


class _DrawnOnRequest(CarRacing):
    """CarRacing-v3 whose observations are blank; `picture` draws what they would show of the road and the car."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._blank: Array = np.zeros((96, 96, 3), np.uint8)
        self._corners: Array = np.zeros((0, 4, 2))  # corners of squares of grass and tiles of road, world coordinates
        self._colors: list[Any] = []  # their colours; a tile's changes when the car has been there
        self._surface = pygame.Surface((WIDTH, HEIGHT), depth=8)

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        """Begin an episode on a new track, and store the corners and colours of its grass and road for `picture`."""
        answer: tuple[Array, dict[str, Any]] = super().reset(**options)
        x, y = np.meshgrid(np.arange(-20, 20, 2.0), np.arange(-20, 20, 2.0))
        square = np.array([(1, 0), (0, 0), (0, 1), (1, 1)])
        grass = GRASS_DIM * (np.stack([x.ravel(), y.ravel()], -1)[:, None] + square)
        road = np.array([tile for tile, _ in self.road_poly])
        self._corners = np.concatenate([grass, road])
        self._colors = [self.grass_color] * len(grass) + [color for _, color in self.road_poly]
        return answer

    def _render(self, mode: str) -> Any:
        return self._blank if mode == "state_pixels" else super()._render(mode)

    def picture(self) -> Array:
        """Draw the road and the car as they are now and return the picture in gray, u8 [HEIGHT, WIDTH]."""
        surface, car = self._surface, self._car
        surface.fill(_gray(self.bg_color))
        seen = self._on_screen(self._corners)
        window = (-MARGIN, WINDOW_W + MARGIN), (-MARGIN, WINDOW_H + MARGIN)
        inside = [(seen[..., axis] >= low) & (seen[..., axis] <= high) for axis, (low, high) in enumerate(window)]
        for index in np.flatnonzero((inside[0] & inside[1]).any(1)):
            pygame.draw.polygon(surface, _gray(self._colors[index]), _points(seen[index]))
        for part in car.drawlist:
            for fixture in part.fixtures:
                corners = np.array([fixture.body.transform * vertex for vertex in fixture.shape.vertices])
                pygame.draw.polygon(surface, _gray(255 * np.asarray(part.color)), _points(self._on_screen(corners)))
        picture: Array = pygame.surfarray.array2d(surface).T
        return picture

    @property
    def _car(self) -> Any:
        """The car, which exists after the first reset."""
        return self.car

    def _on_screen(self, world: Array) -> Array:
        """Convert points [..., 2] from world coordinates to the window's, in pixels.

        As in Gymnasium's window, the car is low in the middle and faces up.
        """
        hull = self._car.hull
        zoom = 0.1 * SCALE * max(1 - self.t, 0) + ZOOM * SCALE * min(self.t, 1)
        cosine, sine = math.cos(-hull.angle), math.sin(-hull.angle)
        turned = (world - np.array(hull.position)) @ (zoom * np.array([(cosine, sine), (-sine, cosine)]))
        return np.stack([turned[..., 0] + WINDOW_W / 2, WINDOW_H * 3 / 4 - turned[..., 1]], -1)


def _gray(color: Any) -> int:
    """Return the brightness, 0…255, of a colour given as red, green and blue."""
    return int(sum(float(part) * weight for part, weight in zip(color, GRAY, strict=True)))


def _points(corners: Array) -> list[tuple[float, float]]:
    """Convert points [N, 2] from the window's pixels to the picture's."""
    return [(x * ACROSS, y * DOWN) for x, y in corners]


class SmallRacing(gymnasium.Wrapper[Array, Any, Array, Any]):
    """CarRacing that repeats each action for `frames` frames and sums their rewards.

    An observation is uint8 [2, size, size]: the road in gray now and one action before, so that it shows motion.
    """

    def __init__(self, env: gymnasium.Env[Array, Any], *, size: int, frames: int) -> None:
        super().__init__(env)
        self.metadata = {**env.metadata, "image": "CHW", "render_fps": FPS // frames}
        self.observation_space = spaces.Box(0, 255, (2, size, size), np.uint8)
        self._size, self._frames = size, frames
        self._shrink = AreaShrink(HEIGHT, WIDTH, size)
        self._before: Array = np.zeros((1, size, size), np.uint8)

    def reset(self, **options: Any) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; both pictures of its first observation are the same."""
        _, info = self.env.reset(**options)
        self._before = self._picture()
        return np.concatenate([self._before, self._before]), info

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Repeat the action for some frames, or until the episode ends, and sum the rewards."""
        total = 0.0
        for _ in range(self._frames):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        now, before = self._picture(), self._before
        self._before = now
        return np.concatenate([now, before]), total, terminated, truncated, info

    def _picture(self) -> Array:
        """Return the present picture, gray and shrunk, u8 [1, size, size]."""
        small: Array = np.empty((1, self._size, self._size), np.uint8)
        self._shrink(self.env.unwrapped.picture()[None], small)  # type: ignore[attr-defined]
        return small


def make_racing(
    *, continuous: bool = False, size: int = 48, frames: int = 4, render_mode: str | None = None
) -> SmallRacing:
    """Make the environment of `env.id = "seedbed.services.box2d.env:make_racing"`.

    Args:
      continuous: whether actions are three numbers, for steering, gas and brake; else one of five actions.
      size: height and width of an observation, pixels.
      frames: for how many frames each action is repeated.
    Raises: ImportError without Box2D.
    """
    made = _DrawnOnRequest(continuous=continuous, render_mode=render_mode)
    return SmallRacing(TimeLimit(made, MAX_STEPS), size=size, frames=frames)
