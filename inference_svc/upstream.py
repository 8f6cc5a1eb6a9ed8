"""Inference's side of the learner link: HELLO, lease, credit, weights by long-poll. Pure: takes `now`, returns frames.

After any fault or absence of the learner the session starts again with HELLO. Unacknowledged messages are then sent
again from the numbers that the new WELCOME names.

| waits for | unblocked by | else |
|---|---|---|
| WELCOME | the learner | HELLO again, 0.2 s later, then twice as long, up to 2 s |
| PONG | the learner's loop | silent for a lease: HELLO |
| WEIGHTS or NOT_MODIFIED | publish, or the poll's end | 5 s: GET again |
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from seedbed.inference_svc.learner_events import (
    CreditReceived,
    Event,
    FormerWeightsReceived,
    Refused,
    RunFinished,
    RunReplaced,
    SpecificationRefused,
    WeightsReceived,
    Welcomed,
)
from seedbed.inference_svc.segment_offer import SegmentOffer, no_segment
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.greeting import FIRST_RETRY_S, Greeting, Heartbeat
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Credit,
    Error,
    Get,
    Message,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    Weights,
)
from seedbed.shared.protocol.outbox import Outbox
from seedbed.shared.protocol.rows import EnvSpec
from seedbed.shared.protocol.segment import Segment

GET_DEADLINE_S = 5.0
MAX_REFUSED = 64  # specifications that are remembered because the learner refused them
Frames = list[bytes | bytearray | memoryview]


class LearnerLink:
    """One session with the learner. Owned by inference's loop; memory: its outbox, and its segment of shared memory.

    Large because it is the whole protocol of one producer: session, heartbeats, weights and evaluations.

    The link of a task carries unrolls, episodes and credit only; heartbeats and weights use the link without a task,
    which carries unrolls only in a run without tasks.
    Streams other than 0, for further learner ranks, carry unrolls, credit and heartbeats only.
    """

    def __init__(
        self, *, name: str, incarnation: int, library_version: str, load: Callable[[], tuple[tuple[str, float], ...]],
        task: str = "", stream: int = 0, make_segment: Callable[[], Segment] = no_segment, is_lockstep: bool = False,
    ) -> None:  # fmt: skip
        """`make_segment` makes a segment of shared memory to offer to the learner, or raises NoSegmentError.

        `is_lockstep`: whether training groups act in lockstep.
        """
        self.outbox = Outbox()
        self.spec: EnvSpec | None = None
        self.refused: dict[EnvSpec, Reject] = {}  # refused specifications with the learner's answer, the newest last
        self.run_id = ""
        self.welcome: ProducerWelcome | None = None  # None while there is no session
        self.heard_at: float | None = None
        self.have_version = 0
        self.discarded_lanes = 0  # total of lane-unrolls discarded because the learner could not use them
        self.have_manifest = ""
        self._name, self._incarnation, self._library_version, self._load = name, incarnation, library_version, load
        self.task, self.stream = task, stream
        self._shared_memory, self._is_lockstep = SegmentOffer(make_segment), is_lockstep
        self._carries_unrolls = True
        self.shared_weights = 0  # how often new weights came through a segment
        self._weight_bytes = 0  # size of the newest weights; 0: not known yet
        self._greeting = Greeting(lambda: random.getrandbits(63))
        self._heartbeat = Heartbeat(0.0)
        self._welcomed_ms = 0  # when the session's WELCOME came
        self.is_connected = False
        self._has_told_spec = False  # whether the newest HELLO had a specification
        self._get_deadline: float | None = None
        self._former = 0  # the version that `fetch` asked for; 0 for none, or once it has arrived
        self._former_at = 0.0  # when to ask for it

    @property
    def nonce(self) -> int:
        """The nonce of the newest HELLO, which its answer repeats."""
        return self._greeting.nonce

    @property
    def pinged_ms(self) -> int:
        """The `sent_ms` of the newest PING."""
        return self._heartbeat.pinged_ms

    @property
    def state(self) -> str:
        """The state of the session in words, for log messages."""
        if self.welcome is not None:
            return "open"
        if not self.is_connected:
            return "never connected" if self.heard_at is None else "connection lost"
        return "no answer to HELLO"

    def connected(self, now: float) -> None:
        """Note that the socket has a new connection; messages sent over the old one are lost."""
        self.is_connected = True
        self._restart(now)

    def disconnected(self, now: float) -> None:
        """Note that the connection was lost, and forget refusals: the next learner may decide otherwise."""
        self.is_connected = False
        self.refused.clear()
        self._restart(now)

    def introduce(self, spec: EnvSpec, now: float) -> None:
        """Pass on the first environments' specification, which the learner may need to build its policy."""
        if self.spec is None and spec not in self.refused:
            self.spec = spec
            self._pass_on(now)

    def _pass_on(self, now: float) -> None:
        """Say HELLO again if the learner waits for a specification and the newest HELLO had none."""
        if self.welcome is not None and not self.welcome.spec_digest and self.spec and not self._has_told_spec:
            self._restart(now)

    def discard_unrolls(self) -> None:
        """Discard all unacknowledged unrolls, count them, and begin a new session."""
        self.discarded_lanes += self.outbox.discard()
        self._drop_segment()
        self.welcome, self._get_deadline = None, None
        self._greeting.begin(-math.inf)

    def poll(self, now: float) -> list[Frames]:
        """Return the messages due now, each as frames: HELLO, PING, and GETs; none without a connection."""
        if not self.is_connected:
            return []
        if self.welcome is not None and self.heard_at is not None and now - self.heard_at > self.welcome.lease_s:
            self._restart(now)
        if self.welcome is None:
            return self._hello(now) if self._greeting.is_due(now) else []
        if self.task:
            return []
        due: list[Frames] = []
        if self._heartbeat.ping(now, self.welcome.beat_s):
            self.outbox.pinged(self.pinged_ms)
            due.append([encode(Ping(sent_ms=self.pinged_ms, load=self._load()))])
        if self.stream:
            return due
        if self._get_deadline is None or now >= self._get_deadline:
            due.append(self._get(self.welcome, now))
        if self._former and now >= self._former_at:
            self._former_at = now + GET_DEADLINE_S
            due.append(self._ask_for(self.welcome, self._former))
        return due

    def fetch(self, version: int) -> None:
        """Ask for weights older than the newest, for an evaluation. Repeated calls ask once."""
        if version != self._former:
            self._former, self._former_at = version, 0.0

    def receive(self, message: Message, payload: Sequence[bytes], now: float) -> list[Event]:
        """Take a message from the learner and return the events that follow from it."""
        self.heard_at = now
        if isinstance(message, ProducerWelcome):
            return self._welcomed(message, now)
        if isinstance(message, Challenge):
            if self.welcome is not None and message.session == self.welcome.session:
                self._restart(now)
        elif isinstance(message, Reject):
            self._drop_segment()
            if message.code == "spec" and self.spec is not None:
                return [self._give_up(self.spec, message, now)] if message.nonce == self.nonce else []
            self._greeting.put_off(now)
            return [Refused(message.code, message.message, message.hint, message.retryable)]
        elif isinstance(message, Bye):
            if message.reason == "run_finished":
                return [RunFinished()]
            self._restart(now, wait_s=FIRST_RETRY_S)  # the learner restarts: try again
        elif isinstance(message, Error):
            if message.code == "segment":
                self._drop_segment()
                self._shared_memory.refuse(message.message)
            return [Refused(message.code, message.message, message.hint, message.retryable)]
        elif self.welcome is not None:
            return self._in_session(self.welcome, message, payload, now)
        return []

    def _give_up(self, spec: EnvSpec, reject: Reject, now: float) -> SpecificationRefused:
        """Remember why the learner refuses this specification, and say HELLO again without it."""
        if len(self.refused) == MAX_REFUSED:
            del self.refused[next(iter(self.refused))]
        self.refused[spec] = reject
        self.spec = None
        self._greeting.begin(now)
        return SpecificationRefused(spec, reject.message)

    def _in_session(
        self, welcome: ProducerWelcome, message: Message, payload: Sequence[bytes], now: float
    ) -> list[Event]:
        if isinstance(message, Credit):
            if message.session != welcome.session or message.epoch != welcome.epoch:
                return []
            self.outbox.credit(message)
            return [CreditReceived(message)]
        if isinstance(message, Pong):
            report = next((item for item in message.sessions if item.session == welcome.session), None)
            if report is not None:
                self.outbox.pong(message.sent_ms, report.last_seq + 1)
            elif message.sent_ms > self._welcomed_ms:  # it answers a PING of this session, so the learner has ended it
                self._restart(now)
            return []
        if isinstance(message, NotModified):
            self._get_deadline = None
            return []
        if isinstance(message, Weights) and len(payload) == (0 if message.segment else 1):
            return self._take_weights(message, payload)
        return []

    def _take_weights(self, message: Weights, payload: Sequence[bytes]) -> list[Event]:
        is_former = message.version == self._former and message.version < self.have_version
        if not is_former:
            self._get_deadline = None
            if message.version <= self.have_version:
                return []  # weights never go back to an older version
            if not message.manifest and message.manifest_digest != self.have_manifest:
                self.have_manifest = ""
                return []
        buffer = payload[0] if payload else self._shared_memory.take_weights(message)
        if buffer is None:
            return []
        if is_former:
            self._former = 0
            return [FormerWeightsReceived(message.version, message.manifest_digest, buffer)]
        self.have_version, self.have_manifest = message.version, message.manifest_digest
        self._weight_bytes = len(buffer)
        self.shared_weights += not payload
        return [WeightsReceived(message.version, message.manifest_digest, message.manifest, buffer)]

    def _welcomed(self, welcome: ProducerWelcome, now: float) -> list[Event]:
        # A second answer to one HELLO is of another life of the learner, which has not applied what the first one has.
        if welcome.nonce != self.nonce or self.welcome is not None or welcome.role != "learner":
            return []
        if self.run_id and welcome.run_id != self.run_id:
            self.have_version, self.have_manifest = 0, ""  # another run is another policy
            self.run_id = welcome.run_id
            self.discard_unrolls()  # the next WELCOME then begins at the outbox's first number
            return [RunReplaced(welcome.run_id)]
        self.welcome, self.run_id = welcome, welcome.run_id
        self._get_deadline, self._welcomed_ms = None, int(1000 * now)
        self._heartbeat.begin(now)
        self.outbox.welcome(welcome)
        self._carries_unrolls = bool(self.task) or not welcome.tasks
        segment = self._shared_memory.settle(welcome, is_needed=self._needs_segment)
        self.outbox.segment = segment if self._carries_unrolls else None
        self._pass_on(now)  # environments may have come between HELLO and WELCOME
        return [Welcomed(welcome)]

    def describe_way(self) -> dict[str, str]:
        """Return how unrolls travel to the learner, for the log, and why not through shared memory if they do not."""
        if self.welcome is None or not self._carries_unrolls:
            return {}
        return self._shared_memory.describe()

    def _hello(self, now: float) -> list[Frames]:
        self._has_told_spec = self.spec is not None
        self._greeting.renew()  # its content may have changed, so an answer to an earlier HELLO must not count
        self._greeting.said(now)
        segment = self._shared_memory.offer() if self._needs_segment else None
        hello = ProducerHello(
            library_version=self._library_version,
            name=self._name,
            incarnation=self._incarnation,
            nonce=self.nonce,
            run_id="",
            spec=self.spec,
            oldest_seq=self.outbox.oldest_seq,
            oldest_episodes_seq=self.outbox.oldest_episodes_seq,
            task=self.task,
            stream=self.stream,
            segment=segment.id if segment is not None else 0,
            segment_bytes=segment.num_bytes if segment is not None else 0,
            is_lockstep=self._is_lockstep,
        )
        return [[encode(hello)]]

    def _get(self, welcome: ProducerWelcome, now: float) -> Frames:
        self._get_deadline = now + GET_DEADLINE_S
        return self._ask_for(welcome, 0)

    def _ask_for(self, welcome: ProducerWelcome, exact: int) -> Frames:
        get = Get(
            session=welcome.session, have_version=self.have_version, have_manifest=self.have_manifest, exact=exact
        )
        segment = self._shared_memory.segment
        if segment is not None and self._weight_bytes and not exact:
            place = segment.place_for_weights(self._weight_bytes)
            if place is not None:
                get = replace(get, segment=place.segment, offset=place.offset, length=place.length)
        return [encode(get)]

    def bye(self, reason: str) -> Frames:
        """Return a BYE for every session of the connection."""
        return [encode(Bye(session=0, reason=reason))]

    def bye_of_session(self, reason: str, session: int) -> Frames:
        """Return a BYE for one session."""
        return [encode(Bye(session=session, reason=reason))]

    def close(self) -> None:
        """Give up the segment of shared memory, because nothing more will be sent."""
        self._drop_segment()

    @property
    def _needs_segment(self) -> bool:
        """Whether the link carries unrolls or weights."""
        return self._carries_unrolls or not (self.task or self.stream)

    def _drop_segment(self) -> None:
        self._shared_memory.drop()
        self.outbox.segment = None

    def _restart(self, now: float, *, wait_s: float = 0.0) -> None:
        if self.welcome is not None:
            self.outbox.lost_session()
        self._drop_segment()
        self.welcome, self._former, self._get_deadline = None, 0, None
        self._greeting.begin(now, after_s=wait_s)
