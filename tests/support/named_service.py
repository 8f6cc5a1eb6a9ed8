"""A service whose names are looked up in a file: `python -m tests.support.named_service ROLE HOSTS.json [words…]`.

HOSTS.json is {name: [numeric host, …]}; a name that is not there does not resolve.
"""

import json
import sys
from functools import partial
from pathlib import Path

import seedbed.actor_svc.service
import seedbed.inference_svc.service
from seedbed.actor_svc.config import ActorSettings
from seedbed.inference_svc.config import InferenceSettings
from seedbed.shared.runtime.service import main_from


def look_up(hosts: Path, name: str, _port: int) -> list[str]:
    """What the file says now."""
    found = json.loads(hosts.read_text()).get(name)
    if not found:
        raise OSError(-2, "Name or service not known")
    return list(found)


def main() -> int:
    """Run it; its exit code."""
    role, hosts = sys.argv[1:3]
    lookup = partial(look_up, Path(hosts))
    if role == "actor":
        return main_from(role, ActorSettings, partial(seedbed.actor_svc.service.run, lookup=lookup), sys.argv[3:])
    return main_from(role, InferenceSettings, partial(seedbed.inference_svc.service.serve, lookup=lookup), sys.argv[3:])


if __name__ == "__main__":
    sys.exit(main())
