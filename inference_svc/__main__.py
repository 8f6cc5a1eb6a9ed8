"""`python -m seedbed.inference_svc [EXPERIMENT.toml] [section.key=value …]`."""

from collections.abc import Sequence

from seedbed.inference_svc.config import InferenceSettings
from seedbed.inference_svc.service import serve
from seedbed.shared.runtime.service import leave, main_from


def main(argv: Sequence[str] | None = None) -> int:
    """Run the inference service from the command line and return its exit code."""
    return main_from("inference", InferenceSettings, serve, argv)


if __name__ == "__main__":
    leave(main())
