"""A short process that looks at one thing and answers: what both sides of it share.

The request is JSON on its standard input, the answer a JSON file whose name is its only argument: what an
environment prints must not get between. A mistake of the user's is an answer; whatever else ends the process is told
by the last lines of its standard error.
"""

import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self, cast

from seedbed.services.tools.cli.machine import service_environment
from seedbed.services.tools.cli.postmortem import last_words
from seedbed.shared.errors import ConfigError, SeedbedError
from seedbed.shared.runtime.modules import is_users, look_for_modules_here, shown_path
from seedbed.shared.runtime.service import DIE_WITH_PARENT, die_with_parent

Answer = dict[str, Any]
GRACE_S = 5.0  # for the process to tell where it hangs, beyond what it is allowed
FRAME = re.compile(r'^ *File "(.+?)", line (\d+)', re.MULTILINE)


class Child:
    """The process, from the side that asks. Use it with `with`: nothing of it outlives that."""

    def __init__(self, module: str, what: str, timeout_s: float) -> None:
        """Start the process: it loads its modules while others work.

        Args:
          what: is looked at, for messages, such as "env.id: CartPole-v1".
        """
        self._what, self._timeout_s = what, timeout_s
        self._folder = tempfile.TemporaryDirectory(prefix="seedbed-probe-")
        self._answer = Path(self._folder.name) / "answer.json"
        self._errors = Path(self._folder.name) / "stderr"
        environment = service_environment(os.environ) | {"OMP_NUM_THREADS": "1", DIE_WITH_PARENT: str(os.getpid())}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(self._answer)],
                env=environment, stdin=subprocess.PIPE, stdout=errors, stderr=errors, start_new_session=True,
            )  # fmt: skip
        self._requests = cast(IO[bytes], self._process.stdin)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it started, too
        self._process.wait()
        with suppress(OSError):
            self._requests.close()
        self._folder.cleanup()

    def send(self, request: Mapping[str, Any]) -> None:
        """Say what to look at, once."""
        with suppress(OSError), self._requests as stream:  # it may have ended: the answer says how
            stream.write(json.dumps({**request, "timeout_s": self._timeout_s}).encode())

    def answer(self) -> Answer:
        """What it answers. Raises: ConfigError with the user's mistake, or how the process ended."""
        try:
            self._process.wait(self._timeout_s + GRACE_S)
        except subprocess.TimeoutExpired:
            raise ConfigError(self._hung()) from None
        try:
            answer: Answer = json.loads(self._answer.read_bytes())
        except (OSError, ValueError):
            raise ConfigError(self._ended()) from None
        if "mistake" in answer:
            raise ConfigError(answer["mistake"])
        return answer

    def _hung(self) -> str:
        place = self._place()
        return f"{self._what} took longer than {self._timeout_s:g} s to look at" + (f" ({place})" if place else "")

    def _ended(self) -> str:
        """The error for a process that ended without an answer."""
        code = self._process.returncode
        if "Timeout (" in self._said():
            return self._hung()
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        place, words = self._place(), last_words(self._errors)
        return f"{self._what} ended the process that looked at it: {how}" + (
            f" ({place})" if place else f"\n{words}" if words else ""
        )

    def _said(self) -> str:
        return self._errors.read_text(errors="replace")

    def _place(self) -> str:
        """Where in the user's code it was, by the stack that the interpreter left, innermost first."""
        said = self._said()
        stack = said[max(said.rfind("Fatal Python error"), said.rfind("Timeout (")) :]
        for file, line in FRAME.findall(stack):
            if is_users(file):
                return f"{shown_path(file)}, line {line}"
        return ""


def answer_to(look: Callable[[dict[str, Any]], Answer]) -> None:
    """The process's `main`: read the request, look, answer."""
    die_with_parent()
    look_for_modules_here()
    request: dict[str, Any] = json.loads(sys.stdin.read())
    faulthandler.enable()
    faulthandler.dump_traceback_later(request["timeout_s"], exit=True)
    try:
        answer = look(request)
    except SeedbedError as error:
        answer = {"mistake": str(error)}
    file = Path(sys.argv[1])
    file.with_suffix(".new").write_text(json.dumps(answer), encoding="utf-8")
    file.with_suffix(".new").replace(file)
    sys.stdout.flush()
    os._exit(0)  # some simulators hang or abort when they are torn down
