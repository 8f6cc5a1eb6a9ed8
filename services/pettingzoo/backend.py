"""Lanes that are the agents of PettingZoo's parallel environments.

A *world* is one environment; lane w * A + a is agent a of world w, in the order of `possible_agents`. An agent's
episode ends with its own `terminated` or `truncated` row. Its lane is then `absent` until the agent comes back or the
world's episode is over, which it is when no agent is left; all lanes of that world go on with `first`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np

from seedbed.actor_svc.backends.backend import (
    FIRST,
    TERMINATED,
    TRUNCATED,
    Array,
    LanesError,
    call_environment,
    read_figure,
    read_picture,
    read_traits,
)
from seedbed.actor_svc.backends.lane_rows import action_reader, draw_seed, write_absent, write_lane
from seedbed.actor_svc.backends.repairs import RepairedBackend, Repairs
from seedbed.shared.errors import ConfigError, EnvError

MASK = "action_mask"


class _World:
    """One environment and the state of its episode."""

    __slots__ = ("env", "info", "live", "seed", "steps")

    def __init__(self, env: Any) -> None:
        self.env = env
        self.seed = np.random.SeedSequence(0)
        self.live: set[Any] = set()  # agents whose episode goes on; empty: the world is to be reset
        self.steps = 0
        self.info: Mapping[Any, Mapping[str, Any]] = {}  # of the last step, by agent


class AgentBackend(RepairedBackend):
    """A backend of L / A worlds of A agents each. One thread owns it.

    A world that raises or gives invalid values is rebuilt and goes on with `first` rows, as `Repairs` describes.

    Args:
      make: returns a pettingzoo.ParallelEnv.
      lanes: a multiple of the number of possible agents.
      image, statistics: as `metadata["image"]` and `metadata["statistics"]` of a Gymnasium environment.
      max_episode_steps: all agents of a world are truncated after so many steps; None: where the environment ends.
    Raises: ConfigError if the lanes are no such multiple or the agents' spaces differ.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        lanes: int,
        *,
        image: str = "",
        statistics: Sequence[str] = (),
        max_episode_steps: int | None = None,
    ) -> None:
        self._make, self._limit = make, max_episode_steps
        env = call_environment(make)
        self._agents: list[Any] = list(env.possible_agents)
        if lanes % len(self._agents):
            call_environment(env.close)
            raise LanesError(
                f"{lanes} lanes for worlds of {len(self._agents)} agents, {', '.join(map(str, self._agents))}: "
                f"actor.lanes and eval.lanes must be multiples of {len(self._agents)}",
                len(self._agents),
            )
        observation = _common_space("observation", {agent: env.observation_space(agent) for agent in self._agents})
        action = _common_space("action", {agent: env.action_space(agent) for agent in self._agents})
        observations, infos = call_environment(env.reset, seed=0)
        _, info = _split_mask(*next((observations[agent], infos.get(agent, {})) for agent in observations))
        fps = (getattr(env, "metadata", None) or {}).get("render_fps")
        metadata = {"image": image, "statistics": tuple(statistics), "render_fps": fps}
        traits = read_traits(
            cast(Any, _Described(metadata)), _without_mask(observation), action, dict(info), seeding="group"
        )
        self._worlds = [_World(env)]
        self._worlds += [_World(call_environment(make)) for _ in range(lanes // len(self._agents) - 1)]
        self._action = action_reader(traits.action)
        repairs = Repairs(
            "world",
            len(self._agents),
            discard=lambda index: self._worlds[index].env.close(),
            make=self._make_anew,
            begin=self._begin_anew,
            write_absent=self._write_absent,
        )
        super().__init__(traits, repairs)

    def reset(self, seed: int) -> None:
        """Begin a fresh episode in every world; world w is seeded with the w-th child of the seed."""
        self._repairs.forget()
        children = np.random.SeedSequence(seed).spawn(len(self._worlds))
        for index, (world, child) in enumerate(zip(self._worlds, children, strict=True)):
            world.seed = child
            try:
                call_environment(self._begin, index, world, draw_seed(child))
            except EnvError as error:
                self._repairs.fail(index, error)
        self._settle_worlds()

    def step(self, actions: Sequence[Array]) -> None:
        """Step every world with the actions of its agents, or reset it where no agent was left."""
        values = self._action([np.array(leaf) for leaf in actions])
        for index, world in enumerate(self._worlds):
            if index in self._repairs.waiting:
                self._repairs.wait(index)
                continue
            try:
                if world.live:
                    call_environment(self._advance, index, world, values)
                else:
                    call_environment(self._begin, index, world, None)
            except EnvError as error:
                self._repairs.fail(index, error)
        self._settle_worlds()

    def _lanes(self, index: int) -> range:
        """Return the lanes of a world."""
        return range(index * len(self._agents), (index + 1) * len(self._agents))

    def _begin(self, index: int, world: _World, seed: int | None) -> None:
        """Reset one world and write its agents' `first` rows."""
        world.live, world.steps, world.info = set(), 0, {}
        observations, infos = world.env.reset(seed=seed)
        for lane, agent in zip(self._lanes(index), self._agents, strict=True):
            if agent in world.env.agents:
                self._join(lane, world, agent, observations[agent], infos.get(agent, {}))
            else:
                write_absent(self._leaves, self._rows, lane)
        if not world.live:
            raise EnvError("no agent is there after a reset")

    def _advance(self, index: int, world: _World, values: Sequence[Any] | Array) -> None:
        """Step one world and write its agents' rows."""
        lanes, env, rows = self._lanes(index), world.env, self._rows
        chosen = {agent: values[lane] for lane, agent in zip(lanes, self._agents, strict=True) if agent in env.agents}
        observations, rewards, terminated, truncated, infos = env.step(chosen)
        world.info, world.steps = infos, world.steps + 1
        is_over = world.steps == self._limit
        for lane, agent in zip(lanes, self._agents, strict=True):
            bits = (TERMINATED if terminated.get(agent) else 0) | (TRUNCATED if truncated.get(agent) else 0)
            if agent in world.live:
                if agent not in env.agents and not bits:
                    raise EnvError(f"agent {agent!r} left, and was neither terminated nor truncated")
                self._write(lane, observations[agent], infos.get(agent, {}), is_final=bool(bits))
                rows.reward[lane] = float(rewards[agent])
                rows.flags[lane] = bits if bits or not is_over else TRUNCATED
            elif agent in env.agents and agent in observations and not bits and not is_over:
                self._join(lane, world, agent, observations[agent], infos.get(agent, {}))
            else:
                write_absent(self._leaves, rows, lane)
            if bits or is_over:
                world.live.discard(agent)

    def _join(self, lane: int, world: _World, agent: Any, observation: Any, info: Mapping[str, Any]) -> None:
        """Begin an agent's episode: write its `first` row and note that it is live."""
        self._write(lane, observation, info)
        self._rows.reward[lane] = 0.0
        self._rows.flags[lane] = FIRST
        world.live.add(agent)

    def _write(self, lane: int, observation: Any, info: Mapping[str, Any], *, is_final: bool = False) -> None:
        """Copy an agent's observation and mask into its row; a final one may lack the mask, for nobody acts at it."""
        value, info = _split_mask(observation, info)
        if is_final and MASK not in info:
            info = {**info, MASK: np.ones(self.traits.mask_size)}
        write_lane(self.traits, self._leaves, self._rows, lane, value, info)

    def _make_anew(self, index: int) -> None:
        """Give a world a new environment."""
        self._worlds[index].env = self._make()

    def _begin_anew(self, index: int) -> None:
        """Reset a new world with a fresh seed and write its agents' `first` rows."""
        world = self._worlds[index]
        self._begin(index, world, draw_seed(world.seed.spawn(1)[0]))

    def _settle_worlds(self) -> None:
        """Rebuild the worlds with invalid values, then say which lanes ended and began."""
        self._settle(
            lambda: np.unique(self._check.bad_lanes() // len(self._agents)), lambda index: self._worlds[index].steps > 0
        )

    def _write_absent(self, index: int) -> None:
        """Write the rows of all lanes of a world as those of absent agents."""
        for lane in self._lanes(index):
            write_absent(self._leaves, self._rows, lane)

    def extra_statistics(self, lanes: Array) -> Array:
        """Return the statistics of the ended lanes from their agents' last info, f32 [n, K]; NaN where it lacks one."""
        names = self.traits.statistics
        table = np.full((len(lanes), len(names)), np.nan, np.float32)
        for row, lane in enumerate(lanes.tolist()):
            world, agent = divmod(lane, len(self._agents))
            info = self._worlds[world].info.get(self._agents[agent], {})
            table[row] = [read_figure(info.get(name, np.nan)) for name in names]
        return table

    def render(self) -> Array | None:
        """Return a picture of world 0, u8 [height, width, 3], or None if it shows nothing."""
        return call_environment(read_picture, call_environment(self._worlds[0].env.render))

    def close(self) -> None:
        """Close every world; one that fails to close is only noted in `last_failure`."""
        for index, world in enumerate(self._worlds):
            self._close(index, world.env.close)


class _Described:
    """Stands for an environment in `read_traits`, which needs its metadata only."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self.metadata = metadata


def _common_space(what: str, spaces: Mapping[Any, gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return the space that all agents have in common. Raises: ConfigError naming two agents whose spaces differ."""
    first, *others = spaces
    for agent in others:
        if spaces[agent] != spaces[first]:
            raise ConfigError(
                f"agents {first!r} and {agent!r} have different {what} spaces, {spaces[first]} and {spaces[agent]}: "
                "one policy plays all agents, so pad them to one space in a function of yours and name that"
            )
    return spaces[first]


def _without_mask(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return an observation space without its `action_mask`: a Dict, or the only space that is left."""
    if not isinstance(space, gymnasium.spaces.Dict) or MASK not in space.spaces:
        return space
    rest = {name: child for name, child in space.spaces.items() if name != MASK}
    return next(iter(rest.values())) if len(rest) == 1 else gymnasium.spaces.Dict(rest)


def _split_mask(observation: Any, info: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Move `action_mask` from an agent's observation to its info, and return both."""
    if not isinstance(observation, Mapping) or MASK not in observation:
        return observation, info
    rest = {name: value for name, value in observation.items() if name != MASK}
    return (next(iter(rest.values())) if len(rest) == 1 else rest), {**info, MASK: observation[MASK]}
