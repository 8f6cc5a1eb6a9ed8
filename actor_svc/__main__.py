"""`python -m actor_svc [EXPERIMENT.toml] [section.key=value …]`."""

from collections.abc import Sequence

from actor_svc.config import ActorSettings
from actor_svc.service import run
from shared.runtime.service import leave, main_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run an actor; its exit code."""
    return main_from("actor", ActorSettings, run, argv)


if __name__ == "__main__":
    leave(main())
