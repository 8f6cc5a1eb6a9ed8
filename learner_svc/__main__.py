"""`python -m seedbed.learner_svc [EXPERIMENT.toml] [section.key=value …]`, and each of its ranks by torchrun."""

from collections.abc import Sequence

from seedbed.learner_svc.config import LearnerSettings
from seedbed.learner_svc.ranks.start import place
from seedbed.learner_svc.service import serve
from seedbed.shared.runtime.service import leave, main_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run the learner from the command line and return its exit code."""
    return main_from("learner", LearnerSettings, serve, argv, prepare=place)


if __name__ == "__main__":
    leave(main())
