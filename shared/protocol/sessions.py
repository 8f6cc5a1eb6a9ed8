"""The sessions of groups at an inference service: newest STEP, cached reply, lease. No socket, no clock.

The rules:

- A session is one group at one inference. HELLO is idempotent: a known (incarnation, group) resumes its session.
- One STEP is outstanding. seq = last+1: accept. seq = last: still pending, or answered from the cache. Lower: dropped.
  Higher, or a second outstanding one: CHALLENGE. So nothing is applied twice, and a resend never advances policy state.
- Connections, leases and their ends are `session_book`'s. A lease is `lease_s`, or the longer `max_stall_s` that HELLO
  declared; it ends only when every message that has arrived was read, and not right after a stall of this
  process.
- With keys a session belongs to the key that opened it; over a connection of another key it counts as unknown.
- The sessions of a key (without keys: a connection) that have never stepped may hold half of the lanes, or one group.

Every method takes `now`, seconds on any clock that does not go back.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from seedbed.shared.protocol.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Bye,
    Challenge,
    Hello,
    Ping,
    Pong,
    Reject,
    RequestState,
    SessionReport,
    Step,
    Welcome,
)
from seedbed.shared.protocol.rows import LARGEST_MESSAGE, step_layout
from seedbed.shared.protocol.session_book import LeasedSession, SessionBook

MAX_SESSIONS_PER_CONNECTION = 1024  # what a PONG may list
CHANGE_HINT = "give each group its own number, and each process start its own incarnation"
SERVED_CAPABILITIES = ("reset", "boundary", "render")


Refusal = tuple[str, bool, str, str]  # of a REJECT: code, retryable, message, hint


class StepVerdict(IntEnum):
    """What to do with a STEP."""

    ACCEPT = 0  # new: act on it
    PENDING = 1  # a resend of the pending one: drop the payload, the answer is on its way
    CACHED = 2  # a resend of the answered one: send `session.reply` again
    STALE = 3  # older: drop
    CHALLENGE = 4  # unknown session or a gap: send `challenge(step.session)`


_ACCEPT, _PENDING, _CACHED, _STALE, _CHALLENGE = StepVerdict  # read faster than an enumeration's members
_UNKNOWN = int(RequestState.UNKNOWN)
_QUEUED = int(RequestState.QUEUED)
_ANSWERED = int(RequestState.ANSWERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Times and limits of the step link at an inference service."""

    beat_s: float = 1.0  # environments PING this often
    lease_s: float = 10.0  # a connected but silent session is freed after this
    detach_s: float = 3.0  # a session whose connection is closed is freed after this
    max_stall_s: float = 600.0  # the longest silence that a HELLO may ask for
    max_lanes: int = 65_536  # of all sessions together
    max_frame_bytes: int = 64 * 1024 * 1024
    max_strikes: int = 5  # bad messages before a session ends


@dataclass(slots=True, eq=False, kw_only=True)
class Session(LeasedSession):
    """One group's session. Owned by its table; `attached` is data of the caller."""

    number: int  # counts from 1 at this server
    hello: Hello
    seed: int
    state_since: float
    owner: str = ""  # whose key opened it; empty without keys
    holder: str | bytes = ""  # the owner; without keys the connection that opened it
    last_seq: int = -1
    state: int = _UNKNOWN  # RequestState
    reply: list[bytes] | None = None  # all frames of the ACT for last_seq, once answered
    strikes: int = 0
    is_ended: bool = False
    attached: Any = None

    capabilities: tuple[str, ...] = field(init=False)  # those of the group's capabilities that are used

    def __post_init__(self) -> None:
        self.capabilities = _served_capabilities(self.hello)

    @property
    def lanes(self) -> int:
        """The number of lanes of the group."""
        return self.hello.lanes


class SessionTable:
    """All sessions of one inference process. One thread; bounded by `limits.max_lanes`, a cached reply per session.

    Large because every message of the step link that concerns a session has a method here; the rules are in one place.

    `run_seed` and `run_id` may be set until the first session exists; afterwards use `change_run`. `replica` differs
    between the inference services of a run, so that they give different seeds. `owner` returns whose key a route has.
    """

    def __init__(
        self,
        server_epoch: int,
        run_seed: int,
        run_id: str,
        limits: SessionLimits | None = None,
        *,
        replica: int = 0,
        owner: Callable[[bytes], str] = lambda _route: "",
    ) -> None:
        self.server_epoch = server_epoch
        self.run_seed = run_seed
        self.run_id = run_id
        self.replica = replica
        self._owner = owner
        self.limits = limits or SessionLimits()
        self._book: SessionBook[Session] = SessionBook(self.limits.detach_s)
        self.sessions = self._book.sessions  # by id, for reading
        self.num_lanes = 0
        self.is_draining = False
        self._by_group: dict[tuple[int, int], Session] = {}
        self.num_unstepped = 0  # number of sessions that never stepped
        self._unstepped: dict[str | bytes, int] = {}  # lanes of sessions that never stepped, by holder
        self._former_runs: set[str] = set()
        self._next_number = 1

    # HELLO, BYE

    def has_session(self, hello: Hello) -> bool:
        """Whether the group that says this HELLO has a session."""
        return (hello.incarnation, hello.group) in self._by_group

    def hello(self, hello: Hello, route: bytes, now: float) -> Welcome | Reject:
        """Open a session or resume the group's own. The caller has checked the specification before."""
        refusal = self._refusal(hello)
        session = self._by_group.get((hello.incarnation, hello.group))
        if refusal is None and session is not None and not _same_group(session.hello, hello):
            refusal = ("group_changed", False, f"this group {_describe_change(session.hello, hello)}", CHANGE_HINT)
        if refusal is None and session is not None and self.is_foreign(session, route):
            refusal = ("group_changed", False, "this group belongs to another key", "draw a new random incarnation")
        if refusal is None and session is None:
            refusal = self._full(hello, route)
        if refusal is not None:
            code, retryable, message, hint = refusal
            return Reject(nonce=hello.nonce, code=code, retryable=retryable, message=message, hint=hint)
        resumed = session is not None
        if session is None:
            session = self._open(hello, route, now)
        else:
            self._book.move_to(session, route, now)
        return Welcome(
            nonce=hello.nonce,
            session=session.id,
            server_epoch=self.server_epoch,
            protocol=min(hello.protocol_max, PROTOCOL_MAX),
            run_id=self.run_id,
            capabilities=session.capabilities,
            beat_s=self.limits.beat_s,
            lease_s=session.lease_s,
            seed=session.seed,
            resumed=resumed,
            next_seq=session.last_seq + 1,
        )

    def bye(self, bye: Bye, route: bytes, now: float) -> list[Session]:
        """End the named session, or with 0 all of this connection, and return them. Those on other routes stay."""
        leaving = self._book.named(bye.session, route)
        for session in leaving:
            self.end(session)
        return leaving

    def end(self, session: Session) -> None:
        """End a session; its next STEP is challenged. Idempotent."""
        if session.is_ended:
            return
        if session.last_seq < 0:
            self._count_unstepped(session, -session.lanes)
        session.is_ended = True
        session.reply = None
        self._book.remove(session)
        del self._by_group[session.hello.incarnation, session.hello.group]
        self.num_lanes -= session.hello.lanes

    def drain(self) -> list[Session]:
        """Refuse every HELLO from now on, and end and return all sessions; the caller sends BYE."""
        self.is_draining = True
        return self._end(list(self.sessions.values()))

    def change_run(self, run_id: str, run_seed: int) -> list[Session]:
        """Set another run, and end and return all sessions; their groups may return with the former run's id."""
        if self.run_id and self.run_id != run_id:
            self._former_runs.add(self.run_id)
        self.run_id, self.run_seed = run_id, run_seed
        return self._end(list(self.sessions.values()))

    # The step path

    def step(self, step: Step, route: bytes, now: float) -> StepVerdict:
        """Decide about a STEP with a valid payload. After ACCEPT: QUEUED, or as `mark` says, until `answer`."""
        session = self.sessions.get(step.session)
        if session is None or (session.route != route and self.is_foreign(session, route)):
            return _CHALLENGE
        seq, last_seq = step.seq, session.last_seq
        if seq == last_seq + 1:
            if _UNKNOWN < session.state < _ANSWERED:
                return _CHALLENGE
            if last_seq < 0:
                self._count_unstepped(session, -session.lanes)
            session.last_seq = seq
            session.state = _QUEUED
            session.state_since = now
            session.reply = None
            verdict = _ACCEPT
        elif seq == last_seq:
            verdict = _CACHED if session.state == _ANSWERED else _PENDING
        else:
            return _STALE if seq < last_seq else _CHALLENGE
        self._book.move_to(session, route, now)
        return verdict

    def is_foreign(self, session: Session, route: bytes) -> bool:
        """Whether the connection's key is not the one that opened the session."""
        return self._owner(route) != session.owner

    def mark(self, session: Session, state: int, now: float) -> None:
        """Note the state in which a pending STEP waits, and since when."""
        if session.state != state:
            session.state = state
            session.state_since = now

    def answer(self, session: Session, frames: list[bytes], now: float) -> None:
        """Keep all frames of the pending STEP's ACT, for resends until the next STEP."""
        session.reply = frames
        session.state = _ANSWERED
        session.state_since = now

    def challenge(self, session_id: int) -> Challenge:
        """Return the message to send after `StepVerdict.CHALLENGE`."""
        return Challenge(session=session_id, server_epoch=self.server_epoch)

    def strike(self, session: Session) -> Session | None:
        """Count an invalid message of a session; after too many, end and return the session."""
        session.strikes += 1
        if session.strikes < self.limits.max_strikes or session.is_ended:
            return None
        self.end(session)
        return session

    # Liveness

    def ping(self, ping: Ping, route: bytes, now: float, *, work_age_ms: int = 0) -> Pong:
        """Renew the leases of a connection's sessions, and return a report on each."""
        self._book.renew(route, now)
        reports = tuple(
            SessionReport(
                session=session.id,
                last_seq=session.last_seq,
                state=session.state,
                age_ms=max(0, int((now - session.state_since) * 1000)),
            )
            for session in self._book.on_route(route)
        )
        return Pong(
            sent_ms=ping.sent_ms,
            server_epoch=self.server_epoch,
            work_age_ms=max(0, work_age_ms),
            sessions=reports,
            turns_away=self.is_draining or self.num_lanes >= self.limits.max_lanes,
        )

    @property
    def num_detached(self) -> int:
        """The number of sessions whose connection is known to be closed, and which have not come back on another."""
        return self._book.num_detached

    def routes(self) -> list[bytes]:
        """The connections that have sessions."""
        return self._book.routes()

    def silent_routes(self, now: float) -> list[bytes]:
        """Return the connections with sessions from which nothing has come for longer than a beat."""
        return self._book.silent_routes(now - self.limits.beat_s)

    def on_route(self, route: bytes) -> list[Session]:
        """Return the sessions of one connection."""
        return self._book.on_route(route)

    def unroutable(self, route: bytes, now: float) -> list[Session]:
        """Note that a connection is closed; its sessions may resume on another within `detach_s`."""
        return self._book.closed(route, now)

    def revoke(self, routes: Sequence[bytes]) -> list[Session]:
        """End and return the sessions of connections whose keys were revoked; the caller tells each."""
        return self._end(self._book.on_routes(routes))

    def expire(self, now: float, *, drained: bool, stalled_until: float = float("-inf")) -> list[Session]:
        """End and return the sessions whose lease is over.

        Args:
          drained: whether the socket was empty when last read; otherwise messages of these sessions may wait there.
          stalled_until: one beat after this process last stalled; no lease ends before.
        """
        if not drained or now < stalled_until:
            return []
        return self._end(self._book.expired(now))

    # Within

    def _refusal(self, hello: Hello) -> Refusal | None:
        """Return why this HELLO cannot be served whatever the free space; None if it can."""
        if (refusal := refuse_version(hello)) is not None:
            return refusal
        if self.is_draining:
            return "draining", True, "this inference service is shutting down", "try another, or wait until it is back"
        if hello.run_id and self.run_id and hello.run_id != self.run_id and hello.run_id not in self._former_runs:
            message = f"run id {hello.run_id!r} requested, this inference service serves run {self.run_id!r}"
            return "another_run", False, message, "check actor.upstream"
        return refuse_size(hello, self.limits.max_frame_bytes)

    def _full(self, hello: Hello, route: bytes) -> Refusal | None:
        """Return the refusal of a group for which there is no space; None if there is."""
        if self.num_lanes + hello.lanes > self.limits.max_lanes:
            message = f"{hello.lanes} lanes requested, {self.num_lanes} of {self.limits.max_lanes} in use"
            return "capacity", True, message, "add an inference service, or raise inference.max_lanes"
        waiting = self._unstepped.get(self._owner(route) or route, 0)
        if waiting and waiting + hello.lanes > self.limits.max_lanes // 2:
            message = f"{hello.lanes} lanes requested, and {waiting} lanes with a session have not stepped yet"
            return "capacity", True, message, "step the groups that have a session; then others get one"
        if len(self._book.on_route(route)) >= MAX_SESSIONS_PER_CONNECTION:
            message = f"this connection has {MAX_SESSIONS_PER_CONNECTION} groups, the most allowed"
            return "capacity", True, message, "use more lanes per group, or more actors"
        return None

    def _open(self, hello: Hello, route: bytes, now: float) -> Session:
        number, self._next_number = self._next_number, self._next_number + 1
        limits = self.limits
        session = Session(
            # The epoch's bits make the ids of different server processes distinct.
            id=(self.server_epoch & 0x7FFF_FFFF) << 32 | number,
            number=number,
            hello=hello,
            seed=group_seed(self.run_seed, self.replica, number),
            route=route,
            lease_s=max(limits.lease_s, min(hello.max_stall_s, limits.max_stall_s)),
            heard_at=now,
            state_since=now,
            owner=self._owner(route),
            holder=self._owner(route) or route,
        )
        self._count_unstepped(session, session.lanes)
        self._book.add(session)
        self._by_group[hello.incarnation, hello.group] = session
        self.num_lanes += hello.lanes
        return session

    def _count_unstepped(self, session: Session, lanes: int) -> None:
        """Add to the lanes of a session's holder that never stepped; a negative number subtracts."""
        self.num_unstepped += 1 if lanes > 0 else -1
        count = self._unstepped.get(session.holder, 0) + lanes
        if count:
            self._unstepped[session.holder] = count
        else:
            del self._unstepped[session.holder]

    def _end(self, sessions: list[Session]) -> list[Session]:
        for session in sessions:
            self.end(session)
        return sessions


def refuse_version(hello: Hello) -> Refusal | None:
    """Return the refusal of a HELLO whose protocol versions are not served; None if one is."""
    if hello.protocol_min <= PROTOCOL_MAX and hello.protocol_max >= PROTOCOL_MIN:
        return None
    theirs, ours = f"{hello.protocol_min}..{hello.protocol_max}", f"{PROTOCOL_MIN}..{PROTOCOL_MAX}"
    return "protocol", False, f"protocol {theirs} requested, {ours} served", "install one version of seedbed everywhere"


def refuse_size(hello: Hello, max_frame_bytes: int) -> Refusal | None:
    """Return the refusal of a group whose STEP is too large; None if it is not."""
    frames = step_layout(hello.spec, hello.lanes).frame_bytes
    if max(frames) > max_frame_bytes:
        message = f"a STEP has a frame of {max(frames)} bytes, and inference.max_frame_bytes is {max_frame_bytes}"
    elif sum(frames) > LARGEST_MESSAGE * max_frame_bytes:
        message = (
            f"a STEP has {sum(frames)} bytes, over {LARGEST_MESSAGE} × inference.max_frame_bytes = {max_frame_bytes}"
        )
    else:
        return None
    return "frame_bytes", False, message, "lower actor.lanes or raise inference.max_frame_bytes"


def group_seed(run_seed: int, replica: int, number: int) -> int:
    """Return a group's seed of 31 bits, a hash of run seed, replica and session number."""
    words = np.random.SeedSequence([abs(run_seed), replica, number]).generate_state(1)
    return int(words[0]) & 0x7FFF_FFFF


def _same_group(known: Hello, hello: Hello) -> bool:
    mine, theirs = ((item.lanes, item.mode, item.task, item.spec) for item in (known, hello))
    return mine == theirs


def _served_capabilities(hello: Hello) -> tuple[str, ...]:
    """Return the group's capabilities that are used; training groups are never asked for pictures."""
    served = SERVED_CAPABILITIES if hello.mode != "train" else SERVED_CAPABILITIES[:1]
    return tuple(name for name in hello.capabilities if name in served)


def _describe_change(known: Hello, hello: Hello) -> str:
    for name in ("lanes", "mode", "task"):
        before, now = (getattr(item, name) or "none" for item in (known, hello))
        if before != now:
            return f"said HELLO with {name} {before} before, and with {now} now"
    return "said HELLO with another specification before"
