"""Where `module:function` and `module:Class` of a configuration are looked for, and where in them a mistake lies."""

import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from seedbed.shared.errors import ConfigError
from seedbed.shared.runtime.config import suggest

C = TypeVar("C")

FORMER_PACKAGES = ("shared", "actor_svc", "inference_svc", "learner_svc", "services")  # now in `seedbed`
SOURCE = Path(__file__).parents[2]
OURS = tuple(
    f"{SOURCE / name}{os.sep}"
    for name in ("shared", "actor_svc", "inference_svc", "learner_svc", "services/cli", "services/container")
)


def look_for_modules_here() -> None:
    """Let them name what lies in the working directory; behind the packages installed, so that none is hidden."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def import_module(name: str) -> ModuleType:
    """The module of this name; of ours also by the name that it had before they were in `seedbed`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if package not in FORMER_PACKAGES or not f"{name}.".startswith(f"{error.name}."):
            raise
        try:
            return importlib.import_module(f"seedbed.{name}")
        except ModuleNotFoundError:
            raise error from None


def load_class(
    name: str, setting: str, *, known: Iterable[str], base: type[C], shown: type[Any] | None = None
) -> type[C]:
    """The class that `module:Class` names.

    Args:
      setting: what to call it in errors, as "[policy] network = 'x'".
      known: names that are no classes of somebody's own, of which this one is none.
      base: what it must be a subclass of.
      shown: what errors say instead of that.
    Raises: ConfigError with the file and line at fault.
    """
    module_name, colon, class_name = name.partition(":")
    if not colon:
        raise ConfigError(f"{setting}: there is none of this name{suggest(name, tuple(known))}; or give module:Class")
    try:
        found: Any = getattr(import_module(module_name), class_name)
    except (Exception, SystemExit) as error:  # whatever the module's code does
        said = describe_import_failure(error) if place_of(error) else error
        raise ConfigError(f"{setting}: {said}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        wanted = shown or base
        raise ConfigError(f"{setting}: {class_name} is no subclass of {wanted.__module__}.{wanted.__qualname__}")
    return found


def describe_failure(error: BaseException) -> str:
    """Type and message of what foreign code raised, and where in the user's code. The message may itself be broken."""
    try:
        said = str(error)
    except Exception:
        said = ""
    place = place_of(error)
    if isinstance(error, SyntaxError):
        said = error.msg  # the rest of its message is the place
    return f"{type(error).__name__}" + (f": {said}" if said else "") + (f" ({place})" if place else "")


def describe_import_failure(error: BaseException) -> str:
    """As `describe_failure`, with what to do about a module that is missing or hidden."""
    said = describe_failure(error)
    if not isinstance(error, ImportError) or not error.name:
        return said
    package = error.name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError):
        return said
    ours = f"; seedbed's own is seedbed.{error.name}" if package in FORMER_PACKAGES and _is_ours(error.name) else ""
    return f"{said}; install {package!r}, or mend the import{ours}"


def _is_ours(name: str) -> bool:
    """Whether a module of this former name is in `seedbed`."""
    try:
        return importlib.util.find_spec(f"seedbed.{name}") is not None
    except ModuleNotFoundError:
        return False


def place_of(error: BaseException) -> str:
    """ "file, line 12" where an error left the user's own code: neither ours, nor Python's, nor an installed package's.

    Empty if none of it was on the way.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown_path(error.filename)}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{shown_path(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""


def is_users(file: str) -> bool:
    """Whether a source file is the user's own."""
    paths = sysconfig.get_paths()
    installed = tuple(f"{paths[name]}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not file.startswith(("<", *installed, *OURS))


def shown_path(file: str) -> str:
    """As seen from the working directory, if it lies there."""
    path = Path(file).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
