"""Every error that seedbed raises on purpose, grouped by what the caller can do about it."""


class SeedbedError(Exception):
    """Base of all of seedbed's own errors. `exit_code` is what a service exits with."""

    exit_code = 1


class ConfigError(SeedbedError):
    """The user's configuration is wrong: names file and key. The launcher does not restart on it."""

    exit_code = 78  # EX_CONFIG of sysexits.h


class MissingExtraError(ConfigError):
    """An optional dependency is not installed: names the extra and the command that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: run  pip install 'seedbed[{extra}]'")


class RejectedError(ConfigError):
    """A peer refused us for good: says what differed and what to change."""


class WireError(SeedbedError):
    """A frame or message breaks the protocol."""


class LocalWireError(WireError):
    """Our own code asked for a message that the protocol does not allow."""


class RemoteWireError(WireError):
    """A peer sent what the protocol does not allow. `code` is a short constant for counters."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EnvError(SeedbedError):
    """An environment cannot be made or keeps failing."""


class CheckpointError(SeedbedError):
    """A checkpoint that cannot be read, or does not fit this configuration. No restart mends it."""

    exit_code = ConfigError.exit_code


class StorageError(SeedbedError):
    """A file of the run cannot be written: says which, why, and what to do. No restart mends it."""

    exit_code = 74  # EX_IOERR of sysexits.h


class NumericsError(SeedbedError):
    """A loss or gradient is not finite; the batch that caused it has been saved."""
