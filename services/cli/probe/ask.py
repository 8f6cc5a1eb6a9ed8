"""Asks for a probe of an environment, once for each."""

from services.cli.probe.child import Child
from services.cli.probe.record import Probe, from_json
from shared.runtime.config import EnvConfig

_known: dict[str, Probe] = {}  # by [env] section: a command looks at an environment once


def probe_environment(env: EnvConfig, timeout_s: float) -> Probe:
    """What an environment is, from a short process of its own that makes it.

    Raises: ConfigError with the user's mistake, or how that process ended.
    """
    key = env.model_dump_json()
    if key not in _known:
        with Child("services.cli.probe.environment", f"env.id: {env.id}", timeout_s) as child:
            _known[key] = from_json(child.ask({"env": env.model_dump(mode="json", exclude_unset=True)}))
    return _known[key]
