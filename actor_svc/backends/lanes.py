"""Steps single Gymnasium environments one by one, or all at once in threads if each waits for a server.

An environment that fails is rebuilt alone; the other lanes go on.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np

from seedbed.actor_svc.backends.backend import (
    ENDED_BITS,
    FIRST,
    LIFE_LOST,
    TERMINATED,
    TRUNCATED,
    Array,
    call_environment,
    read_figure,
    read_info,
    read_picture,
    read_traits,
)
from seedbed.actor_svc.backends.lane_rows import action_reader, draw_seed, write_absent, write_lane
from seedbed.actor_svc.backends.repairs import RepairedBackend, Repairs
from seedbed.shared.errors import EnvError

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]
Answer = Future[Any]  # the result of a step or a reset that runs in the pool of threads
_MAX_THREADS = 64


class _Lane:
    """One environment and the state of its episode."""

    __slots__ = ("env", "info", "lives", "needs_reset", "seed")

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.seed: np.random.SeedSequence = np.random.SeedSequence(0)
        self.needs_reset = True
        self.lives = 0
        self.info: Mapping[str, Any] = {}


class LaneBackend(RepairedBackend):
    """A backend of L single environments.

    A lane that raises or gives invalid values is rebuilt and goes on with its `first` row, as `Repairs` describes.
    If the environment's `metadata["concurrent"]` is true, all lanes step and reset at the same time in a pool of
    threads: one thread at a time uses a lane, but not always the same one.

    Args:
      make_shown: makes lane 0, the only one that is drawn, where that needs another environment than `make` gives.
    """

    def __init__(
        self,
        make: MakeEnv,
        lanes: int,
        *,
        make_shown: MakeEnv | None = None,
        track_lives: bool = False,
        image: str = "",
    ) -> None:
        self._make, self._make_shown, self._track_lives = make, make_shown or make, track_lives
        self._lanes = [_Lane(call_environment(self._make_shown))]
        env = self._lanes[0].env
        _, info = call_environment(_reset, env, seed=0)
        observation, action = call_environment(lambda: (env.observation_space, env.action_space))
        traits = read_traits(env, observation, action, info, seeding="lane", image=image)
        self._lanes += [_Lane(call_environment(make)) for _ in range(lanes - 1)]
        is_concurrent = lanes > 1 and bool((env.metadata or {}).get("concurrent", False))
        self._pool = ThreadPoolExecutor(min(lanes, _MAX_THREADS), "lane") if is_concurrent else None
        self._action = action_reader(traits.action)
        repairs = Repairs(
            "lane",
            1,
            discard=lambda index: self._lanes[index].env.close(),
            make=self._make_anew,
            begin=self._begin_anew,
            write_absent=lambda index: write_absent(self._leaves, self._rows, index),
        )
        super().__init__(traits, repairs)

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every lane; lane i is seeded with the i-th child of the seed."""
        self._repairs.forget()
        for lane, child in zip(self._lanes, np.random.SeedSequence(seed).spawn(len(self._lanes)), strict=True):
            lane.seed = child
        pool = self._pool
        answers: list[Answer | None] = [
            None if pool is None else pool.submit(call_environment, _reset, lane.env, seed=draw_seed(lane.seed))
            for lane in self._lanes
        ]
        for index, lane in enumerate(self._lanes):
            try:
                self._begin(index, lane, draw_seed(lane.seed), answers[index])
            except EnvError as error:
                self._repairs.fail(index, error)
        self._settle_lanes()

    def step(self, actions: Sequence[Array]) -> None:
        """Step every lane, or reset it where its last row ended an episode."""
        values = self._action([np.array(leaf) for leaf in actions])
        flags, repairs = self._rows.flags, self._repairs
        answers = None if self._pool is None else self._ask(self._pool, values)
        for index, lane in enumerate(self._lanes):
            if index in repairs.waiting:
                repairs.wait(index)
                continue
            try:
                if lane.needs_reset:
                    self._begin(index, lane, None, None if answers is None else answers[index])
                    continue
                bits = call_environment(
                    self._advance, index, lane, values[index], None if answers is None else answers[index]
                )
            except EnvError as error:
                repairs.fail(index, error)
                continue
            flags[index] = bits
            lane.needs_reset = bits & ENDED_BITS != 0
        self._settle_lanes()

    def _advance(self, index: int, lane: _Lane, action: Any, answer: Answer | None) -> int:
        """Step one lane, or wait for its step in the pool, then write its row and return the row's flags."""
        observation, value, terminated, truncated, info = lane.env.step(action) if answer is None else answer.result()
        lane.info = read_info(info)
        self._write(index, observation, info)
        self._rows.reward[index] = float(value)
        bits = (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        return bits | self._count_lives(lane, info) if self._track_lives else bits

    def _ask(self, pool: ThreadPoolExecutor, values: Sequence[Any] | Array) -> list[Answer]:
        """Start the step or reset of every lane in the pool; a lane that waits for its repair gets an empty future."""
        return [
            Future()
            if index in self._repairs.waiting
            else pool.submit(call_environment, _reset, lane.env, seed=None)
            if lane.needs_reset
            else pool.submit(call_environment, lane.env.step, values[index])
            for index, lane in enumerate(self._lanes)
        ]

    def _begin(self, index: int, lane: _Lane, seed: int | None, answer: Answer | None = None) -> None:
        """Reset one lane, or wait for its reset in the pool, then write its `first` row."""
        observation, info = call_environment(_reset, lane.env, seed=seed) if answer is None else answer.result()
        call_environment(self._write, index, observation, info)
        self._rows.reward[index] = 0.0
        self._rows.flags[index] = FIRST
        lane.info, lane.needs_reset = info, False
        if self._track_lives:
            lane.lives = _lives(info)

    def _make_anew(self, index: int) -> None:
        """Give a lane a new environment."""
        self._lanes[index].env = (self._make if index else self._make_shown)()

    def _begin_anew(self, index: int) -> None:
        """Reset a new environment with a fresh seed and write its `first` row."""
        lane = self._lanes[index]
        self._begin(index, lane, draw_seed(lane.seed.spawn(1)[0]))

    def _settle_lanes(self) -> None:
        """Rebuild the lanes with invalid values, then say which lanes ended and began."""
        flags = self._rows.flags
        self._settle(self._check.bad_lanes, lambda index: not flags[index] & FIRST)

    def _count_lives(self, lane: _Lane, info: Mapping[str, Any]) -> int:
        """Return LIFE_LOST if the lane has fewer lives than at its last row, else 0."""
        before, lane.lives = lane.lives, _lives(info)
        return LIFE_LOST if lane.lives < before else 0

    def _write(self, index: int, observation: Any, info: Mapping[str, Any]) -> None:
        """Copy one lane's observation and mask into its row."""
        write_lane(self.traits, self._leaves, self._rows, index, observation, info)

    def extra_statistics(self, lanes: Array) -> Array:
        """Return the statistics of the ended lanes from their last info, f32 [n, K]; NaN where it lacks one."""
        names = self.traits.statistics
        values = [[read_figure(self._lanes[index].info.get(name)) for name in names] for index in lanes.tolist()]
        return np.array(values, np.float32).reshape(len(lanes), len(names))

    def render(self) -> Array | None:
        """Return a picture of lane 0, u8 [height, width, 3], or None if its environment shows nothing."""
        return call_environment(read_picture, call_environment(self._lanes[0].env.render))

    def close(self) -> None:
        """Close every environment; one that fails to close is only noted in `last_failure`."""
        if self._pool is not None:
            self._pool.shutdown()
        for index, lane in enumerate(self._lanes):
            self._close(index, lane.env.close)


def _reset(env: gymnasium.Env[Any, Any], *, seed: int | None) -> tuple[Any, Mapping[str, Any]]:
    """Reset an environment and return its first observation and info. Raises: EnvError if the info is no mapping."""
    observation, info = env.reset(seed=seed)
    return observation, read_info(info)


def _lives(info: Mapping[str, Any]) -> int:
    """Return how many lives an info says are left; 0 if it does not say. Raises: EnvError if that is no number."""
    lives = info.get("lives", 0)
    try:
        return int(lives)
    except (TypeError, ValueError) as error:
        raise EnvError(f"info['lives'] is {lives!r} and no number of lives") from error
