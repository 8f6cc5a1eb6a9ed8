"""Structured logs of one process: text on a terminal or on request, JSON lines otherwise and in the log file.

Events are past-tense snake_case with key=value; service, name and incarnation are on every line. The standard library's
records (asyncio's, say) go the same way. A log file that is full is renamed, and the oldest goes.
"""

import contextlib
import logging
import sys
from logging.handlers import RotatingFileHandler
from typing import Any, Protocol, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import RuntimeConfig

MAX_FILE_BYTES, KEPT_FILES = 16 << 20, 2  # of a log file, and of those before it: NAME.1, NAME.2


class Log(Protocol):
    """The logger that a service calls: one method for each level, with an event's name and its values."""

    def debug(self, event: str, **figures: Any) -> None:
        """Log something that matters only to those who change the code."""

    def info(self, event: str, **figures: Any) -> None:
        """Log something that a reader of the run wants to know."""

    def warning(self, event: str, **figures: Any) -> None:
        """Log that something is wrong and is being dealt with."""

    def error(self, event: str, **figures: Any) -> None:
        """Log that something failed."""

    def exception(self, event: str, **figures: Any) -> None:
        """Log that something failed, with the traceback of the exception being handled."""


def configure(service: str, name: str, incarnation: int, runtime: RuntimeConfig, stream: TextIO | None = None) -> Log:
    """Set up the process's logs, in place of an earlier setup, and return the service's logger.

    Args:
      service: the service's role, e.g. "inference".
      name: the name of this process among those of its role.
      incarnation: the number of this process's life, which is logged in hexadecimal.
      runtime: level, format and file.
      stream: where to write instead of stderr.
    Raises: ConfigError if the log file cannot be opened.
    """
    stream = stream or sys.stderr
    constants = {"service": service, "name": name, "incarnation": f"{incarnation:x}"}

    def bind_constants(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.update(constants)
        return event

    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    close()
    root = logging.getLogger()
    root.setLevel(runtime.log_level.upper())
    logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it tells of its font cache at INFO
    as_json: list[Processor] = [
        structlog.processors.format_exc_info,
        bind_constants,
        structlog.processors.JSONRenderer(default=str),
    ]
    if stream.isatty() if runtime.log_format == "auto" else runtime.log_format == "text":
        tracebacks = structlog.dev.plain_traceback  # the default one prints local variables, keys among them
        renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=tracebacks)
        _attach(logging.StreamHandler(stream), shared, [renderer])
    elif runtime.log_file is None:
        _attach(logging.StreamHandler(stream), shared, as_json)
    if runtime.log_file is not None:
        try:
            runtime.log_file.parent.mkdir(parents=True, exist_ok=True)
            rotating = RotatingFileHandler(
                runtime.log_file, maxBytes=MAX_FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8"
            )
            _attach(rotating, shared, as_json)
        except OSError as error:
            raise ConfigError(f"runtime.log_file: {runtime.log_file}: {error.strerror}") from error
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    log: Log = structlog.get_logger(service)
    return log


def close() -> None:
    """Close the handlers that `configure` opened."""
    root = logging.getLogger()
    for handler in [item for item in root.handlers if isinstance(item.formatter, structlog.stdlib.ProcessorFormatter)]:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk: the last lines are lost, and that is all
            handler.close()


def _attach(handler: logging.Handler, shared: list[Processor], renderers: list[Processor]) -> None:
    """Add a handler that renders our events and foreign records alike."""
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.getLogger().addHandler(handler)
