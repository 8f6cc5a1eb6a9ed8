"""`python -m seedbed.actor_svc [EXPERIMENT.toml] [section.key=value …]`."""

from collections.abc import Sequence

from seedbed.actor_svc.config import ActorSettings
from seedbed.actor_svc.service import run
from seedbed.shared.runtime.service import leave, main_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run an actor from the command line and return its exit code."""
    return main_from("actor", ActorSettings, run, argv)


if __name__ == "__main__":
    leave(main())
