"""`serve(make_env)` turns a function that makes environments into an actor."""

from collections.abc import Sequence
from functools import partial

from pydantic import create_model

from seedbed.actor_svc.config import ActorSettings
from seedbed.actor_svc.envs import MakeEnvironment
from seedbed.actor_svc.service import run
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.service import main_from


def serve(make_env: MakeEnvironment | EnvConfig, *, name: str = "", argv: Sequence[str] | None = None) -> int:
    """Step environments for the inference service that the command line, variables or experiment file name.

        if __name__ == "__main__":
            sys.exit(serve(MyEnv))

    Args:
      make_env: returns a gymnasium.Env; or, if it takes `num_envs`, a VectorEnv with next-step autoreset; or, if it
        takes `lanes`, a Backend. Gets `env.kwargs`. Or an EnvConfig that names a known environment; its values are the
        defaults of [env].
      name: what the environment is called wherever `env.id` is not set; empty: the function's module and name.
      argv: `[EXPERIMENT.toml] [section.key=value …]`, for example `actor.upstream=tcp://127.0.0.1:5555`, or
        from another machine `actor.upstream=tcp://10.0.0.6:5555 runtime.keys=default`; None: this process's own.
    Returns: the exit code: 0 when the run is finished, 78 where the run has other spaces or settings.
    """
    if isinstance(make_env, EnvConfig):
        env, make = make_env, None
    else:
        qualified = getattr(make_env, "__qualname__", type(make_env).__name__)
        env, make = EnvConfig(id=name or f"{getattr(make_env, '__module__', '')}:{qualified}"), make_env
    return main_from("actor", _settings(env), partial(run, make=make), argv)


def _settings(env: EnvConfig) -> type[ActorSettings]:
    """Return a settings class whose [env] defaults to this environment's values, so that one key can be set alone."""
    fields = {field: (EnvConfig.model_fields[field].annotation, getattr(env, field)) for field in env.model_fields_set}
    section: type[EnvConfig] = create_model("EnvConfig", __base__=EnvConfig, **fields)  # type: ignore[call-overload]
    return create_model("ActorSettings", __base__=ActorSettings, env=(section, section.model_validate({})))
