"""The process that makes one small group of an environment, steps it, and says what it is."""

import time
from typing import Any

import numpy as np

from seedbed.actor_svc.envs import describe_backend, make_smallest_group, newer_id
from seedbed.actor_svc.group import EnvGroup
from seedbed.actor_svc.pictures import be_headless
from seedbed.services.tools.cli.env.remote_backend import make_remote_group
from seedbed.services.tools.cli.probe.child import answer_to
from seedbed.services.tools.cli.probe.record import Probe, to_json
from seedbed.shared.errors import EnvError
from seedbed.shared.runtime.config import EnvConfig, EvalConfig

STEP_S = 0.2  # how long it is stepped, seconds
MAX_TICKS = 200


def look(request: dict[str, Any]) -> dict[str, Any]:
    """The probe of request["env"], an [env] section."""
    env = EnvConfig.model_validate(request["env"])
    be_headless()
    try:
        return to_json(probe_group(env))
    except EnvError as error:
        raise EnvError(f"env.id: {env.id}: {error}") from error


def probe_group(env: EnvConfig) -> Probe:
    """Make, reset, step and close one group. Raises: ConfigError, EnvError."""
    group = (
        make_remote_group(env, EvalConfig(), 1, is_built=True) if env.service else make_smallest_group(env, threads=1)
    )
    try:
        group.reset(0)
        ranges = _Ranges(group)
        tick_s = _time_ticks(group, ranges)
        counters = group.counters()
        if counters.rebuilds and not counters.steps:
            raise EnvError(counters.last_failure)
        return Probe(
            spec=group.spec,
            backend="service" if env.service else describe_backend(env),
            about=group.about,
            lanes=group.lanes,
            tick_s=tick_s,
            seen=ranges.seen(),
            newer_id="" if env.service else newer_id(env.id),
            failure=counters.last_failure,
        )
    finally:
        group.close()


class _Ranges:
    """The least and the greatest value of each leaf so far."""

    def __init__(self, group: EnvGroup) -> None:
        self._group = group
        leaves = group.spec.observation.leaves()
        self._low, self._high = np.full(len(leaves), np.inf), np.full(len(leaves), -np.inf)

    def observe(self) -> None:
        """Take in the newest rows; NaN counts as nothing."""
        for index, values in enumerate(self._group.views.observation):
            if values.size:
                self._low[index] = np.fmin(self._low[index], values.min())
                self._high[index] = np.fmax(self._high[index], values.max())

    def seen(self) -> tuple[tuple[float, float], ...]:
        """Return the least and the greatest value of each leaf, (inf, -inf) for a leaf without elements."""
        return tuple(zip(self._low.tolist(), self._high.tolist(), strict=True))


def _time_ticks(group: EnvGroup, ranges: _Ranges) -> float:
    """Seconds for one tick with random actions, resets included; the first tick does not count."""
    generator = np.random.default_rng(0)
    ranges.observe()
    group.advance(group.random_actions(generator))
    ticks, seconds = 0, 0.0
    while ticks == 0 or (ticks < MAX_TICKS and seconds < STEP_S):
        ranges.observe()
        begun = time.perf_counter()
        group.advance(group.random_actions(generator))
        seconds += time.perf_counter() - begun
        ticks += 1
    return seconds / ticks


if __name__ == "__main__":
    answer_to(look)
