"""Imports what a configuration names as `module:function` or `module:Class`, and finds where in it an error lies."""

import difflib
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
from seedbed.shared.runtime.config_errors import suggest

C = TypeVar("C")

FORMER_PACKAGES = ("shared", "actor_svc", "inference_svc", "learner_svc", "services")  # now in `seedbed`
SOURCE = Path(__file__).parents[2]
OURS = tuple(
    f"{SOURCE / name}{os.sep}"
    for name in (
        "shared",
        "actor_svc",
        "inference_svc",
        "learner_svc",
        "services/tools/cli",
        "services/tools/container",
    )
)


def look_for_modules_here() -> None:
    """Make modules in the working directory importable, after the installed packages, so that they hide none."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def import_module(name: str) -> ModuleType:
    """Import a module. Seedbed's own are also found by the names that they had before they were in `seedbed`."""
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


def load_object(name: str, setting: str) -> Any:
    """Return what `module:name` names.

    Args:
      setting: what errors call it, as "[policy] network = 'module:Class'".
    Raises: ConfigError if there is no such module or name, or the module's code fails: with the file and line at fault.
    """
    module_name, _, attribute = name.partition(":")
    module = load_module(module_name, setting)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        near = difflib.get_close_matches(attribute, [key for key in vars(module) if key[0] != "_"], n=1)
        meant = f"; did you mean {module_name}:{near[0]}?" if near else ""
        raise ConfigError(f"{setting}: {error}{meant}") from error


def load_module(module_name: str, setting: str) -> ModuleType:
    """Return a module that a configuration names. Arguments and errors are those of `load_object`."""
    try:
        return import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever the module's code does
        is_absent = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if is_absent and not place_of(error):
            raise ConfigError(
                f"{setting}: {error}; modules are looked for in the working directory and the packages installed"
            ) from error
        said = describe_import_failure(error)
        raise ConfigError(f"{setting}: importing {module_name} failed: {said}") from error


def load_class(
    name: str, setting: str, *, known: Iterable[str], base: type[C], shown: type[Any] | None = None
) -> type[C]:
    """Return the class that `module:Class` names.

    Args:
      setting: what errors call it, as "[policy] network = 'x'".
      known: the built-in names, none of which is `name`; an error suggests the nearest of them.
      base: the class that it must be a subclass of.
      shown: the class that errors name instead of `base`; None: `base`.
    Raises: ConfigError with the file and line at fault.
    """
    _, colon, class_name = name.partition(":")
    if not colon:
        raise ConfigError(f"{setting}: there is none of this name{suggest(name, tuple(known))}; or give module:Class")
    found = load_object(name, setting)
    if not (isinstance(found, type) and issubclass(found, base)):
        wanted = shown or base
        raise ConfigError(f"{setting}: {class_name} is no subclass of {wanted.__module__}.{wanted.__qualname__}")
    return found


def describe_failure(error: BaseException) -> str:
    """Return type, message and place in the user's code of an error that foreign code raised.

    The message is left out if the error fails to produce it.
    """
    try:
        said = str(error)
    except Exception:
        said = ""
    place = place_of(error)
    if isinstance(error, SyntaxError):
        said = error.msg  # the rest of its message is the place
    return f"{type(error).__name__}" + (f": {said}" if said else "") + (f" ({place})" if place else "")


def describe_import_failure(error: BaseException) -> str:
    """Return what `describe_failure` does and, if a module is missing, what to do about it."""
    said = describe_failure(error)
    if not isinstance(error, ImportError) or not error.name:
        return said
    package = error.name.partition(".")[0]
    if not isinstance(error, ModuleNotFoundError):
        return said
    ours = f"; seedbed's own is seedbed.{error.name}" if package in FORMER_PACKAGES and _is_ours(error.name) else ""
    return f"{said}; install {package!r}, or fix the import{ours}"


def _is_ours(name: str) -> bool:
    """Whether a module of this former name is in `seedbed`."""
    try:
        return importlib.util.find_spec(f"seedbed.{name}") is not None
    except ModuleNotFoundError:
        return False


def place_of(error: BaseException) -> str:
    """Return where an error left the user's own code, as "file, line 12"; empty if none of that code was involved.

    Files of seedbed, of Python and of installed packages are not the user's own.
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
    """Return a path relative to the working directory if it lies within, else the absolute path."""
    path = Path(file).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
