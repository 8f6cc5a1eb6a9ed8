"""A game on the screen: what keys do to it and what it looks like; no terminal, no clock.

A person's game goes one step for each key. A policy's game goes on by itself, can be paused and stepped.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
from rich.box import ROUNDED
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from actor_svc.group import Group
from services.cli.env.keys import action_keys, describe_keys
from services.cli.env.screen import describe_flags, draw_group
from shared.protocol.rows import Flags

MAX_FPS, MIN_FPS = 120.0, 0.5


class Game(ABC):
    """A group, of which lane 0 is shown, and how its episodes went. One thread."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.is_over = False
        self.returns: list[float] = []
        self.note = ""
        self._steps, self._return = 0, 0.0

    def press(self, key: str) -> None:
        """A key was pressed; q ends the game."""
        self.note = ""
        if key == "q":
            self.is_over = True
        else:
            self.use(key)

    def draw(self, columns: int, rows: int) -> RenderableType:
        """All of it, for a terminal of this size."""
        views = self.group.views
        flags = describe_flags(int(views.flags[0]))
        number = len(self.returns) + (not self.has_ended)
        figures = f"episode {number}   step {self._steps}   return {self._return:g}"
        figures += f"   reward {float(views.reward[0]):g}" + (f"   {flags}" if flags else "")
        lines: list[RenderableType] = [draw_group(self.group, columns - 4, rows), Text(figures, "bold")]
        lines.append(Text(self.note or self.help(), "yellow" if self.note else "dim"))
        return Panel(Lines(*lines), title=f"[bold]{self.group.spec.env_id}[/]", box=ROUNDED, expand=False)

    def summary(self) -> str:
        """For when it is over."""
        if not self.returns:
            return f"no whole episode; return so far {self._return:g} after {self._steps} steps"
        shown = ", ".join(f"{value:g}" for value in self.returns[-10:])
        return f"{len(self.returns)} episodes, returns {shown}; mean {float(np.mean(self.returns)):g}"

    @abstractmethod
    def use(self, key: str) -> None:
        """A key other than q."""

    @abstractmethod
    def help(self) -> str:
        """What keys do, in one line."""

    @property
    @abstractmethod
    def wait_s(self) -> float | None:
        """How long to wait for a key before `pass_time`; None: until one comes."""

    @abstractmethod
    def pass_time(self) -> None:
        """That long no key came."""

    @property
    def has_ended(self) -> bool:
        """The newest row ended lane 0's episode."""
        ended = self.group.ended_lanes
        return bool(ended.size) and int(ended[0]) == 0

    def count(self) -> None:
        """Take the newest rows into the figures."""
        views = self.group.views
        is_first = bool(views.flags[0] & Flags.FIRST)
        self._steps = 0 if is_first else self._steps + 1
        self._return = 0.0 if is_first else self._return + float(views.reward[0])
        if self.has_ended:
            self.returns.append(float(self.group.ended_statistics[0, 0]))


class PersonsGame(Game):
    """A step for each key that is an action; other lanes of the group act at random."""

    wait_s = None

    def __init__(self, group: Group, *, seed: int, mapping: str = "") -> None:
        super().__init__(group)
        self.keys = action_keys(group.spec.action, mapping)
        self._generator = np.random.default_rng(seed)
        group.reset(seed)
        self.count()

    def use(self, key: str) -> None:
        """Act, if the key is an action and that is allowed now."""
        action = self.keys.get(key)
        mask = self.group.views.mask
        if action is None:
            self.note = f"{key!r} is no action here"
        elif mask is not None and mask[0].any() and not mask[0, action - self.group.spec.action.leaves()[0].starts[0]]:
            self.note = f"action {action} is not allowed now"
        else:
            actions = self.group.random_actions(self._generator)
            actions[0][0] = action
            self.group.advance(actions)
            self.count()

    def help(self) -> str:
        """The actions; after an end any of them goes on."""
        if self.has_ended:
            return "the episode is over; any action begins the next   q quits"
        return f"{describe_keys(self.keys)}   q quits"

    def pass_time(self) -> None:
        """Nothing happens without a key."""


class PolicysGame(Game):
    """Steps by itself, `fps` times a second, unless it is paused."""

    def __init__(self, group: Group, ticks: Iterator[None], *, fps: float) -> None:
        super().__init__(group)
        self.fps, self.is_paused = fps, False
        self._ticks = ticks
        self.pass_time()

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
        """The next frame."""
        if not self.is_paused:
            self._step()

    def help(self) -> str:
        """What keys do."""
        state = "paused" if self.is_paused else f"{self.fps:.0f} steps/s"
        return f"{state}   space pauses   n or → one step   + - speed   q quits"

    def _step(self) -> None:
        next(self._ticks)
        self.count()
