"""Processes forked from one that has imported the services already: importing torch takes seconds of processor time.

The standard library's fork server does the work; each process has an environment and output of its own.
"""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from seedbed.shared.runtime.service import DIE_WITH_PARENT

MODULES = ["seedbed.learner_svc.service", "seedbed.inference_svc.service", "seedbed.actor_svc.service"]


@cache
def _server() -> ForkServerContext:
    """The fork server of this test worker. It ends with the worker, and with it all that it forked."""
    context = get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    with patch.dict(os.environ, OMP_NUM_THREADS="1"):  # read when torch is imported
        forkserver.ensure_running()
    return context


class ForkedProcess:
    """A function's run in a process of its own, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, function: Callable[..., Any], *arguments: Any, environment: Mapping[str, str], output: Path | None = None
    ) -> None:
        """`output`: a file that gets what the process prints; None: it prints where the worker does."""
        self._process = _server().Process(target=_run, args=(function, arguments, dict(environment), output))
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one. Raises: subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(repr(self._process), timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9."""
        self.send_signal(signal.SIGKILL)


def run_program(module: str, words: Sequence[str]) -> None:
    """What `python -m` does."""
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _run(
    function: Callable[..., Any], arguments: tuple[Any, ...], environment: dict[str, str], output: Path | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    if DIE_WITH_PARENT in environment:
        os.environ[DIE_WITH_PARENT] = str(os.getppid())  # the fork server
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    if output is not None:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.close(file)
    warnings.simplefilter("error", ResourceWarning)
    function(*arguments)
