"""What must be installed for a command: said before anything starts."""

import importlib.util

from seedbed.shared.errors import MissingExtraError


def require_torch() -> None:
    """Check that torch and safetensors are installed. Raises: MissingExtraError."""
    require_modules("torch", "torch", "safetensors")


def require_modules(extra: str, *modules: str) -> None:
    """Check that these modules are installed. Raises: MissingExtraError with the command that installs the extra."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise MissingExtraError(module, extra)
