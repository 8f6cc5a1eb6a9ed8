"""Lanes of single Gymnasium environments, stepped one by one, or all at once where each of them waits for a server.

One that fails is rebuilt alone.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np

from actor_svc.backends.backend import (
    ENDED_BITS,
    FIRST,
    LIFE_LOST,
    MAX_FAILURES,
    NO_LANES,
    TERMINATED,
    TRUNCATED,
    Array,
    RowViews,
    ValueCheck,
    call_environment,
    read_traits,
)
from actor_svc.backends.lane_rows import action_reader, draw_seed, write_absent, write_lane
from shared.errors import EnvError

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Answer = Future[Any]  # of a step or a reset
_MAX_WAIT_TICKS = 256
_MAX_THREADS = 64


class _Lane:
    """One environment and where it is in its episode."""

    __slots__ = ("env", "info", "lives", "needs_reset", "num_failures", "seed", "wait_ticks")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.seed: np.random.SeedSequence = np.random.SeedSequence(0)
        self.needs_reset = True
        self.lives = 0
        self.info: Mapping[str, Any] = {}
        self.num_failures = 0  # since its last good step
        self.wait_ticks = 0  # until the next attempt to rebuild it


class LaneBackend:
    """L single environments.

    A lane that raises or gives what is no number is made anew and goes on with its `first` row. While that fails too,
    its rows are `first` and `absent`, tried again after 1, 2, 4, … ticks; after MAX_FAILURES it is an EnvError.
    With `metadata["concurrent"]` of the environment all lanes step and reset at the same time: each in one thread at
    once, but not always in the same.
    """

    def __init__(self, make: MakeEnv, lanes: int, *, track_lives: bool = False, image: str = "") -> None:
        self._make, self._track_lives = make, track_lives
        self._lanes = [_Lane(call_environment(make))]
        env = self._lanes[0].env
        _, info = call_environment(env.reset, seed=0)
        self.traits = read_traits(env, env.observation_space, env.action_space, info, seeding="lane", image=image)
        self._lanes += [_Lane(call_environment(make)) for _ in range(lanes - 1)]
        is_concurrent = lanes > 1 and bool((env.metadata or {}).get("concurrent", False))
        self._pool = ThreadPoolExecutor(min(lanes, _MAX_THREADS), "lane") if is_concurrent else None
        self._leaves = self.traits.observation.leaves()
        self._action = action_reader(self.traits.action)
        self._failing: set[int] = set()  # lanes without a good step since their last failure
        self.num_rebuilds, self.last_failure = 0, ""
        self.ended, self.first = NO_LANES, NO_LANES
        self._rows: RowViews

    def bind(self, rows: RowViews) -> None:
        """Write from now on into these arrays."""
        self._rows, self._check = rows, ValueCheck(self._leaves, rows)

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every lane; lane i is seeded with the i-th child of the seed."""
        for lane, child in zip(self._lanes, np.random.SeedSequence(seed).spawn(len(self._lanes)), strict=True):
            lane.seed, lane.wait_ticks, lane.num_failures = child, 0, 0
        pool = self._pool
        answers: list[Answer | None] = [
            None if pool is None else pool.submit(call_environment, lane.env.reset, seed=draw_seed(lane.seed))
            for lane in self._lanes
        ]
        for index, lane in enumerate(self._lanes):
            try:
                self._begin(index, lane, draw_seed(lane.seed), answers[index])
            except EnvError as error:
                self._fail(index, lane, error)
        self._repair()

    def step(self, actions: Sequence[Array]) -> None:
        """Step every lane, or reset it where its last row ended an episode."""
        values = self._action([np.array(leaf) for leaf in actions])
        rows = self._rows
        reward, flags = rows.reward, rows.flags
        answers = None if self._pool is None else self._ask(self._pool, values)
        for index, lane in enumerate(self._lanes):
            try:
                if lane.needs_reset:
                    self._begin(index, lane, None, None if answers is None else answers[index])
                    continue
                if lane.wait_ticks:
                    self._wait(index, lane)
                    continue
                observation, value, terminated, truncated, info = (
                    call_environment(lane.env.step, values[index]) if answers is None else answers[index].result()
                )
                self._write(index, observation, info)
                reward[index] = call_environment(float, value)
            except EnvError as error:
                self._fail(index, lane, error)
                continue
            bits = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
            if self._track_lives:
                bits |= self._count_lives(lane, info)
            flags[index] = bits
            lane.info, lane.needs_reset = info, bits & ENDED_BITS != 0
        self._repair()

    def _ask(self, pool: ThreadPoolExecutor, values: Sequence[Any] | Array) -> list[Answer]:
        """Let all lanes step or reset at the same time; those that wait for their repair do nothing."""
        return [
            pool.submit(call_environment, lane.env.reset, seed=None)
            if lane.needs_reset
            else pool.submit(call_environment, lane.env.step, values[index])
            if not lane.wait_ticks
            else Future()
            for index, lane in enumerate(self._lanes)
        ]

    def _begin(self, index: int, lane: _Lane, seed: int | None, answer: Answer | None = None) -> None:
        """Reset one lane, or take the answer of a reset that is under way, and write its `first` row."""
        observation, info = call_environment(lane.env.reset, seed=seed) if answer is None else answer.result()
        self._write(index, observation, info)
        self._rows.reward[index] = 0.0
        self._rows.flags[index] = FIRST
        lane.info, lane.needs_reset = info, False
        lane.lives = int(info.get("lives", 0))

    def _repair(self) -> None:
        """Rebuild the lanes whose values no policy may see."""
        while (bad := self._check.bad_lanes()).size:  # _fail ends it: it raises, or the lane is absent
            for index in bad.tolist():
                self._fail(index, self._lanes[index], EnvError("NaN, an infinite value or no category of its space"))
        for index in tuple(self._failing):
            if not self._rows.flags[index] & FIRST:
                self._lanes[index].num_failures = 0
                self._failing.discard(index)
        self.ended = (self._rows.flags & ENDED_BITS).nonzero()[0]
        self.first = (self._rows.flags & FIRST).nonzero()[0]

    def _fail(self, index: int, lane: _Lane, failure: EnvError) -> None:
        """Rebuild a lane after a failure, now or after some ticks."""
        self.last_failure = f"lane {index}: {failure}"
        lane.num_failures += 1
        self._failing.add(index)
        if lane.num_failures > MAX_FAILURES:
            raise EnvError(
                f"lane {index} failed {MAX_FAILURES} times without one good step; last: {failure}"
            ) from failure
        self.num_rebuilds += 1
        try:
            call_environment(lane.env.close)
        except EnvError as error:
            self.last_failure += f"; close: {error}"
        try:
            lane.env = call_environment(self._make)
            self._begin(index, lane, draw_seed(lane.seed.spawn(1)[0]))
        except EnvError as error:
            self.last_failure = f"lane {index}: {error}"
            lane.needs_reset, lane.wait_ticks = False, min(1 << lane.num_failures, _MAX_WAIT_TICKS)
            write_absent(self._leaves, self._rows, index)

    def _wait(self, index: int, lane: _Lane) -> None:
        """A lane that could not be rebuilt: absent until its next attempt."""
        lane.wait_ticks -= 1
        if lane.wait_ticks == 0:
            self._fail(index, lane, EnvError(self.last_failure))
        else:
            write_absent(self._leaves, self._rows, index)

    def _count_lives(self, lane: _Lane, info: Mapping[str, Any]) -> int:
        """LIFE_LOST if there are fewer lives than before."""
        before, lane.lives = lane.lives, int(info.get("lives", 0))
        return LIFE_LOST if lane.lives < before else 0

    def _write(self, index: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Copy one lane's observation and mask into its row."""
        write_lane(self.traits, self._leaves, self._rows, index, observation, info)

    def extra_statistics(self, lanes: Array) -> Array:
        """f32 [n, K] of the ended lanes, from their last info; NaN where the environment did not say."""
        names = self.traits.statistics
        values = [[float(self._lanes[index].info.get(name, np.nan)) for name in names] for index in lanes.tolist()]
        return np.array(values, np.float32).reshape(len(lanes), len(names))

    def render(self) -> Array | None:
        """Lane 0 as u8 [height, width, 3]."""
        frame = call_environment(self._lanes[0].env.render)
        return None if frame is None else np.ascontiguousarray(frame, np.uint8)

    def close(self) -> None:
        """Let go of every environment."""
        if self._pool is not None:
            self._pool.shutdown()
        for lane in self._lanes:
            call_environment(lane.env.close)
