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
class ServiceLink:
    """What is known of a service before its HELLO, and what may be done to it: callables of the shell."""

    options: CheckOptions
    expected: Expected | None
    epoch: int  # of the inference that it meets
    send: Send
    cut: Callable[[], None]  # close every connection, then listen at the same address again
    stop: Callable[[], None]  # SIGTERM


class Life(ABC):
    """One life of a service, over when `is_done`. Times are seconds since the service was started."""

    def __init__(self, link: ServiceLink) -> None:
        self.link, self.options, self.expected = link, link.options, link.expected
        self.table = SessionTable(link.epoch, link.options.seed, self.run_id, SessionLimits(beat_s=BEAT_S))
        self.results: list[Result] = []
        self.last_words = ""  # the last line that the service's process said to people
        self.is_done = False
        self.hellos: dict[int, Hello] = {}  # by group
        self.num_byes = 0  # sessions that were ended by the service
        self.load: dict[str, float] = {}  # of the newest PING
        self._refused = ""

    def receive(self, route: bytes, frames: Sequence[bytes], now: float) -> None:
        """Take in one message of the service under test."""
        try:
            message = decode(frames[0])
            if isinstance(message, Hello):
                self.hellos.setdefault(message.group, message)
            self.on_message(message, route, frames[1:], now)
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
            self.on_time(now)

    def exited(self, status: int, last_words: str) -> None:
        """The process ended, with this exit status and last line; before HELLO that is a failure."""
        if self.is_done:
            return
        if not self.hellos:
            self.end(failed("started", f"it ended with {describe_status(status)} before HELLO{quote(last_words)}"))
        else:
            self.on_exit(status, last_words)

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

    def send(self, route: bytes, message: Message) -> bool:
        """Send a message without a payload; whether it was sent."""
        return self.link.send(route, [encode(message)])

    def on_message(self, message: Message, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Take in a message that could be decoded, and its payload frames. Raises: RemoteWireError if it is wrong."""
        if isinstance(message, Hello):
            self.on_hello(message, route, now)
        elif isinstance(message, Ping):
            self.on_ping(message, route, now)
        elif isinstance(message, Bye):
            self.on_bye(message, route, now)
        elif isinstance(message, Step):
            self.on_step(message, route, payload, now)
        else:
            raise RemoteWireError("unexpected", f"{type(message).__name__} is not for inference")

    def on_hello(self, hello: Hello, route: bytes, now: float) -> None:
        """Welcome the group."""
        self.send(route, self.table.hello(hello, route, now))

    def on_ping(self, ping: Ping, route: bytes, now: float) -> None:
        """Keep the service's own figures, and answer."""
        self.load = dict(ping.load)
        self.send(route, self.table.ping(ping, route, now))

    def on_bye(self, bye: Bye, route: bytes, now: float) -> None:
        """Count the sessions that end."""
        self.num_byes += len(self.table.bye(bye, route, now))

    @abstractmethod
    def on_step(self, step: Step, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """A group sends the rows of a tick."""

    @abstractmethod
    def on_time(self, now: float) -> None:
        """Called a few times in a second, after the first HELLO."""

    @abstractmethod
    def on_exit(self, status: int, last_words: str) -> None:
        """The process ended after its HELLO."""


class Answering(Life):
    """An inference that answers every STEP at once with random actions."""

    def __init__(self, link: ServiceLink) -> None:
        super().__init__(link)
        self.num_steps = 0  # STEPs answered
        self._answers: dict[int, list[list[bytes]]] = {}  # payloads, by group
        self._generator = np.random.default_rng(link.options.seed)

    def on_step(self, step: Step, route: bytes, payload: Sequence[bytes], now: float) -> None:
        """Answer with random actions."""
        session = self.table.sessions.get(step.session)
        if session is not None and self.table.step(step, route, now) is StepVerdict.ACCEPT:
            self._answer(session, step, payload, now)

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
        self.link.send(session.route, reply)


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
