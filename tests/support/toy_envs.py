"""Environments that do on demand what real ones do by accident: end, raise, send NaN, mask actions, nest spaces."""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from seedbed.actor_svc.backends.lanes import LaneBackend


class CountingEnv(gymnasium.Env):
    """Observes (step within the episode, episode's number); the action's code decides what happens.

    0 goes on with reward 1, 1 terminates, 2 truncates, 3 raises, 4 observes NaN, 5 gives an infinite reward.
    """

    metadata = {"statistics": ("score",)}  # noqa: RUF012

    def __init__(self, limit=0, fail_resets=0):
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(6)
        self.limit, self.fail_resets = limit, fail_resets
        self.t = self.episode = 0
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.fail_resets:
            raise RuntimeError("no reset today")
        self.t, self.episode = 0, self.episode + 1
        return np.array([0, self.episode], np.float32), {}

    def step(self, action):
        self.t += 1
        if action == 3:
            raise ValueError("asked to raise")
        observation = np.array([np.nan if action == 4 else self.t, self.episode], np.float32)
        truncated = action == 2 or (self.limit > 0 and self.t >= self.limit)
        reward = np.inf if action == 5 else float(self.t)
        return observation, reward, action == 1, truncated, {"score": 10.0 * self.t}

    def close(self):
        self.closed = True


class MischievousEnv(CountingEnv):
    """A CountingEnv whose third step, or one of whose other methods, does what its author should not have done."""

    def __init__(self, way):
        super().__init__()
        self.way = way

    def step(self, action):
        observation, reward, _, _, info = super().step(0)
        if self.t < 3:
            return observation, reward, False, False, info
        if self.way in OUTCOMES:
            return OUTCOMES[self.way](observation, reward, info)
        if self.way == "exits":
            sys.exit(3)
        if self.way == "raises beside Exception":
            raise BaseException("a panic of an extension")
        if self.way == "raises what cannot be told":
            raise UntoldError
        return observation, reward, True, False, info

    def close(self):
        if self.way == "exits when closed":
            sys.exit(4)


class UntoldError(Exception):
    """Its message is broken."""

    def __str__(self):
        raise RuntimeError("no message")


OUTCOMES = {
    "four values": lambda observation, reward, info: (observation, reward, True, info),
    "nothing": lambda observation, reward, info: None,
    "another shape": lambda observation, reward, info: (observation[:1], reward, False, False, info),
    "objects": lambda observation, reward, info: (np.array(["x", {}], object), reward, False, False, info),
    "no reward": lambda observation, reward, info: (observation, None, False, False, info),
    "a reward beyond float32": lambda observation, reward, info: (observation, 1e300, False, False, info),
    "ends of many lanes": lambda observation, reward, info: (observation, reward, np.array([1, 0]), False, info),
    "no info": lambda observation, reward, info: (observation, reward, False, False, None),
}
FIGURES = {"text": "abc", "nothing": None, "an array": np.ones(2), "beyond float32": 1e300, "infinite": np.inf}


class ServedEnv(CountingEnv):
    """A CountingEnv behind a server that answers only when all its lanes have asked."""

    metadata = {"statistics": ("score",), "concurrent": True}  # noqa: RUF012

    def __init__(self, together=None, limit=0):
        super().__init__(limit)
        self.together = together  # threading.Barrier of all lanes

    def reset(self, *, seed=None, options=None):
        if self.together is not None:
            self.together.wait()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.together is not None:
            self.together.wait()
        return super().step(action)


class CountingVectorEnv(VectorEnv):
    """CountingEnv in lanes, with next-step autoreset or none; without autoreset, a step past an end is an error."""

    def __init__(self, num_envs, mode=AutoresetMode.NEXT_STEP):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": mode, "statistics": ("score",)}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Discrete(6)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.t = np.zeros(num_envs, np.int64)
        self.episode = np.zeros(num_envs, np.int64)
        self.over = np.zeros(num_envs, bool)

    def _observe(self):
        return np.stack([self.t, self.episode], 1).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.t[chosen] = 0
        self.episode[chosen] += 1
        self.over[chosen] = False
        return self._observe(), {}

    def step(self, actions):
        if (actions == 3).any():
            raise ValueError("asked to raise")
        assert not (self.over.any() and self.metadata["autoreset_mode"] is AutoresetMode.DISABLED)
        resets = self.over & (self.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP)
        self.t += 1
        self.t[resets] = 0
        self.episode[resets] += 1
        terminated, truncated = (actions == 1) & ~resets, (actions == 2) & ~resets
        self.over = terminated | truncated | (self.over & ~resets)
        observation = self._observe()
        observation[(actions == 4) & ~resets, 0] = np.nan
        reward = np.where(resets, 0.0, self.t)
        return observation, reward, terminated, truncated, {"score": 10.0 * self.t}


class StrictEnv(CountingEnv):
    """A CountingEnv of `limit` steps that is never stepped past an end; only action 0 is allowed at first, then all.

    With `masked` it gives its action masks and refuses other actions; without, every action is 0.
    """

    def __init__(self, limit, *, masked=False):
        super().__init__(limit)
        self.masked, self.is_over = masked, True

    def _info(self, info):
        return {**info, "action_mask": np.array([1] + [int(self.t > 0)] * 5, np.int8)} if self.masked else info

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        self.is_over = False
        return observation, self._info(info)

    def step(self, action):
        assert not self.is_over
        assert self.t > 0 or action == 0 or not self.masked
        observation, reward, terminated, self.is_over, info = super().step(0)
        return observation, reward, terminated, self.is_over, self._info(info)


def strict_vector(num_envs):
    """Gymnasium's own loop without autoreset, in a wrapper."""
    fns = [lambda limit=limit: StrictEnv(limit) for limit in range(1, num_envs + 1)]
    return RecordEpisodeStatistics(SyncVectorEnv(fns, autoreset_mode=AutoresetMode.DISABLED))


class MaskedEnv(gymnasium.Env):
    """Nested actions of which some are forbidden: Dict of Discrete (from 3), MultiDiscrete and Box; truncated at 4."""

    def __init__(self):
        self.observation_space = spaces.Dict(
            {
                "z": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary(2))),
                "a": spaces.Box(0, 255, (2, 2), np.uint8),
                "word": spaces.Text(4),
            }
        )
        self.action_space = spaces.Dict(
            {"b": spaces.MultiDiscrete([2, 3]), "a": spaces.Discrete(3, start=3), "c": spaces.Box(-1, 1, (2,))}
        )
        self.actions = []
        self.t = 0

    def _observe(self):
        return {"a": np.full((2, 2), self.t, np.uint8), "z": (self.t % 3 - 1, np.array([1, 0], np.int8)), "word": "hé"}

    def _info(self):
        return {
            "action_mask": {"a": np.eye(3, dtype=np.int8)[self.t % 3], "b": (np.array([1, 0]), np.array([0, 1, 1]))}
        }

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), self._info()

    def step(self, action):
        assert self.action_space.contains(action)
        self.actions.append(action)
        self.t += 1
        return self._observe(), 1.0, False, self.t == 4, self._info()


class LivesEnv(gymnasium.Env):
    """A game of three lives; action 1 loses one, the last one ends it."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 3, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.lives = 3

    def reset(self, *, seed=None, options=None):
        self.lives = 3
        return np.array([3], np.float32), {"lives": 3}

    def step(self, action):
        self.lives -= int(action)
        return np.array([self.lives], np.float32), 1.0, self.lives == 0, False, {"lives": self.lives}


def counting_vector(num_envs, mode="NextStep"):
    """A vector environment of the author's own."""
    return CountingVectorEnv(num_envs, AutoresetMode(mode))


class LimitedVectorEnv(CountingVectorEnv):
    """A CountingVectorEnv that takes a limit of steps; 0 is none."""

    def __init__(self, num_envs, max_episode_steps=0):
        super().__init__(num_envs)
        self.limit = max_episode_steps

    def step(self, actions):
        return super().step(np.where(self.t + 1 == self.limit, 2, actions))


def counting_sync(num_envs, mode="NextStep"):
    """Gymnasium's own loop over single environments."""
    return SyncVectorEnv([CountingEnv] * num_envs, autoreset_mode=AutoresetMode(mode))


def counting_backend(lanes, limit=0, max_episode_steps=None):
    """A backend of the author's own."""
    return LaneBackend(lambda: CountingEnv(max_episode_steps or limit), lanes)


class LaneChange(CountingEnv):
    """An environment for which lanes are a setting of its own."""

    def __init__(self, lanes=3):
        super().__init__(limit=lanes)
