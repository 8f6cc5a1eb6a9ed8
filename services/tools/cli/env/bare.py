"""The environment behind an id or function as its author wrote it, without our rows around it."""

from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from seedbed.actor_svc.backends.backend import call_environment
from seedbed.actor_svc.backends.pool import pool_maker
from seedbed.actor_svc.envs import choose_backend, find_registration, load_function, parameters_of
from seedbed.services.tools.cli.env.value_checks import BareEnv
from seedbed.shared.errors import EnvError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.env_name import EnvName


def make_bare(env: EnvConfig, lanes: int) -> BareEnv | None:
    """One environment, or its vector form of so many lanes where that is what actors step.

    None for what is no Gymnasium environment: EnvPool, ALE, a function that returns a back-end.
    Raises: ConfigError for a function that is not there; EnvError from the constructor, or if it makes something else.
    """
    is_function = EnvName.of(env.id).is_function
    if not is_function and choose_backend(env) in ("ale_sync", "envpool"):
        return None
    options = dict(env.kwargs)
    if is_function:
        make = load_function(env.id)
        parameters = parameters_of(make)
        if "lanes" in parameters and "lanes" not in options:
            return None
        if "num_envs" in parameters:
            options["num_envs"] = lanes
            if env.max_episode_steps is not None and "max_episode_steps" in parameters:
                options["max_episode_steps"] = env.max_episode_steps
        made: BareEnv = call_environment(make, **options)
        if not isinstance(made, gymnasium.Env | VectorEnv):
            raise EnvError(f"{env.id} returned a {type(made).__name__}, which is no environment")
        return made
    spec, name = find_registration(env.id), EnvName.of(env.id).name
    if env.max_episode_steps is not None:
        options["max_episode_steps"] = env.max_episode_steps
    if spec.vector_entry_point is not None and env.backend != "gymnasium":
        return call_environment(gymnasium.make_vec, name, lanes, vectorization_mode="vector_entry_point", **options)
    return call_environment(gymnasium.make, name, disable_env_checker=True, **options)


class BarePool:
    """EnvPool's own environment of so many lanes: it resets an ended lane in its next step; no code of ours runs."""

    def __init__(self, env: EnvConfig, lanes: int) -> None:
        self._made = pool_maker(env, 0)(lanes)
        self.action_space = self._made.action_space
        self.step: Any = None

    def reset(self, *, seed: int) -> None:
        """Reset the environments of all lanes."""
        self._made.reset(seed=seed)
        self.step = self._made.bare.step

    def close(self) -> None:
        """Close the environments."""
        self.step = None
        self._made.close()


def make_bare_pool(env: EnvConfig, lanes: int) -> BarePool | None:
    """What EnvPool steps for this environment; None where something else does."""
    if EnvName.of(env.id).is_function or choose_backend(env) != "envpool":
        return None
    return call_environment(BarePool, env, lanes)
