"""One life of a service, from its HELLO to its end, as the inference that it dials sees it; no socket, no process."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seedbed.actor_svc.group import random_actions
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.row_checks import read_tick
from seedbed.services.tools.cli.env.verdicts import Result, failed, passed
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.messages import Act, Bye, Hello, Message, Ping, Step
from seedbed.shared.protocol.rows import EnvSpec, act_layout
from seedbed.shared.protocol.sessions import Session, SessionLimits, SessionTable, StepVerdict

BEAT_S = 0.25  # asked of the service; shorter than inference's, so that a check takes seconds
NUM_ANSWERS = 64  # different random actions for each group, in turn

Send = Callable[[bytes, Sequence[bytes]], bool]  # (route, frames) → whether it was sent


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What HELLO must say where the kit started the service; None where somebody else did."""

    env_id: str
    groups: int
    lanes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What the kit may do to the service: callables of the shell."""

    send: Send
    cut: Callable[[], None]  # close every connection, then listen at the same address again
    stop: Callable[[], None]  # SIGTERM


class Life(ABC):
    """One life of a service, over when `is_done`. Times are seconds since the service was started."""

    def __init__(self, options: CheckOptions, expected: Expected | None, wires: Wires, *, epoch: int) -> None:
        self.options, self.expected, self.wires = options, expected, wires
        self.table = SessionTable(epoch, options.seed, self.run_id, SessionLimits(beat_s=BEAT_S))
        self.results: list[Result] = []
        self.last_words = ""  # the last line that the service's process said to people
        self.is_done = False
        self.hellos: dict[int, Hello] = {}  # by group
        self._refused = ""

    def receive(self, route: bytes, frames: Sequence[bytes], now: float) -> None:
        """Take in one message of the service under test."""
        try:
            message = decode(frames[0])
            if isinstance(message, Hello):
                self.hellos.setdefault(message.group, message)
            self.met(message, route, frames[1:], now)
        except RemoteWireError as error:
            self._refused = self._refused or f"{error.code}: {error}"

    def poll(self, now: float) -> None:
        """Time passes; called a few times in a second."""
        if not self.hellos and not self.is_done:
            if self._refused:
                self.end(failed("messages", f"it dialled, and the first message could not be read: {self._refused}"))
            elif now > 5 * self.options.patience_s:
                self.end(failed("started", f"no HELLO within {now:.0f} s: nothing came at all"))
        elif not self.is_done:
            self.waited(now)

    def exited(self, status: int, last_words: str) -> None:
        """The process ended, with this exit status and last line; before HELLO that is a failure."""
        if self.is_done:
            return
        if not self.hellos:
            self.end(failed("started", f"it ended with {describe_status(status)} before HELLO{quote(last_words)}"))
        else:
            self.left(status, last_words)

    def end(self, *results: Result) -> None:
        """End this life with these results beside those before."""
        self.results += results
        self.is_done = True

    def all_results(self) -> list[Result]:
        """The results so far, and one for messages that could not be read."""
        messages = failed("messages", self._refused) if self._refused else passed("messages", "all could be read")
        return [messages, *self.results] if self.hellos else self.results

    @property
    def doing(self) -> str:
        """What is being checked, for people."""
        return "waiting for HELLO" if not self.hellos else self.rule

    rule = ""  # that this life is about
    run_id = "check"

    @abstractmethod
    def met(self, message: Message, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """A message that could be decoded, its payload frames, and when it came."""

    @abstractmethod
    def waited(self, now: float) -> None:
        """Called when no message came for a moment."""

    @abstractmethod
    def left(self, status: int, last_words: str) -> None:
        """The process ended after its HELLO."""


class Answering(Life):
    """An inference that answers every STEP at once with random actions."""

    def __init__(self, options: CheckOptions, expected: Expected | None, wires: Wires, *, epoch: int) -> None:
        super().__init__(options, expected, wires, epoch=epoch)
        self.num_steps = 0  # STEPs answered
        self.num_byes = 0  # sessions that were ended by the service
        self.load: dict[str, float] = {}  # of the newest PING
        self._answers: dict[int, list[list[bytes]]] = {}  # payloads, by group
        self._generator = np.random.default_rng(options.seed)

    def met(self, message: Message, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Answer it as an inference does that nothing goes wrong with."""
        if isinstance(message, Hello):
            self.wires.send(route, [encode(self.table.hello(message, route, now))])
        elif isinstance(message, Ping):
            self.load = dict(message.load)
            self.wires.send(route, [encode(self.table.ping(message, route, now))])
        elif isinstance(message, Bye):
            self.num_byes += len(self.table.bye(message, route, now))
        elif isinstance(message, Step):
            session = self.table.sessions.get(message.session)
            if session is not None and self.table.step(message, route, now) is StepVerdict.ACCEPT:
                self._answer(session, message, payload, now)

    def _answer(self, session: Session, step: Step, payload: Sequence[bytes], now: float) -> None:
        hello = session.hello
        if hello.spec.mask_size:
            mask = read_tick(hello.spec, hello.lanes, step.bits, payload).mask
            actions = random_action_frames(hello.spec, hello.lanes, mask, self._generator)
        else:
            known = self._answers.setdefault(hello.group, [])
            if len(known) < NUM_ANSWERS:
                known.append(random_action_frames(hello.spec, hello.lanes, None, self._generator))
            actions = known[self.num_steps % len(known)]
        self.num_steps += 1
        reply = [encode(Act(session=session.id, seq=session.last_seq, policy_version=1)), *actions]
        self.table.answer(session, reply, now)
        self.wires.send(session.route, reply)


def random_action_frames(spec: EnvSpec, lanes: int, mask: Array | None, generator: np.random.Generator) -> list[bytes]:
    """Random actions as ACT's payload frames; a mask, u8 [L, M], is respected."""
    return action_frames(spec, lanes, random_actions(spec.action, lanes, mask, generator))


def action_frames(spec: EnvSpec, lanes: int, actions: Sequence[Array]) -> list[bytes]:
    """Action leaves [L, ...] as ACT's payload frames."""
    layout = act_layout(spec, lanes)
    frames = layout.allocate()
    for view, leaf in zip(layout.views(frames), actions, strict=True):
        view[...] = leaf
    return [bytes(frame) for frame in frames]


def describe_status(status: int) -> str:
    """An exit status, for people; a negative one is a signal."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def quote(last_words: str) -> str:
    """What a process last said, if anything."""
    return f": {last_words}" if last_words else ""
