"""The learner's sessions with inference services: unrolls, credit, weights. Takes `now`, returns actions.

| message | answered by |
|---|---|
| PRODUCER_HELLO | PRODUCER_WELCOME and CREDIT; REJECT if its specification is not the policy's |
| UNROLL, EPISODES | CREDIT, once copied, applied or counted; CHALLENGE for an unknown session |
| GET | WEIGHTS, or NOT_MODIFIED after a second |
| PING | CREDIT for each session, then PONG; BYE(run_finished) once the run is over |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from seedbed.learner_svc.link.admission import Identity, check_hello
from seedbed.learner_svc.link.producer_segments import ProducerSegments
from seedbed.learner_svc.link.publish import Publisher, WeightsReply
from seedbed.learner_svc.run.run import Run
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.compatibility import Incompatibility, check_spec, check_statistics, check_task_env
from seedbed.shared.protocol.layout import Array
from seedbed.shared.protocol.ledger import Ledger, Producer
from seedbed.shared.protocol.messages import (
    LEARNER_PROTOCOL_MAX,
    Bye,
    Challenge,
    Credit,
    Episodes,
    Error,
    Get,
    Message,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    RequestState,
    RunState,
    SessionReport,
    TaskEnv,
    Unroll,
)
from seedbed.shared.protocol.rows import EnvSpec, episodes_layout
from seedbed.shared.protocol.segment import OpenedSegment
from seedbed.shared.protocol.session_book import revoked
from seedbed.shared.runtime.config import EnvConfig
from seedbed.shared.runtime.tasks import MULTI_TASK_ENV_ID

MAX_SESSIONS_PER_CONNECTION = 256  # more than the number of tasks that a run may have
MAX_SESSIONS = 4096  # of all producers together
MAX_STRIKES = 10  # invalid messages before a connection's sessions end
MAX_STRUCK = 1024  # connections with such counts; the one counted for longest is forgotten first
Frames = Sequence[bytes]


@dataclass(frozen=True, slots=True)
class SendToProducer:
    """Send these frames to a producer. `is_useful` marks weights that it did not have."""

    route: bytes
    frames: Frames
    is_useful: bool = False


@dataclass(frozen=True, slots=True)
class SpecificationReceived:
    """The first environments' specification: build the policy for it, then call `ProducerSessions.adopt`."""

    spec: EnvSpec


@dataclass(frozen=True, slots=True)
class UnrollKey:
    """The identity of an unroll: its producer, its number, and the actor that it comes from."""

    producer: Producer
    seq: int
    actor: str


@dataclass(frozen=True, slots=True)
class UnrollReceived:
    """A new unroll of the right size, whose first `skip` lanes were applied before a restart."""

    key: UnrollKey
    lanes: int
    frame: bytes
    skip: int


@dataclass(frozen=True, slots=True)
class EpisodesReceived:
    """New finished episodes: packed versions i64 [N], statistics f32 [N, K]."""

    task: str
    header: Episodes
    versions: Array
    statistics: Array


Action = SendToProducer | SpecificationReceived | UnrollReceived | EpisodesReceived


@dataclass(slots=True)
class ProducerLoad:
    """The load in a producer's newest PING, by metric."""

    name: str
    figures: dict[str, float] = field(default_factory=dict)


class ProducerSessions:
    """The sessions of all producers. Owned by the learner's loop; memory: a few numbers per session.

    Large because every message of the link has a method here; the rules are in one place.
    """

    def __init__(
        self, identity: Identity, env: EnvConfig, ledger: Ledger, publisher: Publisher, run: Run,
        work_age_s: Callable[[], float], check_size: Callable[[EnvSpec], Incompatibility | None] = lambda _spec: None,
        open_segment: Callable[[int, int], OpenedSegment | None] = OpenedSegment.open,
    ) -> None:  # fmt: skip
        """`check_size` returns why the first environments of the run are too large for it, or None."""
        self._check_size = check_size
        self.identity, self.ledger, self.publisher, self.run = identity, ledger, publisher, run
        self.spec: EnvSpec | None = None
        self.loads: dict[int, ProducerLoad] = {}  # by incarnation, of producers with a session
        self.incarnations: dict[str, set[int]] = {}  # by name: more than one means restarts
        self.refused_messages = 0  # total
        self._env = env
        self._specs: dict[str, EnvSpec] = {}  # the first specification of each task
        self._work_age_s = work_age_s
        self._strikes: dict[bytes, int] = {}
        self._check_unroll: Callable[[int, int], None] | None = None
        self._segments = ProducerSegments(open_segment)

    def adopt(self, spec: EnvSpec, check_unroll: Callable[[int, int], None]) -> None:
        """Refuse other specifications from now on, because the policy was built for this one.

        `check_unroll(lanes, num_bytes)` raises RemoteWireError unless that is the size of an unroll.
        """
        self.spec, self._check_unroll = spec, check_unroll

    @property
    def has_left(self) -> bool:
        """Whether no producer has a session."""
        return not self.ledger.sessions

    def receive(self, route: bytes, frames: Frames, now: float) -> list[Action]:
        """Handle one message and return the actions that follow; an invalid one is counted as in `strike`."""
        try:
            return self._receive(route, decode(frames[0]), frames[1:], now)
        except RemoteWireError as error:
            return self.strike(route, error)

    def strike(self, route: bytes, error: RemoteWireError, session: int = 0) -> list[Action]:
        """Count an invalid message and answer it; after MAX_STRIKES end the connection's sessions.

        `session`: the one that the error is about; 0: only the connection.
        """
        self.refused_messages += 1
        strikes = self._strikes[route] = self._strikes.get(route, 0) + 1
        if strikes >= MAX_STRIKES:
            self._drop_route(route)
            return []
        if len(self._strikes) > MAX_STRUCK:
            del self._strikes[next(iter(self._strikes))]
        message = Error(
            code=error.code, scope="session" if session else "connection", session=session, retryable=True,
            message=str(error)[:500], hint="install one version of seedbed for learner and inference",
        )  # fmt: skip
        return [SendToProducer(route, [encode(message)])]

    def credits(self, *, everyone: bool = False) -> list[SendToProducer]:
        """Return CREDIT for the producers whose credit has changed, or for everyone."""
        producers = list(self.ledger.sessions.values()) if everyone else self.ledger.due()
        return [
            SendToProducer(producer.route, [encode(self._credit(producer))])
            for producer in producers
            if producer.is_reachable
        ]

    def answers(self, answers: Sequence[WeightsReply]) -> list[SendToProducer]:
        """Return the publisher's answers as messages to their readers."""
        sends = []
        for answer in answers:
            producer = self.ledger.sessions.get(answer.message.session)
            if producer is not None and producer.is_reachable:
                frames = self._segments.frames_of(answer, producer)
                sends.append(SendToProducer(producer.route, frames, is_useful=answer.is_new))
        return sends

    def close(self) -> None:
        """Close the segments of shared memory."""
        self._segments.close_all()

    def beat(self, now: float, *, may_expire: bool) -> list[SendToProducer]:
        """Answer long-polls that have waited long enough, and end leases that are over if `may_expire`."""
        sends = self.answers(self.publisher.expire(now))
        for producer in self.ledger.expire(now) if may_expire else ():
            self._forget(producer)
        return sends

    def unroutable(self, route: bytes, now: float) -> None:
        """Note that a connection is closed: nothing is sent to its producers until they return."""
        self.ledger.book.closed(route, now)
        self._strikes.pop(route, None)

    def revoke(self, routes: Sequence[bytes]) -> list[SendToProducer]:
        """End the sessions of connections whose keys were revoked, and return a message for each.

        Unrolls received before are still used, because their sender was trusted then.
        """
        ended = self.ledger.book.on_routes(routes)
        sends = [SendToProducer(item.route, [encode(revoked(item.id, "the learner's keys are"))]) for item in ended]
        for producer in ended:
            self._end(producer)
        for route in routes:
            self._strikes.pop(route, None)
        return sends

    def farewell(self, reason: str) -> list[SendToProducer]:
        """Return a BYE for every producer with this reason: "run_finished" or "draining"."""
        return [
            SendToProducer(producer.route, [encode(Bye(session=session, reason=reason))])
            for session, producer in self.ledger.sessions.items()
            if producer.is_reachable
        ]

    def _receive(self, route: bytes, message: Message, payload: Frames, now: float) -> list[Action]:
        if isinstance(message, ProducerHello):
            return self._hello(message, route, now)
        if isinstance(message, Ping):
            return self._ping(message, route, now)
        if isinstance(message, Bye):
            for producer in self.ledger.book.named(message.session, route):
                self._end(producer)
            return []
        if not isinstance(message, Unroll | Episodes | Get):
            raise RemoteWireError("type", f"{type(message).__name__} is not a message for a learner")
        found = self.ledger.find(message.session, route, now)
        if found is None:
            return [self._challenge(message.session, route)]
        if isinstance(message, Get):
            self._segments.note_place(found, message)
            answer = self.publisher.get(message, now)
            return [*self.answers([answer])] if answer else []
        num_frames = 0 if isinstance(message, Unroll) and message.segment else 1
        if len(payload) != num_frames:
            raise RemoteWireError(
                "frames", f"{type(message).__name__} has {len(payload)} payload frames, expected {num_frames}"
            )
        if isinstance(message, Unroll):
            return self._unroll(found, message, payload)
        return self._episodes(found, message, payload[0])

    def _challenge(self, session: int, route: bytes) -> SendToProducer:
        return SendToProducer(route, [encode(Challenge(session=session, server_epoch=self.identity.epoch))])

    def _hello(self, hello: ProducerHello, route: bytes, now: float) -> list[Action]:
        refusal = self._refusal(hello) or self._full(hello, route)
        if refusal is not None:
            return [SendToProducer(route, [encode(refusal)])]
        producer = self.ledger.hello(hello, route, now)
        self.publisher.forget(producer.id)  # earlier answers may have been lost with its connection
        self.incarnations.setdefault(hello.name, set()).add(hello.incarnation)
        secret = self._segments.open(hello, producer)
        actions: list[Action] = [SendToProducer(route, [encode(self._welcome(hello, producer, secret))])]
        actions.append(SendToProducer(route, [encode(self._credit(producer))]))
        if self.run.state == RunState.FINISHED:
            actions.append(SendToProducer(route, [encode(Bye(session=producer.id, reason="run_finished"))]))
        if hello.spec is not None and (hello.task or not self.identity.tasks):
            spec = self._specs.setdefault(hello.task, hello.spec)
            if self.spec is None:
                is_one = not self.identity.tasks
                actions.insert(
                    0, SpecificationReceived(spec if is_one else replace(spec, env_id=MULTI_TASK_ENV_ID, settings=()))
                )
        return actions

    def _refusal(self, hello: ProducerHello) -> Reject | None:
        """Return the REJECT for a producer that cannot be served; None if it can."""
        if refusal := check_hello(hello, self.identity, self.incarnations):
            return refusal
        problem = self._find_incompatibility(hello.task, hello.spec)
        if problem is None:
            return None
        return Reject(
            nonce=hello.nonce, code=problem.code, retryable=False, message=problem.message[:1000], hint=problem.hint
        )

    def _full(self, hello: ProducerHello, route: bytes) -> Reject | None:
        """Return the REJECT for a session that would be one too many; None if there is room."""
        if self.ledger.has_session(hello) or (
            len(self.ledger.sessions) < MAX_SESSIONS
            and len(self.ledger.book.on_route(route)) < MAX_SESSIONS_PER_CONNECTION
        ):
            return None
        return Reject(
            nonce=hello.nonce, code="capacity", retryable=True,
            message=f"{len(self.ledger.sessions)} sessions of inference services and their tasks are open here",
            hint="stop inference services that are not needed; sessions of services that are gone end by themselves",
        )  # fmt: skip

    def _find_incompatibility(self, task: str, spec: EnvSpec | None) -> Incompatibility | None:
        """Return why these environments cannot join; None if they can, or if the session only reads weights."""
        tasks = self.identity.tasks
        if tasks and not task:
            return None
        if not tasks and not task and self.spec is None:
            tasks = (TaskEnv(name="", env_id=self._env.id, settings=self._env.settings()),)
        problem = check_task_env(task, spec, tasks) or (check_statistics(spec) if spec is not None else None)
        if problem is None and spec is not None:
            known = self._specs.get(task)
            problem = check_spec(task, spec, self.spec, known) if self.spec is not None else self._check_size(spec)
        return problem

    def _welcome(self, hello: ProducerHello, producer: Producer, segment_secret: int) -> ProducerWelcome:
        identity = self.identity
        return ProducerWelcome(
            nonce=hello.nonce, session=producer.id, epoch=identity.epoch,
            protocol=min(LEARNER_PROTOCOL_MAX, hello.protocol_max), run_id=identity.run_id, run_seed=identity.run_seed,
            spec_digest=self.spec.digest() if self.spec else "", beat_s=identity.beat_s, lease_s=identity.lease_s,
            unroll_length=identity.unroll_length, next_seq=producer.next_seq,
            next_episodes_seq=producer.next_episodes_seq, state=int(self.run.state),
            tasks=identity.tasks, rank=identity.rank, ranks=identity.ranks, segment_secret=segment_secret,
        )  # fmt: skip

    def _credit(self, producer: Producer) -> Credit:
        run = self.run
        return self.ledger.credit(
            producer, state=run.state, trained_steps=run.counters.trained_steps, evaluation=run.evaluation
        )

    def _ping(self, ping: Ping, route: bytes, now: float) -> list[Action]:
        actions: list[Action] = []
        reports = []
        self.ledger.book.renew(route, now)
        for producer in self.ledger.book.on_route(route):
            if not producer.stream:
                self.loads[producer.incarnation] = ProducerLoad(producer.name, dict(ping.load))
            actions.append(SendToProducer(route, [encode(self._credit(producer))]))
            last, state = producer.received_through - 1, int(RequestState.UNKNOWN)
            reports.append(SessionReport(session=producer.id, last_seq=last, state=state, age_ms=0))
            if self.run.state == RunState.FINISHED:
                actions.append(SendToProducer(route, [encode(Bye(session=producer.id, reason="run_finished"))]))
        pong = Pong(
            sent_ms=ping.sent_ms, server_epoch=self.identity.epoch, work_age_ms=int(1e3 * self._work_age_s()),
            sessions=tuple(reports),
        )  # fmt: skip
        return [*actions, SendToProducer(route, [encode(pong)])]

    def _check_task(self, producer: Producer) -> None:
        if self.identity.tasks and not producer.task:
            raise RemoteWireError("task", "UNROLL or EPISODES over a session without a task, in a run with tasks")

    def _unroll(self, producer: Producer, unroll: Unroll, payload: Frames) -> list[Action]:
        self._check_task(producer)
        if self._check_unroll is None:
            raise RemoteWireError("early", "an UNROLL came before there is a policy")
        if self.run.state == RunState.FINISHED:
            return []  # the producer counts it as lost: it would not be trained on
        self._check_unroll(unroll.lanes, len(payload[0]) if payload else unroll.length)
        try:
            frame = payload[0] if payload else self._segments.read(producer, unroll)
        except RemoteWireError as error:
            return self.strike(producer.route, error, producer.id)
        if frame is None:
            return [self._challenge(unroll.session, producer.route)]
        skip = self.ledger.receive(producer, unroll)
        if skip is None:
            return []
        return [UnrollReceived(UnrollKey(producer, unroll.seq, unroll.actor), unroll.lanes, frame, skip)]

    def _episodes(self, producer: Producer, episodes: Episodes, frame: bytes) -> list[Action]:
        self._check_task(producer)
        if producer.stream:
            raise RemoteWireError("stream", f"EPISODES of stream {producer.stream}: they belong to stream 0")
        if self.spec is None:
            return []  # not acknowledged, so they are sent again once there is a policy
        layout = episodes_layout(self.spec, episodes.count)
        layout.check([frame])
        if not self.ledger.receive_episodes(producer, episodes):
            return []
        versions, statistics = layout.views([frame])
        return [EpisodesReceived(producer.task, episodes, versions, statistics)]

    def _drop_route(self, route: bytes) -> None:
        for producer in self.ledger.book.on_route(route):
            self._end(producer)
        self._strikes.pop(route, None)

    def _end(self, producer: Producer) -> None:
        """End a producer's session; the ledger keeps its numbers."""
        self._forget(producer)
        self.ledger.leave(producer)

    def _forget(self, producer: Producer) -> None:
        self.publisher.forget(producer.id)
        self.loads.pop(producer.incarnation, None)
        self._segments.close(producer)
