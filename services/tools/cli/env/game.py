"""A game on the screen: what keys do to it and what it looks like; no terminal, no clock.

A person's game goes one step for each key. A policy's game goes on by itself, can be paused and stepped.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
from rich.box import ROUNDED
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.keys import action_keys, describe_keys
from seedbed.services.tools.cli.env.scene import scene_of_group
from seedbed.services.tools.cli.env.screen import describe_flags, draw_scene
from seedbed.shared.protocol.rows import Flags

MAX_FPS, MIN_FPS = 120.0, 0.5
LOOK_EVERY_S = 0.5  # whether what is played is still there, while no key comes


class Game(ABC):
    """What is shown of an environment, and how its episodes went. One thread at a time."""

    def __init__(self, group: EnvGroup) -> None:
        """`group`: it has been reset."""
        self._group = group
        self.is_over = False
        self.returns: list[float] = []
        self.note = ""
        self.steps, self.episode_return = 0, 0.0  # of the episode under way
        self.show()

    def press(self, key: str) -> None:
        """A key was pressed; q ends the game."""
        self.note = ""
        if key == "q":
            self.is_over = True
        else:
            self.use(key)

    def draw(self, columns: int, rows: int) -> RenderableType:
        """All of it, for a terminal of this size."""
        scene, flags = self.scene, describe_flags(self.scene.flags)
        figures = f"episode {self.episode}   step {self.steps}   return {self.episode_return:g}"
        figures += f"   reward {scene.reward:g}" + (f"   {flags}" if flags else "")
        lines: list[RenderableType] = [draw_scene(scene, columns - 4, rows), Text(figures, "bold")]
        lines.append(Text(self.note or self.help(), "yellow" if self.note else "dim"))
        return Panel(Lines(*lines), title=f"[bold]{escape(scene.spec.env_id)}[/]", box=ROUNDED, expand=False)

    def summary(self) -> str:
        """What is printed when the game is over."""
        if not self.returns:
            return f"no whole episode; return so far {self.episode_return:g} after {self.steps} steps"
        shown = ", ".join(f"{value:g}" for value in self.returns[-10:])
        return f"{len(self.returns)} episodes, returns {shown}; mean {float(np.mean(self.returns)):g}"

    @abstractmethod
    def use(self, key: str) -> None:
        """Handle a key; q is handled by the caller."""

    @abstractmethod
    def help(self) -> str:
        """What keys do, in one line."""

    @property
    @abstractmethod
    def wait_s(self) -> float | None:
        """How long to wait for a key before `pass_time`; None: until one comes."""

    @abstractmethod
    def pass_time(self) -> None:
        """Handle that no key came for so long."""

    @property
    def episode(self) -> int:
        """Number of the episode that is shown, from 1."""
        return len(self.returns) + (not self.scene.has_ended)

    def show(self) -> None:
        """Take the group's newest rows into the figures."""
        self.scene = scene = scene_of_group(self._group)
        is_first = bool(scene.flags & Flags.FIRST)
        self.steps = 0 if is_first else self.steps + 1
        self.episode_return = 0.0 if is_first else self.episode_return + scene.reward
        if scene.has_ended:
            self.returns.append(self.episode_return if scene.ended_return is None else scene.ended_return)


class PersonsGame(Game):
    """A step for each key that is an action: the person acts in lane 0, other lanes at random."""

    wait_s = LOOK_EVERY_S

    def __init__(
        self, group: EnvGroup, seed: int, *, mapping: str = "", check: Callable[[], None] = lambda: None
    ) -> None:
        """`check` raises EnvError if there is nothing to play any more."""
        self.keys = action_keys(group.spec.action, mapping)
        group.reset(seed)
        super().__init__(group)
        self._generator, self._check = np.random.default_rng(seed), check

    def use(self, key: str) -> None:
        """Act, if the key is an action and that is allowed now."""
        action = self.keys.get(key)
        mask = self.scene.mask
        if action is None:
            self.note = f"{key!r} is no action here"
        elif mask is not None and mask.any() and not mask[action - self.scene.spec.action.leaves()[0].starts[0]]:
            self.note = f"action {action} is not allowed now"
        else:
            actions = self._group.random_actions(self._generator)
            actions[0][0] = action
            self._group.advance(actions)
            self.show()

    def help(self) -> str:
        """The actions; after an end any of them goes on."""
        if self.scene.has_ended:
            return "the episode is over; any action begins the next   q quits"
        return f"{describe_keys(self.keys)}   q quits"

    def pass_time(self) -> None:
        """Do nothing until a key is pressed, but raise the error if the environment has failed."""
        self._check()


class PolicysGame(Game):
    """Steps by itself, `fps` times a second, unless it is paused."""

    def __init__(self, group: EnvGroup, ticks: Iterator[None], *, fps: float) -> None:
        next(ticks)
        super().__init__(group)
        self.fps, self.is_paused, self._ticks = fps, False, ticks

    @property
    def wait_s(self) -> float | None:
        """The time of one frame; paused: as long as it takes."""
        return None if self.is_paused else 1.0 / self.fps

    def use(self, key: str) -> None:
        """Pause, go on, step, faster, slower."""
        if key == "space":
            self.is_paused = not self.is_paused
        elif key in ("right", "n"):
            self.is_paused = True
            self._step()
        elif key in ("+", "up"):
            self.fps = min(MAX_FPS, 1.5 * self.fps)
        elif key in ("-", "down"):
            self.fps = max(MIN_FPS, self.fps / 1.5)
        else:
            self.note = f"{key!r} does nothing here"

    def pass_time(self) -> None:
        """Step once, unless the game is paused."""
        if not self.is_paused:
            self._step()

    def help(self) -> str:
        """The keys and what they do, for people."""
        state = "paused" if self.is_paused else f"{self.fps:.0f} steps/s"
        return f"{state}   space pauses   n or → one step   + - speed   q quits"

    def _step(self) -> None:
        next(self._ticks)
        self.show()
