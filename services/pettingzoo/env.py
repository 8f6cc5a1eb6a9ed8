"""Makes a backend of agents from the name of a PettingZoo environment."""

from collections.abc import Callable, Sequence
from typing import Any

from seedbed.actor_svc.envs import load_function
from seedbed.services.pettingzoo.backend import AgentBackend
from seedbed.shared.errors import ConfigError


def make(
    env: str,
    *,
    lanes: int,
    options: dict[str, Any] | None = None,
    image: str = "",
    statistics: Sequence[str] = (),
    max_episode_steps: int | None = None,
    render_mode: str | None = None,
) -> AgentBackend:
    """Make the backend of `env.id = "seedbed.services.pettingzoo.env:make"`.

    Args:
      env: an id of PettingZoo's registry (`butterfly/pistonball_v6`), a module that has `parallel_env`
        (`mpe2.simple_spread_v3`), or `module:function`.
      lanes: a multiple of the number of possible agents.
      options: keyword arguments of the environment's constructor.
      image: where the channels of uint8 arrays of rank 3 are, "HWC" or "CHW".
      statistics: entries of an agent's info that are reported when its episode ends.
      max_episode_steps: all agents are truncated after so many steps; None: where the environment ends.
    Raises: ConfigError for an unknown environment, a number of lanes that does not fit, or agents whose spaces differ.
    """
    construct = _constructor(env)
    arguments = dict(options or {})
    if render_mode is not None:
        arguments["render_mode"] = render_mode

    def world() -> Any:
        try:
            made = construct(**arguments)
        except TypeError as error:
            raise ConfigError(f"env.kwargs.options: {env} does not take {arguments}: {error}") from error
        if not hasattr(made, "possible_agents") or hasattr(made, "agent_selection"):
            raise ConfigError(
                f"env.kwargs.env: {env} gives a {type(made).__name__}, which is no parallel environment with "
                "possible_agents: name its parallel_env, or a function of yours that wraps it by "
                "pettingzoo.utils.aec_to_parallel"
            )
        return made

    return AgentBackend(world, lanes, image=image, statistics=statistics, max_episode_steps=max_episode_steps)


def _constructor(env: str) -> Callable[..., Any]:
    """Return the function that makes the environment of this name. Raises: ConfigError if there is none."""
    if "/" not in env:
        return load_function(env if ":" in env else f"{env}:parallel_env", "env.kwargs.env")

    def construct(**options: Any) -> Any:
        import pettingzoo
        from pettingzoo.env_registry.exceptions import PettingZooRegistryError

        try:
            return pettingzoo.make("parallel", env, **options)
        except PettingZooRegistryError as error:
            raise ConfigError(f"env.kwargs.env: {env!r}: {error}") from error

    return construct
