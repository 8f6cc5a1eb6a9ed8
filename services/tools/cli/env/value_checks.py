"""A Gymnasium environment's own values, before anything is converted: types, shapes, dtypes, bounds.

Our groups convert what they can without a word, so that a wrong dtype shows neither in training nor in its rows. Here
it does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from seedbed.actor_svc.backends.backend import call_environment
from seedbed.actor_svc.backends.masks import write_lane_mask
from seedbed.actor_svc.backends.vector import reset_ended
from seedbed.services.tools.cli.env.verdicts import Result, failed, passed
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.spaces import space_from_gymnasium

BareEnv = gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any]
MAX_NUMBERS = 8  # values of an array that a message shows


def check_values_of(env: BareEnv, *, ticks: int, seed: int) -> Result:
    """Step with random actions, and compare every observation, reward and flag with what Gymnasium says it is.

    Raises: EnvError if the environment does.
    """
    count = 0
    try:
        for where, observation, reward, ends in _play(env, ticks, seed):
            for rule, problem in _problems(env, observation, reward, ends):
                return failed(rule, f"{where}: {problem}")
            count += 1
    except _WrongAnswer as error:
        return failed(error.rule, str(error))
    return passed("dtypes", f"of {count} observations are those of the space")


class _WrongAnswer(Exception):
    """reset or step returned something else than their values, or an action mask that cannot be read."""

    def __init__(self, rule: str, found: str) -> None:
        super().__init__(found)
        self.rule = rule


def _answer_of(name: str, answer: Any, size: int) -> tuple[Any, ...]:
    """What reset or step returned, whose last value is the info."""
    if not isinstance(answer, tuple):
        raise _WrongAnswer("answers", f"{name} returned a {type(answer).__name__}, not a tuple of {size} values")
    if len(answer) != size:
        raise _WrongAnswer("answers", f"{name} returned {len(answer)} values, not {size}")
    if not isinstance(answer[-1], Mapping):
        raise _WrongAnswer("answers", f"{name} returned an info of type {type(answer[-1]).__name__}, not a dict")
    return answer


def _mask_of(space: Any, info: Mapping[str, Any], where: str) -> Any:
    """The mask in an info, as the space, a Discrete, samples with it."""
    mask = np.ones(int(space.n), np.uint8)
    try:
        write_lane_mask(space_from_gymnasium(space, image=None), info, mask)
    except EnvError as error:
        raise _WrongAnswer("masks", f"{where}: {error}") from error
    return mask.view(np.int8)


def _play(env: BareEnv, ticks: int, seed: int) -> Iterator[tuple[str, Any, Any, tuple[Any, ...]]]:
    """(where, observation, reward, (terminated, truncated)) of resets and steps; a reset has neither of the last."""
    actions, _ = call_environment(lambda: (env.action_space, env.observation_space))  # where it has both
    actions.seed(seed)
    where = "reset"
    observation, info = _answer_of("reset", call_environment(env.reset, seed=seed), 2)
    yield where, observation, None, ()
    for tick in range(1, ticks + 1):
        if "action_mask" in info and not isinstance(actions, spaces.Discrete):
            return  # Gymnasium samples nested masks in another form than they travel: the rows check the rest
        action = actions.sample(_mask_of(actions, info, where)) if "action_mask" in info else actions.sample()
        answer = _answer_of("step", call_environment(env.step, action), 5)
        observation, reward, terminated, truncated, info = answer
        where = f"step {tick}"
        yield where, observation, reward, (terminated, truncated)
        if isinstance(env, VectorEnv):
            call_environment(reset_ended, env, terminated, truncated)
        elif terminated or truncated:
            observation, info = _answer_of("reset", call_environment(env.reset), 2)
            where = f"reset after step {tick}"
            yield where, observation, None, ()


def _problems(env: BareEnv, observation: Any, reward: Any, ends: tuple[Any, ...]) -> Iterator[tuple[str, str]]:
    """(rule, what is wrong) with one answer of the environment."""
    yield from _compare(env.observation_space, observation, "observation")
    if isinstance(env, VectorEnv):
        for name, value in zip(("reward", "terminated", "truncated"), (reward, *ends), strict=False):
            if ends and np.shape(value) != (env.num_envs,):
                yield "dtypes", f"{name} has shape {np.shape(value)}, not ({env.num_envs},): one for each environment"
        return
    for name, end in zip(("terminated", "truncated"), ends, strict=False):
        if not isinstance(end, bool | np.bool_):
            yield "dtypes", f"{name} is a {type(end).__name__}, not a bool"
    if ends and (
        isinstance(reward, bool) or (not isinstance(reward, int | float | np.number) and np.shape(reward) != ())
    ):
        yield "dtypes", f"the reward is a {type(reward).__name__}, not a number"


def _compare(space: spaces.Space[Any], value: Any, name: str) -> Iterator[tuple[str, str]]:
    """(rule, where) a nested value is not what its space says."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or set(value) != set(space.spaces):
            has = sorted(value) if isinstance(value, Mapping) else type(value).__name__
            yield "dtypes", f"{name} has {has}, its space {sorted(space.spaces)}"
            return
        for key, child in space.spaces.items():
            yield from _compare(child, value[key], f"{name}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            yield "dtypes", f"{name} is no tuple of {len(space.spaces)}"
            return
        for index, child in enumerate(space.spaces):
            yield from _compare(child, value[index], f"{name}[{index}]")
    elif isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        yield from _compare_array(space, value, name)
    elif not space.contains(value):
        is_number = isinstance(space, spaces.Discrete) and isinstance(value, int | np.integer)
        yield (
            "values" if is_number else "dtypes",
            f"{name} is {_short(value)} ({type(value).__name__}), which is not in {space}",
        )


def _compare_array(space: spaces.Space[Any], value: Any, name: str) -> Iterator[tuple[str, str]]:
    if not isinstance(value, np.ndarray | np.generic):
        yield "dtypes", f"{name} is a {type(value).__name__}, not a NumPy array"
    elif value.shape != space.shape:
        yield "dtypes", f"{name} has shape {value.shape}, its space says {space.shape}"
    elif value.dtype != space.dtype:
        yield "dtypes", f"{name} is {value.dtype}, its space says {space.dtype}"


def _short(value: Any) -> str:
    text = np.array2string(np.asarray(value), threshold=MAX_NUMBERS)
    return text if len(text) < 80 else f"{text[:80]}…"
