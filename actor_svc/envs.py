"""Makes a group of lanes from an experiment's [env] section or from an author's function."""

import difflib
import functools
import importlib.util
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import SyncVectorEnv, VectorEnv

from seedbed.actor_svc.backends.backend import Backend, LanesError, call_environment
from seedbed.actor_svc.backends.lanes import LaneBackend
from seedbed.actor_svc.backends.vector import VectorBackend
from seedbed.actor_svc.group import EnvGroup
from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.env_name import EnvName
from seedbed.shared.runtime.modules import describe_failure, describe_import_failure, load_module, load_object

ATARI_BACKENDS = ("envpool", "ale_sync")  # that step `ALE/…`; "auto" is one of them
BACKEND_SETTING = "backend"  # among those of a specification

# Returns a gymnasium.Env; a VectorEnv of `num_envs` lanes if it takes that; or a Backend of `lanes` if it takes those.
MakeEnvironment = Callable[..., Any]


def make_group(
    env: EnvConfig, lanes: int, *, make: MakeEnvironment | None = None, render: bool = False, threads: int = 0
) -> EnvGroup:
    """Return a group of L lanes that is not reset yet.

    Args:
      make: the environment's constructor, in place of what `env.id` names; `env.id` is then a label.
      render: whether `EnvGroup.render` can show lane 0.
      threads: number of threads of a backend that has its own; 0: one for each usable core.
    Raises: ConfigError where the configuration names no environment, EnvError where it cannot be made.
    """
    backend = make_backend(env, lanes, make=make, render=render, threads=threads)
    settings = env.settings()
    is_function = make is not None or EnvName.of(env.id).is_function
    if not is_function and (simulator := choose_backend(env)) in ("ale_sync", "envpool"):
        simulated = (BACKEND_SETTING, json.dumps(simulator))  # simulators are not quite alike
        settings = tuple(sorted((*settings, simulated)))
    return EnvGroup(backend, lanes, env_id=env.id, settings=settings)


def make_smallest_group(env: EnvConfig, *, render: bool = False, threads: int = 0) -> EnvGroup:
    """Return a group of one lane, or of all agents of one world: the smallest, for inspecting an environment."""
    try:
        return make_group(env, 1, render=render, threads=threads)
    except LanesError as error:
        return make_group(env, error.multiple, render=render, threads=threads)


def make_backend(
    env: EnvConfig, lanes: int, *, make: MakeEnvironment | None = None, render: bool = False, threads: int = 0
) -> Backend:
    """Return the backend that steps the lanes, chosen by `env.backend` and by what `env.id` offers.

    Arguments and errors are those of `make_group`.
    """
    if make is None and EnvName.of(env.id).is_function:
        make = load_function(env.id)
    if make is not None:
        return _from_function(env, lanes, make, render)
    choice = choose_backend(env)
    if choice == "ale_sync":
        from seedbed.actor_svc.backends.atari import make_sync  # heavy, and optional

        return make_sync(env, lanes)
    if choice == "envpool":
        from seedbed.actor_svc.backends.pool import make_pool  # heavy, and optional

        return make_pool(env, lanes, threads, render=render)
    spec = find_registration(env.id)
    # A single lane is drawn as itself: it is what videos show.
    takes_vector = spec.vector_entry_point is not None and not (render and lanes == 1)
    if choice == "vector" or (choice == "auto" and takes_vector):
        if spec.vector_entry_point is None:
            raise ConfigError(f"env.backend: {env.id} has no vector form; set it to 'gymnasium'")
        return VectorBackend(functools.partial(_make_vector, env, render), lanes, image=env.image)
    shown = functools.partial(_make_single, env, True) if render else None
    return LaneBackend(functools.partial(_make_single, env, False), lanes, make_shown=shown, image=env.image)


def choose_backend(env: EnvConfig) -> str:
    """Return `env.backend`, with "auto" resolved to "envpool" or "ale_sync" where one of these is to be used.

    That is EnvPool, if it is installed, for Atari games and for ids that Gymnasium lacks, and else ALE for Atari games.
    The result is "auto" where the environment's registration in Gymnasium decides. The module of an id
    `module:Name-v0` is imported.

    Raises: ConfigError for an id that Gymnasium has replaced by a newer one: EnvPool's old one may be another task;
      for an Atari game in a backend that cannot step it; if the module cannot be imported.
    """
    if module := EnvName.of(env.id).module:
        load_module(module, f"env.id: {env.id!r}")
    if env.is_atari and env.backend not in ("auto", *ATARI_BACKENDS):
        raise ConfigError(f"env.backend: {env.id} is an Atari game; set it to {' or '.join(map(repr, ATARI_BACKENDS))}")
    if env.backend != "auto":
        return env.backend
    has_envpool = importlib.util.find_spec("envpool") is not None
    if env.is_atari:  # it starts and steps faster than ALE, and shows its screen
        return "envpool" if has_envpool else "ale_sync"
    if has_envpool and not _has_gymnasium(env.id):
        from seedbed.actor_svc.backends.pool import has  # heavy

        if has(env.id):
            return "envpool"
    return "auto"


def describe_backend(env: EnvConfig) -> str:
    """Return the name of the backend on this machine: envpool, ale_sync, vector, gymnasium or function.

    "gymnasium" steps environments one by one; "function" is for an author's own `module:function`.
    """
    if EnvName.of(env.id).is_function:
        return "function"
    choice = choose_backend(env)
    if choice != "auto":
        return choice
    return "gymnasium" if find_registration(env.id).vector_entry_point is None else "vector"


def newer_id(env_id: str) -> str:
    """Return the id of the newest version of a registered environment; "" if it is the newest or not registered."""
    registered = gymnasium.registry.get(EnvName.of(env_id).name)
    if registered is None or registered.version is None:
        return ""
    versions = [
        spec.version
        for spec in gymnasium.registry.values()
        if (spec.namespace, spec.name) == (registered.namespace, registered.name) and spec.version is not None
    ]
    newest = max(versions)
    return "" if newest == registered.version else f"{env_id.removesuffix(f'-v{registered.version}')}-v{newest}"


def _has_gymnasium(env_id: str) -> bool:
    """Whether Gymnasium has an environment of this id, and the package that steps it is installed.

    Raises: ConfigError if it has a newer one in its place.
    """
    try:
        entry_point = gymnasium.spec(EnvName.of(env_id).name).entry_point
        if isinstance(entry_point, str):
            load_env_creator(entry_point)
    except gymnasium.error.DeprecatedEnv as error:
        from seedbed.actor_svc.backends.pool import has  # heavy

        hint = f", or env.backend = 'envpool' for EnvPool's own {env_id}" if has(env_id) else ""
        raise ConfigError(f"env.id: {str(error).rstrip('.')}{hint}") from error
    except (gymnasium.error.Error, ImportError):
        return False
    return True


def find_registration(env_id: str) -> Any:
    """Return Gymnasium's registration of an id, whose module, if it names one, `choose_backend` has imported.

    Raises: ConfigError if there is none, with similar ids.
    """
    try:
        return gymnasium.spec(EnvName.of(env_id).name)
    except gymnasium.error.Error as error:
        missing = "" if importlib.util.find_spec("envpool") else "; EnvPool, which has more ids, is not installed"
        raise ConfigError(
            f"env.id: no environment is called {env_id!r}{near_ids(env_id)} (give a Gymnasium or EnvPool id such as "
            f"CartPole-v1{missing}, or module:function or module:Name-v0 for an environment of yours)"
        ) from error


def near_ids(env_id: str) -> str:
    """Return a hint for an id that Gymnasium lacks: that EnvPool has it, or similar ones; empty without any."""
    known = set(gymnasium.registry)
    if importlib.util.find_spec("envpool") is not None:
        from seedbed.actor_svc.backends.pool import known_ids  # heavy

        known |= known_ids()
    if env_id in known:
        return " in Gymnasium, but EnvPool has it: set env.backend to 'auto' or 'envpool'"
    by_lower = {name.lower(): name for name in sorted(known)}
    near = [by_lower[name] for name in difflib.get_close_matches(env_id.lower(), by_lower, n=3, cutoff=0.7)]
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def _options(env: EnvConfig, render: bool) -> dict[str, Any]:
    """Return the keyword arguments for Gymnasium's constructors."""
    options = _with_limit(env, env.kwargs)
    if render:
        options["render_mode"] = "rgb_array"
    return options


def _make_vector(env: EnvConfig, render: bool, lanes: int) -> VectorEnv[Any, Any, Any]:
    """Make the environment's own vector form. Raises: as `_configured`."""
    name = EnvName.of(env.id).name
    made: VectorEnv[Any, Any, Any] = _configured(
        env, lambda: gymnasium.make_vec(name, lanes, vectorization_mode="vector_entry_point", **_options(env, render))
    )
    return made


def _make_single(env: EnvConfig, render: bool) -> gymnasium.Env[Any, Any]:
    """Make one registered environment, without Gymnasium's checker: its rows are checked instead.

    Raises: as `_configured`.
    """
    name = EnvName.of(env.id).name
    made: gymnasium.Env[Any, Any] = _configured(
        env, lambda: gymnasium.make(name, disable_env_checker=True, **_options(env, render))
    )
    return made


def _configured(env: EnvConfig, call: Callable[[], Any]) -> Any:
    """Return what a constructor makes; an error that the user's [env] section has caused is raised as ConfigError."""
    try:
        return call()
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        if EnvName.of(env.id).module:
            raise ConfigError(f"env.id: {env.id} cannot be made: {describe_import_failure(error)}") from error
        raise ConfigError(
            f"env.id: {env.id} needs a package that is not installed: {error}. EnvPool has some environments without "
            "it (env.backend = 'envpool')"
        ) from error
    except (TypeError, gymnasium.error.Error) as error:
        said = describe_failure(error)
        raise ConfigError(f"env.id: {env.id} cannot be made with env.kwargs {env.kwargs}: {said}") from error


def load_function(name: str, key: str = "env.id") -> MakeEnvironment:
    """Return the function or class that "module:function" names.

    Args:
      key: where the name stands in the configuration, for messages.
    Raises: ConfigError where there is no such module or function.
    """
    found = load_object(name, f"{key}: {name!r}")
    if not callable(found):
        raise ConfigError(f"{key}: {name!r} is no function or class")
    return found  # type: ignore[no-any-return]


def _from_function(env: EnvConfig, lanes: int, make: MakeEnvironment, render: bool) -> Backend:
    """Return a backend on what an author's function makes: an environment, a vector environment or a backend.

    Which of these it makes is told by its parameters: `num_envs` for a vector environment, `lanes` for a backend.
    """
    parameters = parameters_of(make)
    takes_mode = "render_mode" in parameters or "**" in parameters
    shown = {**env.kwargs, "render_mode": "rgb_array"} if render and takes_mode else env.kwargs
    if "lanes" in parameters and "lanes" not in shown:
        return _own_backend(env, lanes, make, shown, takes_limit="max_episode_steps" in parameters)
    if "num_envs" in parameters:
        takes_limit = "max_episode_steps" in parameters
        build = functools.partial(_build_vector, env, make, _with_limit(env, shown) if takes_limit else shown)
        made = call_environment(build, 1)
        if isinstance(made, SyncVectorEnv):  # single environments under the hood: one by one, whatever its autoreset
            return LaneBackend(_take_turns(build, made, env.max_episode_steps), lanes, image=env.image)
        if isinstance(made, VectorEnv):
            call_environment(made.close)
        _refuse_limit(env, takes_limit)
        return VectorBackend(build, lanes, image=env.image)

    def build_single(options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
        return _limited(_single(_configured(env, lambda: make(**options))), env.max_episode_steps)

    return LaneBackend(
        functools.partial(build_single, env.kwargs),
        lanes,
        make_shown=functools.partial(build_single, shown),
        image=env.image,
    )


def _own_backend(
    env: EnvConfig, lanes: int, make: MakeEnvironment, options: Mapping[str, Any], *, takes_limit: bool
) -> Backend:
    """Return the backend that a function with a parameter `lanes` makes. Raises: ConfigError if it is no backend."""
    _refuse_limit(env, takes_limit)
    options = _with_limit(env, options)
    made = call_environment(_configured, env, lambda: make(lanes=lanes, **options))
    if not isinstance(made, Backend):
        raise ConfigError(
            f"env.id: {env.id} takes lanes and returned a {type(made).__name__}: return a "
            "seedbed.actor_svc.backends.backend.Backend, or set lanes in env.kwargs if it is a setting of its own"
        )
    return made


def _with_limit(env: EnvConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a constructor that takes `max_episode_steps`, with that limit if one is set."""
    return dict(options) if env.max_episode_steps is None else {**options, "max_episode_steps": env.max_episode_steps}


def _refuse_limit(env: EnvConfig, takes_limit: bool) -> None:
    """Raise ConfigError if a limit is set that the function does not take."""
    if env.max_episode_steps is not None and not takes_limit:
        raise ConfigError(f"env.max_episode_steps: {env.id} does not take max_episode_steps; leave it out")


def _single(made: Any) -> gymnasium.Env[Any, Any]:
    """Return the object if it is a single environment. Raises: ConfigError if it is not."""
    if isinstance(made, gymnasium.Env):
        return made
    raise ConfigError(
        f"the environment's function returned a {type(made).__name__}: return a gymnasium.Env, or take num_envs and "
        "return a gymnasium.vector.VectorEnv"
    )


def _limited(env: gymnasium.Env[Any, Any], max_episode_steps: int | None) -> gymnasium.Env[Any, Any]:
    """Return the environment, truncated after `max_episode_steps` unless that is None."""
    return env if max_episode_steps is None else gymnasium.wrappers.TimeLimit(env, max_episode_steps)


def _build_vector(env: EnvConfig, make: MakeEnvironment, options: Mapping[str, Any], lanes: int) -> Any:
    """Return the vector environment of L lanes that an author's function makes with the settings of [env]."""
    return _configured(env, lambda: make(num_envs=lanes, **options))


def _take_turns(
    build: Callable[[int], Any], made: SyncVectorEnv[Any, Any], max_episode_steps: int | None
) -> Callable[[], gymnasium.Env[Any, Any]]:
    """Return a function that returns another single environment at each call: `made`'s first, then newly built ones."""
    waiting = list(made.envs)

    def take() -> gymnasium.Env[Any, Any]:
        env = waiting.pop() if waiting else build(1).envs[0]
        return _limited(_single(env), max_episode_steps)

    return take


def parameters_of(make: MakeEnvironment) -> set[str]:
    """Return the names of a function's parameters, with "**" if it takes any keyword; empty if they cannot be read."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {"**" if item.kind is inspect.Parameter.VAR_KEYWORD else item.name for item in parameters}
