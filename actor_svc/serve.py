"""The one line for authors of environments: `serve(make_env)` turns a function into an actor."""

from collections.abc import Sequence
from functools import partial

from actor_svc.config import ActorSettings
from actor_svc.envs import MakeEnvironment
from actor_svc.service import run
from shared.runtime.config import EnvConfig
from shared.runtime.service import main_from


def serve(make_env: MakeEnvironment, *, name: str = "", argv: Sequence[str] | None = None) -> int:
    """Step environments for the inference service that the command line, variables or experiment file name.

        if __name__ == "__main__":
            sys.exit(serve(MyEnv))

    Args:
      make_env: returns a gymnasium.Env; or, if it takes `num_envs`, a VectorEnv with next-step autoreset; or, if it
        takes `lanes`, a Backend. Gets `env.kwargs`.
      name: what the environment is called wherever `env.id` is not set; empty: the function's module and name.
      argv: `[EXPERIMENT.toml] [section.key=value …]`, for example `actor.upstream=tcp://host:5555`; none: this
        process's.
    Returns: the exit code: 0 when the run is finished, 78 where the run has other spaces or settings.
    """
    label = (
        name or f"{getattr(make_env, '__module__', '')}:{getattr(make_env, '__qualname__', type(make_env).__name__)}"
    )

    class Settings(ActorSettings):
        """As for any actor, but the environment is known."""

        env: EnvConfig = EnvConfig(id=label)

    return main_from("actor", Settings, partial(run, make=make_env), argv)
