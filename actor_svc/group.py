"""A group: L lanes stepped together, and the rows that each tick sends to inference."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.actor_svc.backends.backend import MAX_FIGURE, Array, Backend, RowViews
from seedbed.shared.protocol.layout import Layout
from seedbed.shared.protocol.messages import StepBits
from seedbed.shared.protocol.rows import EnvSpec, act_layout, step_layout
from seedbed.shared.protocol.spaces import Leaf, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """One tick, ready to send: STEP's payload frames and its bits."""

    payload: list[bytes]
    bits: int  # StepBits


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCounters:
    """Totals since the group was made. Steps are valid transitions: one that leads into a reset row is not counted."""

    ticks: int
    steps: int
    episodes: int  # ended and reported
    aborted: int  # episodes cut short because their lane was rebuilt
    rebuilds: int  # lanes rebuilt
    last_failure: str  # cause of the newest failure of an environment; "" if there was none


class EnvGroup:
    """L lanes on one backend. One thread owns it.

    Large because the layouts of a STEP and an ACT are worked out once, and every tick reuses them.

    The rows of the newest tick are in `views` until the next one; `ended_lanes` and `ended_statistics` [ended, K] tell
    which episodes it ended, in ascending order of lanes. Memory: one tick's frames.
    """

    def __init__(
        self, backend: Backend, lanes: int, *, env_id: str, settings: tuple[tuple[str, str], ...] = ()
    ) -> None:
        traits = backend.traits
        self.lanes, self.seeding, self.about = lanes, traits.seeding, traits.about
        self.spec = EnvSpec(
            env_id=env_id,
            settings=settings,
            observation=traits.observation,
            action=traits.action,
            mask_size=traits.mask_size,
            statistics=("return", "length", *traits.statistics),
        )
        self.step_layout: Layout = step_layout(self.spec, lanes)
        self.act_layout: Layout = act_layout(self.spec, lanes)
        self._backend = backend
        self._frames = self.step_layout.allocate()
        self.views = self._bind(self._frames)
        self._return: Array = np.zeros(lanes, np.float64)
        self._first_tick: Array = np.zeros(lanes, np.int64)  # of each lane's episode
        self._extra = len(traits.statistics)
        self.ended_lanes: Array = np.empty(0, np.int64)
        self._statistics: Array = np.empty((lanes, 2 + self._extra), np.float32)
        self.ended_statistics: Array = self._statistics[:0]
        self._ticks = self._steps = self._episodes = self._aborted = 0

    def _bind(self, frames: list[bytearray]) -> RowViews:
        arrays = self.step_layout.views(frames)
        count = len(self.spec.observation.leaves())
        mask = arrays[count] if self.spec.mask_size else None
        views = RowViews(observation=tuple(arrays[:count]), mask=mask, reward=arrays[-2], flags=arrays[-1])
        self._backend.bind(views)
        return views

    def reset(self, seed: int) -> GroupRows:
        """Begin a fresh episode in every lane and return the `first` rows. The same seed begins the same episodes."""
        self._backend.reset(seed)
        self._return.fill(0.0)
        self._first_tick.fill(self._ticks)
        self.ended_lanes, self.ended_statistics = self.ended_lanes[:0], self.ended_statistics[:0]
        return self._rows()

    def step(self, actions: Sequence[Array]) -> GroupRows:
        """Step every lane with its action and return the tick's rows.

        Args:
          actions: leaves `[L, ...]` in canonical order, as the environment takes them.
        """
        self.advance(actions)
        return self._rows()

    def step_frames(self, frames: Sequence[bytes | bytearray]) -> GroupRows:
        """Step every lane with ACT's payload frames, whose sizes have been checked, and return the tick's rows."""
        return self.step(self.act_layout.views(frames))

    def advance(self, actions: Sequence[Array]) -> None:
        """Step as `step` does, but leave the rows in `views`, `ended_lanes` and `ended_statistics`."""
        self._backend.step(actions)
        first, ended = self._backend.first, self._backend.ended
        self._ticks += 1
        self._steps += self.lanes - len(first)
        self._return += self.views.reward
        if first.size:
            if first.size != self.ended_lanes.size:  # every ended lane is among the first ones: more are rebuilt ones
                rebuilt = np.setdiff1d(first, self.ended_lanes, assume_unique=True)
                self._aborted += int((self._ticks - self._first_tick[rebuilt] > 1).sum())  # this tick was no step
            self._return[first] = 0.0
            self._first_tick[first] = self._ticks
        if ended.size or self.ended_lanes.size:
            self._report(ended)

    def _report(self, ended: Array) -> None:
        """Set `ended_lanes` and `ended_statistics` to the lanes whose episode ended in this tick."""
        table = self._statistics[: len(ended)]
        np.clip(self._return[ended], -MAX_FIGURE, MAX_FIGURE, out=table[:, 0], casting="same_kind")
        np.subtract(self._ticks, self._first_tick[ended], out=table[:, 1], casting="unsafe")
        if self._extra and len(ended):
            table[:, 2:] = self._backend.extra_statistics(ended)
        self._episodes += len(ended)
        self.ended_lanes, self.ended_statistics = ended, table

    def _rows(self) -> GroupRows:
        """Return a copy of the tick's frames: the next tick writes into the same memory."""
        payload = [bytes(frame) for frame in self._frames]
        if not self.ended_lanes.size:
            return GroupRows(payload=payload, bits=0)
        return GroupRows(payload=[*payload, self.ended_statistics.tobytes()], bits=int(StepBits.STATISTICS))

    def warm_up(self, ticks: int, seed: int) -> GroupRows:
        """Step with random actions for some ticks, so that groups get out of step, and return the newest rows."""
        generator = np.random.Generator(np.random.PCG64(seed))
        for _ in range(ticks):
            self.advance(self.random_actions(generator))
        return self._rows()

    def random_actions(self, generator: np.random.Generator) -> list[Array]:
        """Return one uniformly random action for each lane, as action leaves `[L, ...]`; action masks are respected."""
        return random_actions(self.spec.action, self.lanes, self.views.mask, generator)

    def counters(self) -> GroupCounters:
        """Return the totals since the group was made."""
        return GroupCounters(
            ticks=self._ticks,
            steps=self._steps,
            episodes=self._episodes,
            aborted=self._aborted,
            rebuilds=self._backend.num_rebuilds,
            last_failure=self._backend.last_failure,
        )

    def render(self) -> Array | None:
        """Return a picture of lane 0, u8 [height, width, 3], or None if the group or environment shows nothing."""
        return self._backend.render()

    def close(self) -> None:
        """Close every environment."""
        self._backend.close()


def random_actions(action: Space, lanes: int, mask: Array | None, generator: np.random.Generator) -> list[Array]:
    """Return uniformly random action leaves `[L, ...]` of an action space; the mask, u8 [L, M], is respected."""
    column = 0
    actions: list[Array] = []
    for leaf in action.leaves():
        part = None if mask is None else mask[:, column : column + leaf.num_categories]
        column += leaf.num_categories
        actions.append(_random_leaf(leaf, lanes, part, generator))
    return actions


def _random_leaf(leaf: Leaf, lanes: int, mask: Array | None, generator: np.random.Generator) -> Array:
    """Return random values of one action leaf, [L, ...]; `mask` is its part of the mask, u8 [L, categories]."""
    if leaf.nvec:
        columns, offset = [], 0
        for categories, start in zip(leaf.nvec, leaf.starts, strict=True):
            weight = generator.random((lanes, categories))
            if mask is not None:
                weight += mask[:, offset : offset + categories]  # allowed ones win; if none is, all are
            offset += categories
            columns.append(weight.argmax(1) + start)
        return np.stack(columns, 1).reshape(lanes, *leaf.shape).astype(leaf.dtype)
    if leaf.kind == "multi_binary":
        return generator.integers(0, 2, (lanes, *leaf.shape)).astype(leaf.dtype)
    low, high = leaf.low_array().astype(np.float64), leaf.high_array().astype(np.float64)
    is_bounded = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
    if np.dtype(leaf.dtype).kind in "iu":
        return np.floor(generator.uniform(low, high + 1.0, (lanes, *leaf.shape))).clip(low, high).astype(leaf.dtype)
    return generator.uniform(low, high, (lanes, *leaf.shape)).astype(leaf.dtype)
