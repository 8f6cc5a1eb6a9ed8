"""A real OpenEnv server: walk along a line of cells, each session with its own seed."""

import contextlib
import random
import socket
import threading
from enum import StrEnum
from typing import Literal

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Gait(StrEnum):
    """How to move."""

    LEFT = "left"
    STAY = "stay"
    RIGHT = "right"


class WalkAction(Action):
    """A gait; the rest has bounds, a default or one value."""

    gait: Gait
    force: float = Field(0.0, ge=-1, le=1)
    lamps: list[int] = Field(default=[0, 0], min_length=2, max_length=2)
    loud: bool = False
    note: str = ""
    version: Literal[1] = 1


class WalkObservation(Observation):
    """Where the walker is, in several forms."""

    cells: list[float]
    place: int
    pixels: list[list[list[int]]]
    at_start: bool
    story: str
    allowed: list[str] = Field(default_factory=list)
    late: bool = False
    hint: str | None = None
    extra: dict[str, int] = Field(default_factory=dict)


class Walk(Environment):
    """Start anywhere but at the end; the last cell ends it with reward 1, `limit` steps cut it short."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    received: list[WalkAction] = []  # noqa: RUF012 of all sessions

    def __init__(self):
        super().__init__()
        self.generator = random.Random()
        self.size, self.limit, self.place, self.count = 4, 0, 0, 0

    def reset(self, seed=None, episode_id=None, size=4, limit=0, **kwargs):
        if seed is not None:
            self.generator = random.Random(seed)
        self.size, self.limit, self.count = size, limit, 0
        self.place = self.generator.randrange(size - 1)
        return self._observe(None)

    def step(self, action, timeout_s=None, **kwargs):
        self.received.append(action)
        if action.note == "raise":
            raise RuntimeError("the walker fell")
        self.count += 1
        self.place = max(self.place + {"left": -1, "stay": 0, "right": 1}[action.gait.value], 0)
        return self._observe(1.0 if self.place == self.size - 1 else None)

    def _observe(self, reward):
        late = self.limit > 0 and self.count == self.limit
        return WalkObservation(
            cells=[float(index == self.place) for index in range(self.size)],
            place=self.place,
            pixels=[[[self.place % 256] * 3] * 2] * 2,
            at_start=self.count == 0,
            story=f"cell {self.place} — “here”",
            allowed=["stay", "right"] if self.place == 0 else ["left", "stay", "right"],
            late=late,
            done=late or reward is not None,
            reward=reward,
        )

    @property
    def state(self):
        return State(step_count=self.count)


@contextlib.contextmanager
def walk_server(sessions=64):
    """The address of a server on loopback with room for so many sessions, for as long as it runs."""
    app = create_fastapi_app(Walk, WalkAction, WalkObservation, max_concurrent_envs=sessions)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
