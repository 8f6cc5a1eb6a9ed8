"""Lanes that a service in any language steps, as a back-end of a group in this process.

So whatever plays, evaluates or records a group of this process does so with a service. Array suffix: L lanes.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from seedbed.actor_svc.backends.backend import ENDED_BITS, FIRST, NO_LANES, About, Backend, RowViews, Traits
from seedbed.actor_svc.group import EnvGroup
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import action_frames
from seedbed.services.tools.cli.env.visit import Visit
from seedbed.services.tools.cli.service_folder import open_service
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.layout import Array
from seedbed.shared.runtime.config import EnvConfig, EvalConfig


class RemoteBackend(Backend):
    """Steps the group of a service. One thread owns it; the link has another."""

    def __init__(self, visit: Visit) -> None:
        """Wait for the first tick. Raises: as `Visit.wait_tick`, also for what cannot be read."""
        self._visit = visit
        self._seen = visit.wait_tick()
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
        """Always 0: a service does not say how many lanes it rebuilt."""
        return 0

    @property
    def last_failure(self) -> str:
        """Empty: a service does not say why it rebuilt a lane."""
        return ""

    def bind(self, rows: RowViews) -> None:
        """Write from now on into these arrays."""
        self._rows = rows

    def reset(self, seed: int) -> None:
        """Ask the service to reset, by a bit of ACT; without that capability it has begun by itself, and only once."""
        if "reset" in self._seen.hello.capabilities:
            self._visit.tell(lambda group: group.reset(seed))
            self._seen = self._visit.wait_tick()
        elif not self._is_fresh:
            raise EnvError(f"{self.spec.env_id}: its service cannot begin anew: HELLO names no capability `reset`")
        self._take()

    def step(self, actions: Sequence[Array]) -> None:
        """Send actions and take the rows that come."""
        frames = action_frames(self.spec, self.lanes, actions)
        self._visit.tell(lambda group: group.ask(frames))
        self._seen = self._visit.wait_tick()
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
        self._visit.close()

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


def group_of(visit: Visit) -> EnvGroup:
    """Return the group of a service as one of this process, of as many lanes as it says. Raises: as `RemoteBackend`."""
    backend = RemoteBackend(visit)
    return EnvGroup(backend, backend.lanes, env_id=backend.spec.env_id, settings=backend.spec.settings)


def make_remote_group(
    env: EnvConfig, evaluation: EvalConfig, lanes: int, *, render: bool = False, is_built: bool = False
) -> EnvGroup:
    """Return a group whose lanes the service of `env.service` steps; it is built first, unless it is.

    Raises: ConfigError if it cannot be started, EnvError as `RemoteBackend`.
    """
    service = replace(open_service(env), differences=evaluation.env)
    if not is_built:
        service.build()
    options = CheckOptions(mode="eval", groups=1, lanes=lanes, seed=evaluation.seed)
    with contextlib.ExitStack() as undo:
        group = group_of(undo.enter_context(Visit(service, options, asks_pictures=render)))
        undo.pop_all()
    return group
