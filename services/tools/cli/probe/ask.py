"""Asks for probes of environments, several at a time and once for each."""

from collections.abc import Sequence
from contextlib import ExitStack

from seedbed.services.tools.cli.machine import usable_cores
from seedbed.services.tools.cli.probe.child import Child
from seedbed.services.tools.cli.probe.record import Probe, from_json
from seedbed.services.tools.cli.service_folder import open_service
from seedbed.shared.runtime.config import EnvConfig

_known: dict[str, Probe] = {}  # by [env] section: a command looks at an environment once


def probe_environment(env: EnvConfig, timeout_s: float) -> Probe:
    """What an environment is, from a short process of its own that makes it.

    Raises: ConfigError with the user's mistake, or how that process ended.
    """
    return probe_environments([env], timeout_s)[0]


def probe_environments(envs: Sequence[EnvConfig], timeout_s: float) -> list[Probe]:
    """A probe of each, as many at a time as there are cores; of equal ones, such as two tasks', one.

    Raises: ConfigError with the first mistake.
    """
    keys = {env.model_dump_json(): env for env in envs}
    missing, cores = [key for key in keys if key not in _known], usable_cores()
    for key in missing:
        if keys[key].service:
            open_service(keys[key]).build()  # may take long
    for start in range(0, len(missing), cores):
        with ExitStack() as stack:
            children = {key: stack.enter_context(_ask(keys[key], timeout_s)) for key in missing[start : start + cores]}
            for key, child in children.items():
                _known[key] = from_json(child.answer())
    return [_known[env.model_dump_json()] for env in envs]


def _ask(env: EnvConfig, timeout_s: float) -> Child:
    """A process that has been asked."""
    child = Child("seedbed.services.tools.cli.probe.environment", f"env.id: {env.id}", timeout_s)
    child.send({"env": env.model_dump(mode="json", exclude_unset=True)})
    return child
