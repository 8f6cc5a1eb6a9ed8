"""`python -m services.container ROLE EXPERIMENT.toml [section.key=value …]`: serve; when refused for good, hold."""

import sys
from collections.abc import Callable, Sequence

from services.container import hold
from shared.runtime.service import leave


def service_main(package: str) -> Callable[[Sequence[str]], int]:
    """The `main` of a service: nothing of the others is imported."""
    if package == "learner":
        from learner_svc.__main__ import main as learner

        return learner
    if package == "inference":
        from inference_svc.__main__ import main as inference

        return inference
    from actor_svc.__main__ import main as actor

    return actor


def main(argv: Sequence[str]) -> int:
    """Run the service; its exit code, unless that is 78, which starts `hold` instead."""
    code = service_main(argv[0])(argv[1:])
    if code == hold.EXIT:
        hold.execute()
    return code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
