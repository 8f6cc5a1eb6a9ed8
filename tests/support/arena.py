"""A parallel PettingZoo environment whose agents die, leave, join and fail on demand."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Arena(ParallelEnv):
    """Observes (step, own number, world's episode). Action 1 dies, 2 leaves without a word, 3 observes NaN, 4 raises.

    `joins` agents are away at first and come at step 2; the world ends for all at `limit`.
    """

    metadata = {"name": "arena"}  # noqa: RUF012

    def __init__(self, agents=3, joins=0, limit=0, mask=""):
        self.possible_agents = [f"agent_{index}" for index in range(agents)]
        self.joins, self.limit, self.mask = joins, limit, mask
        self.t = self.episode = 0
        self.agents = []

    def observation_space(self, agent):
        box = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        if self.mask != "observation":
            return box
        return spaces.Dict({"observation": box, "action_mask": spaces.Box(0, 1, (5,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(5)

    def _number(self, agent):
        return self.possible_agents.index(agent)

    def _observe(self, agent, values):
        return {"observation": values, "action_mask": self._mask(agent)} if self.mask == "observation" else values

    def _mask(self, agent):
        return np.array([1, self._number(agent) == 1, 0, 0, 0], np.int8)

    def _tell(self, nan=()):
        rows = {a: np.array([np.nan if a in nan else self.t, self._number(a), self.episode]) for a in self.agents}
        infos = {a: {"score": self._number(a) + self.t} for a in self.agents}
        if self.mask == "info":
            infos = {a: {**infos[a], "action_mask": self._mask(a)} for a in self.agents}
        return {a: self._observe(a, row.astype(np.float32)) for a, row in rows.items()}, infos

    def reset(self, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        self.agents = self.possible_agents[: len(self.possible_agents) - self.joins]
        return self._tell()

    def step(self, actions):
        assert set(actions) == set(self.agents)
        if 4 in actions.values():
            raise RuntimeError("the arena burnt down")
        self.t += 1
        observations, infos = self._tell(nan=[a for a, action in actions.items() if action == 3])
        rewards = {a: float(self._number(a)) for a in self.agents}
        terminated = {a: actions[a] == 1 for a in self.agents}
        truncated = dict.fromkeys(self.agents, self.t == self.limit)
        gone = {a for a in self.agents if actions[a] in (1, 2) or truncated[a]}
        self.agents = [a for a in self.agents if a not in gone]
        if self.t == 2 and self.joins:
            come = self.possible_agents[-self.joins :]
            self.agents += come
            fresh, more = self._tell()
            observations |= {a: fresh[a] for a in come}
            infos |= {a: more[a] for a in come}
        return observations, rewards, terminated, truncated, infos
