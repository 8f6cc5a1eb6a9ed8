"""Lanes that a service in any language steps, as a back-end of a group in this process.

So whatever plays, evaluates or records a group of this process does so with a service, which is started for it, stands
in mode `eval`, and is told to leave when the group is closed. Array suffix: L lanes.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from seedbed.actor_svc.backends.backend import ENDED_BITS, FIRST, NO_LANES, About, Backend, RowViews, Traits
from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import action_frames
from seedbed.services.tools.cli.env.one_group import OneGroup
from seedbed.services.tools.cli.env.row_checks import Tick
from seedbed.services.tools.cli.env.scene import drawn_picture
from seedbed.services.tools.cli.env.visit import Visit, visiting
from seedbed.services.tools.cli.service_folder import ServiceFolder, open_service
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Hello, Step
from seedbed.shared.runtime.config import EnvConfig, EvalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one tick of a service brought."""

    hello: Hello
    tick: Tick
    picture: Array | None  # u8 [height, width, 3]


class Evaluated(OneGroup[Seen]):
    """A service whose lanes are stepped from here."""

    rule = "evaluating"
    run_id = "evaluation"
    host = "a policy is evaluated here"

    def read(self, hello: Hello, step: Step, tick: Tick, payload: Sequence[bytes]) -> Seen:
        """All of it, with its picture if there is one."""
        return Seen(hello=hello, tick=tick, picture=drawn_picture(step, payload))


class EvaluatedUnseen(Evaluated):
    """As `Evaluated`, without pictures, which cost time."""

    asks_pictures = False


class RemoteBackend(Backend):
    """Starts the service when it is made. One thread owns it; the link has another."""

    def __init__(self, service: ServiceFolder, lanes: int, *, render: bool, seed: int) -> None:
        """Raises: EnvError if the service does not come or says what cannot be read, ConfigError if it cannot start."""
        self._visit: Visit[Seen] = Visit(Evaluated if render else EvaluatedUnseen)
        self._stack = contextlib.ExitStack()
        options = CheckOptions(mode="eval", groups=1, lanes=lanes, seed=seed)
        self._seen = self._stack.enter_context(visiting(self._visit, service, options))
        hello = self._seen.hello
        self.lanes, self.spec = hello.lanes, hello.spec
        self.traits = Traits(
            observation=self.spec.observation,
            action=self.spec.action,
            mask_size=self.spec.mask_size,
            statistics=self.spec.statistics[2:],
            seeding=hello.seeding,
            about=About(max_episode_steps=self.spec.max_episode_steps),
        )
        self.ended = self.first = NO_LANES
        self._rows: RowViews
        self._is_fresh = True

    @property
    def num_rebuilds(self) -> int:
        """Whatever the service counts, it does not say."""
        return 0

    @property
    def last_failure(self) -> str:
        """Empty: a service does not say why it rebuilt a lane."""
        return ""

    def bind(self, rows: RowViews) -> None:
        """Write from now on into these arrays."""
        self._rows = rows

    def reset(self, seed: int) -> None:
        """By ACT's reset bit; a service without that capability has begun by itself, once."""
        if "reset" in self._seen.hello.capabilities:
            self._visit.tell(lambda life: life.reset(seed))
            self._seen = self._visit.wait()
        elif not self._is_fresh:
            raise EnvError(f"{self.spec.env_id}: its service cannot begin anew: HELLO names no capability `reset`")
        self._take()

    def step(self, actions: Sequence[Array]) -> None:
        """Send actions and take the rows that come."""
        frames = action_frames(self.spec, self.lanes, actions)
        self._visit.tell(lambda life: life.ask(frames))
        self._seen = self._visit.wait()
        self._take()

    def extra_statistics(self, lanes: Array) -> Array:
        """f32 [n, K], as the service sent them."""
        statistics = self._seen.tick.statistics
        if statistics is None or len(statistics) != len(lanes):
            raise EnvError(f"{self.spec.env_id}: its service sent no statistics of {len(lanes)} episodes that ended")
        return statistics[:, 2:]

    def render(self) -> Array | None:
        """The newest picture, if the service draws any."""
        return self._seen.picture

    def close(self) -> None:
        """Tell the service that the run is over, and wait until it has left."""
        self._stack.close()

    def _take(self) -> None:
        """The newest tick into the rows."""
        tick, rows = self._seen.tick, self._rows
        for view, leaf in zip(rows.observation, tick.observation, strict=True):
            view[...] = leaf
        if rows.mask is not None and tick.mask is not None:
            rows.mask[...] = tick.mask
        rows.reward[...], rows.flags[...] = tick.reward, tick.flags
        self.first, self.ended = np.flatnonzero(tick.flags & FIRST), np.flatnonzero(tick.flags & ENDED_BITS)
        self._is_fresh = False


def make_remote_group(
    env: EnvConfig, evaluation: EvalConfig, lanes: int, *, render: bool = False, is_built: bool = False
) -> EnvGroup:
    """A group whose lanes the service of `env.service` steps, as many as it says; it is built first, unless it is.

    Raises: ConfigError, EnvError as `RemoteBackend`.
    """
    service = replace(open_service(env), differences=evaluation.env)
    if not is_built:
        service.build()
    backend = RemoteBackend(service, lanes, render=render, seed=evaluation.seed)
    return EnvGroup(backend, backend.lanes, env_id=backend.spec.env_id, settings=backend.spec.settings)
