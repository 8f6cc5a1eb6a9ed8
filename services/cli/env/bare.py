"""The environment behind an id or function as its author wrote it, without our rows around it."""

import inspect

import gymnasium

from actor_svc.backends.backend import call_environment
from actor_svc.envs import load_function
from services.cli.env.value_checks import BareEnv
from shared.runtime.config import EnvConfig


def make_bare(env: EnvConfig, lanes: int) -> BareEnv | None:
    """One environment, or its vector form of so many lanes where that is what actors step.

    None for what is no Gymnasium environment: EnvPool, ALE's own vectors, a function that returns a back-end.
    Raises: ConfigError for a function that is not there, EnvError from the constructor.
    """
    if env.is_atari or env.backend in ("ale", "envpool"):
        return None
    options = dict(env.kwargs)
    if ":" in env.id:
        make = load_function(env.id)
        parameters = inspect.signature(make).parameters if callable(make) else {}
        if "lanes" in parameters and "lanes" not in options:
            return None
        if "num_envs" in parameters:
            options["num_envs"] = lanes
        made: BareEnv = call_environment(make, **options)
        return made
    try:
        spec = gymnasium.spec(env.id)
    except gymnasium.error.Error:
        return None  # EnvPool's
    if env.max_episode_steps is not None:
        options["max_episode_steps"] = env.max_episode_steps
    if spec.vector_entry_point is not None and env.backend != "gymnasium":
        return call_environment(gymnasium.make_vec, env.id, lanes, vectorization_mode="vector_entry_point", **options)
    return call_environment(gymnasium.make, env.id, disable_env_checker=True, **options)
