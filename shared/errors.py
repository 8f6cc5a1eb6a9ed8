"""The errors that seedbed raises on purpose, grouped by what the caller can do about them."""


class SeedbedError(Exception):
    """Base of all of seedbed's own errors. `exit_code` is what a service exits with."""

    exit_code = 1


class ConfigError(SeedbedError):
    """The configuration is wrong. The message names file and key; a launcher does not restart the service."""

    exit_code = 78  # EX_CONFIG of sysexits.h


class MissingExtraError(ConfigError):
    """An optional dependency is not installed. The message has the command that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(f"{module} is not installed: run  pip install 'seedbed[{extra}]'")


class RejectedError(ConfigError):
    """A peer refused this service for good. The message says what differs and what to change."""


class WireError(SeedbedError):
    """A frame or message breaks the protocol."""


class LocalWireError(WireError):
    """Code of this process tried to send a message that the protocol does not allow."""


class RemoteWireError(WireError):
    """A peer sent something that the protocol does not allow. `code` is a short constant for counters."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EnvError(SeedbedError):
    """An environment cannot be made or keeps failing."""


class CheckpointError(SeedbedError):
    """A checkpoint cannot be read, or does not fit the configuration. A restart does not help."""

    exit_code = ConfigError.exit_code


class StorageError(SeedbedError):
    """A file of the run cannot be written. The message says which, why, and what to do; a restart does not help."""

    exit_code = 74  # EX_IOERR of sysexits.h


class NumericsError(SeedbedError):
    """A loss or gradient is not finite; the batch that caused it has been saved."""
