"""Runs the lives of a service that is checked, measured or played: sockets, its process, and time.

| waits for | at most |
|---|---|
| the service's first HELLO | five times `patience_s`, for it may load a simulator |
| each answer | `patience_s` |
| what it sent before it left | until nothing came for `LAST_MESSAGES_S` |
| its end after SIGTERM, when all is over | `KILL_S`, then it is killed |
"""

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, TypeVar

from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.kit import ScriptedLife, Stopped, UnknownVersion
from seedbed.services.tools.cli.env.life import Expected, Life, ServiceLink
from seedbed.services.tools.cli.env.target import Listen, pinned
from seedbed.services.tools.cli.env.verdicts import Result, RuleVerdict, merge, skipped
from seedbed.services.tools.cli.service_folder import ServiceFolder, kill_group, service_variables
from seedbed.shared.errors import ConfigError
from seedbed.shared.net.keys import bind_keys
from seedbed.shared.net.reactor import Buffer, Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router

POLL_S = 0.05
KILL_S = 5.0
LAST_MESSAGES_S = 0.5
TAIL_BYTES = 4096  # of what the process said
ANY_PORT = "tcp://127.0.0.1:0"
NO_PROCESS = "needs a service that the kit can start: give a folder with a service.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Whom to tell what is going on."""

    doing: Callable[[str], None] = lambda _what: None  # the exercise under way
    listening: Callable[[str], None] = lambda _address: None  # where a service is awaited that somebody else starts


SILENT = Notes()
L = TypeVar("L", bound=Life)
MakeLife = Callable[[ServiceLink], L]


def check_service(
    target: ServiceFolder | Listen, options: CheckOptions, words: Sequence[str] = (), notes: Notes = SILENT
) -> list[Result]:
    """Every rule of services and of their rows.

    Args:
      words: further words for the service's command.
    Raises: ConfigError if the address or the folder is wrong.
    """
    if isinstance(target, Listen):
        results = live(ScriptedLife, target, options, words, notes).all_results()
        return merge([*results, *(skipped(name, NO_PROCESS) for name in ("unknown version", "stopped"))])
    target.build()
    results = []
    for kind in (ScriptedLife, UnknownVersion, Stopped):
        life = live(kind, target, options, words, notes)
        results += [_with_words(result, life.last_words) for result in life.all_results()]
        if not life.hellos:
            break
    return merge(results)


def live(
    kind: MakeLife[L], target: ServiceFolder | Listen, options: CheckOptions, words: Sequence[str], notes: Notes
) -> L:
    """One life of a service, from its start to its end; what was seen of it.

    Args:
      kind: a Life, or what makes one.
    """
    with asyncio.Runner() as runner:
        return runner.run(_live(kind, target, options, words, notes))


async def _live(
    kind: MakeLife[L], target: ServiceFolder | Listen, options: CheckOptions, words: Sequence[str], notes: Notes
) -> L:
    """Listen, start the service, wait until the life is over."""
    with Reactor() as reactor:
        address = _Address(reactor, target if isinstance(target, Listen) else Listen(ANY_PORT))
        with contextlib.ExitStack() as stack:
            process: _EnvProcess | None = None
            expected: Expected | None = None
            if isinstance(target, ServiceFolder):
                expected = Expected(env_id=target.manifest.env_id, groups=options.groups, lanes=options.lanes)
                process = stack.enter_context(_started(target, address.endpoint, options, words))
            link = ServiceLink(
                options=options, expected=expected, epoch=secrets.randbits(31) | 1, send=address.send,
                cut=address.cut, stop=process.stop if process else lambda: None,
            )  # fmt: skip
            life = kind(link)
            heard_at = started = reactor.loop.time()
            if process is None:
                notes.listening(address.endpoint)

            def receive(route: bytes, frames: list[bytes]) -> None:
                nonlocal heard_at
                heard_at = reactor.loop.time()
                life.receive(route, frames, heard_at - started)

            address.listen(receive)
            said, left_at = "", float("inf")
            while not life.is_done:
                await asyncio.sleep(POLL_S)
                address.open_again()
                life.poll(reactor.loop.time() - started)
                if process is not None and (status := process.status()) is not None:
                    now = reactor.loop.time()
                    left_at = min(left_at, now)
                    if now - max(left_at, heard_at) >= LAST_MESSAGES_S:
                        life.exited(status, process.last_words())
                if life.doing != said:
                    said = life.doing
                    notes.doing(said)
            life.last_words = process.last_words() if process is not None else ""
            return life


def _with_words(result: Result, last_words: str) -> Result:
    """Why a lane was made anew, if the service said so: no message tells it."""
    if result.name != "no rebuilt lanes" or result.verdict is not RuleVerdict.FAIL or not last_words:
        return result
    return replace(result, found=f"{result.found}; the service last said: {last_words}")


class _Address:
    """A router that can be closed and opened at the same address. Owned by the loop."""

    def __init__(self, reactor: Reactor, target: Listen) -> None:
        self._reactor, self._keys = reactor, bind_keys(target.keys, Role.INFERENCE)
        self._receive: Callable[[bytes, list[bytes]], None] = lambda _route, _frames: None
        self._router: Router | None = Router(reactor, target.bind, on_message=self._deliver, keys=self._keys)
        self.endpoint = self._router.endpoint

    def listen(self, receive: Callable[[bytes, list[bytes]], None]) -> None:
        """Hand on messages from now on."""
        self._receive = receive

    def send(self, route: bytes, frames: Sequence[Buffer]) -> bool:
        """False if the peer is gone."""
        return self._router is not None and self._router.send(route, frames)

    def cut(self) -> None:
        """Close every connection; `open_again` listens again."""
        if self._router is not None:
            self._router.close()
            self._router = None

    def open_again(self) -> None:
        """After a cut; the system may need a moment to give the address back."""
        if self._router is None:
            with contextlib.suppress(ConfigError):
                self._router = Router(self._reactor, self.endpoint, on_message=self._deliver, keys=self._keys)

    def _deliver(self, route: bytes, frames: list[bytes]) -> None:
        self._receive(route, frames)


class _EnvProcess:
    """An environment service that was started here, to be ended here."""

    def __init__(self, popen: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self._popen, self._output = popen, output

    def stop(self) -> None:
        """Ask it to end, by SIGTERM."""
        self._popen.terminate()

    def status(self) -> int | None:
        """Exit status, none while it runs."""
        return self._popen.poll()

    def last_words(self) -> str:
        """The last line that it said to people: no JSON log line."""
        self._output.seek(0, 2)
        self._output.seek(max(0, self._output.tell() - TAIL_BYTES))
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line and not _is_json(line)), "")


@contextlib.contextmanager
def _started(target: ServiceFolder, address: str, options: CheckOptions, words: Sequence[str]) -> Iterator[_EnvProcess]:
    """The service's process, gone at the end. Raises: ConfigError if its command cannot be run."""
    inherited = {key: value for key, value in os.environ.items() if key != "SEEDBED_RUNTIME__KEYS"}
    variables = inherited | service_variables(
        [address], mode=options.mode, groups=options.groups, lanes=options.lanes, name="seedbed", env=target.env,
        differences=target.differences,
    )  # fmt: skip
    command = target.minded_command(words)
    with tempfile.TemporaryFile() as output:
        try:
            with pinned(target.cores):
                popen = subprocess.Popen(
                    command, cwd=target.folder, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"{target.folder}: cannot run {' '.join(command)!r}: {error.strerror}") from error
        with popen:
            try:
                yield _EnvProcess(popen, output)
            finally:
                popen.terminate()
                try:
                    popen.wait(KILL_S)
                except subprocess.TimeoutExpired:
                    kill_group(popen)


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
