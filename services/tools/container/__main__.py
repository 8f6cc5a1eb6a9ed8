"""`python -m seedbed.services.tools.container PACKAGE EXPERIMENT.toml [section.key=value …]`: serve, or hold."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from seedbed.services.tools.container import hold
from seedbed.services.tools.container.role import SERVED
from seedbed.shared.errors import SeedbedError
from seedbed.shared.runtime.service import leave, report


def service_main(package: str) -> Callable[[Sequence[str]], int]:
    """The `main` of a service: nothing of the others is imported."""
    if package == "learner":
        from seedbed.learner_svc.__main__ import main as learner

        return learner
    if package == "inference":
        from seedbed.inference_svc.__main__ import main as inference

        return inference
    if package == SERVED:
        return served
    from seedbed.actor_svc.__main__ import main as actor

    return actor


def served(argv: Sequence[str]) -> int:
    """`RUN_FOLDER WHICH EXPERIMENT.toml [section.key=value …]`: inference on a run's checkpoint, without a learner."""
    from seedbed.services.tools.cli.evaluate import Which
    from seedbed.services.tools.cli.serving import run_served

    folder, which, *words = argv
    try:
        return run_served(Path(folder), cast(Which, which), words, greedy=None)
    except SeedbedError as error:  # before it is a service
        return report("inference", error)


def main(argv: Sequence[str]) -> int:
    """Run the service; its exit code, unless it is not to be started again, which starts `hold` instead."""
    code = service_main(argv[0])(argv[1:])
    if hold.is_held(code):
        hold.execute(code)
    return code


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
