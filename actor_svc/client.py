"""The actor's side of the step protocol for one group, as a state machine without a socket or a clock.

At most one STEP is outstanding. Whose turn it is and how far the session has come are two separate states:

    turn     NEW → ENVIRONMENT ⇄ INFERENCE     whose turn it is; losing a session never changes it
    phase    IDLE → GREETING ⇄ ACTIVE → DONE   the session; it may be lost and opened again at any turn

Rules:

- A missing ACT alone triggers nothing: inference may be holding it. The outstanding STEP is sent again when a PONG,
  asked for after the last sending, shows a lower seq, or `answered` without the ACT; and after every WELCOME.
- CHALLENGE counts only for the current session; a session missing from such a PONG counts as one.
- In a new session the outstanding observation is sent again, as the first seq there. Nothing is reset.
- After a retryable refusal, HELLO is repeated after 0.2 s, doubling to 2 s; any other refusal ends the actor.

Every method takes `now`, seconds on any clock that does not go back, and returns actions for the shell to perform.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import IntEnum

from seedbed.shared.errors import LocalWireError, RejectedError, RemoteWireError
from seedbed.shared.protocol.greeting import FIRST_RETRY_S, Greeting
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Error,
    Hello,
    Message,
    Reject,
    RequestState,
    SessionReport,
    Step,
    Welcome,
)
from seedbed.shared.protocol.record import record
from seedbed.shared.protocol.rows import act_layout

Frames = Sequence[bytes | bytearray]  # payload frames to send
Received = Sequence[bytes]  # payload frames that were received


@record
class Send:
    """Send this message, followed by these payload frames. `group` is -1 for a message of the connection itself."""

    group: int
    message: Message
    payload: Frames = ()


@record
class StartLanes:
    """Reset all lanes with `seed`, then submit their `first` rows. `fresh` marks the group's first session."""

    group: int
    seed: int
    fresh: bool


@record
class StepLanes:
    """Step the environments with these action frames, then submit the rows."""

    group: int
    payload: Received
    policy_version: int
    wants_picture: bool = False  # a picture is to follow the rows, because someone is watching


@record
class ResetLanes:
    """Begin a fresh episode in every lane: reset with `seed`, then submit the `first` rows. Inference asked for it."""

    group: int
    seed: int
    wants_picture: bool = False


@record
class Finished:
    """The run is finished: the actor ends with success."""

    group: int
    reason: str


@record
class Fatal:
    """Inference refuses this group for good: the actor ends with this error."""

    group: int
    error: RejectedError


Action = Send | StartLanes | StepLanes | ResetLanes | Finished | Fatal
Actions = tuple[Action, ...]


class Turn(IntEnum):
    """Which side acts next: the environments, inference, or neither."""

    NEW = 0  # neither side yet: the environments wait for their seed
    ENVIRONMENT = 1
    INFERENCE = 2  # one STEP is outstanding


class ClientPhase(IntEnum):
    """The phase of the session with inference."""

    IDLE = 0  # on no connection
    GREETING = 1  # HELLO sent, or to be sent again
    ACTIVE = 2
    DONE = 3


_ENVIRONMENT, _INFERENCE = Turn.ENVIRONMENT, Turn.INFERENCE
_ACTIVE = ClientPhase.ACTIVE
_RESET, _PICTURE, _BOUNDARY = int(ActBits.RESET), int(ActBits.PICTURE), int(ActBits.BOUNDARY)


class GroupClient:
    """One group's session with the inference service where it is placed. Owned by one thread; holds one STEP's frames.

    Large because it is the whole protocol of one group: what is outstanding, what may be sent again, and when to move.

    Args:
      hello: the group's HELLO; its nonce and run id are filled in here.
      nonces: returns a random number that was not used before.
      reset_when_lost: whether a new session begins fresh episodes instead of continuing them, for policies with memory.
    """

    def __init__(self, hello: Hello, nonces: Callable[[], int], *, reset_when_lost: bool = False) -> None:
        self.hello = hello
        self.group = hello.group
        self.turn = Turn.NEW
        self.phase = ClientPhase.IDLE
        self.session = 0  # kept while greeting, so that a resumed session can be recognised
        self.seq = -1  # of the newest STEP in this session
        self.run_id = hello.run_id
        self.server_epoch = 0
        self.lease_s = 10.0
        self.capabilities: tuple[str, ...] = ()
        self.refusal = ""  # why the last HELLO was not served, for people
        self.num_resent = 0
        self.num_sessions = 0
        self.num_ignored = 0
        self.is_at_boundary = False  # the newest ACT began an unroll: leaving now loses one transition
        self._greeting = Greeting(nonces)
        self._reset_when_lost = reset_when_lost
        self._has_left_run = False  # inference said that another run has begun
        self._is_restarting = False  # drop the rows of the tick under way, then start over
        self._seed = 0
        self._frames: Frames = ()
        self._bits = 0
        self._sent_at = 0.0
        self._welcomed_at = 0.0
        self._act_sizes = list(act_layout(hello.spec, hello.lanes).frame_bytes)

    # Called by the shell

    def start(self, now: float) -> Actions:
        """Return the HELLO for the inference service where the group has just been placed."""
        self.session = 0
        return self._greet(now)

    def connection_reset(self, now: float) -> Actions:
        """Return a HELLO after the connection was closed and opened again: messages under way may have been lost."""
        return self._greet(now) if self.phase in (ClientPhase.GREETING, ClientPhase.ACTIVE) else ()

    def submit(self, frames: Frames, bits: int, now: float) -> Actions:
        """Take the rows of a finished tick or reset and return the STEP that carries them, if there is a session.

        The frames must stay unchanged until the next action for this group.

        Raises: LocalWireError if it was not the environments' turn.
        """
        if self.turn is not _ENVIRONMENT:
            raise LocalWireError(f"group {self.group} submitted rows out of turn")
        if self._is_restarting:
            return self._begin(fresh=False)
        self.turn = _INFERENCE
        self.seq += 1
        self._frames = frames
        self._bits = bits
        if self.phase is not _ACTIVE:
            return ()
        self._sent_at = now
        return (Send(self.group, Step(self.session, self.seq, bits), frames),)

    def receive(self, message: Message, frames: Received, now: float) -> Actions:
        """Take a message for this group and return what to do about it.

        Raises: RemoteWireError if an ACT's frames have the wrong sizes.
        """
        if type(message) is Act:
            return self._act(message, frames)
        if type(message) is Welcome:
            return self._welcome(message, now)
        if type(message) is Challenge:
            if message.session == self.session and self.phase is _ACTIVE:
                return self._greet(now)
        elif type(message) is Reject or type(message) is Error:
            return self._refused(message, now)
        elif type(message) is Bye:
            return self._dismissed(message, now)
        self.num_ignored += 1
        return ()

    def report(self, report: SessionReport | None, pinged_at: float, now: float) -> Actions:
        """Compare a PONG's report on this session with our own state; return what repairs a message that was lost.

        Args:
          report: None if the PONG did not list this session.
          pinged_at: when the PING that it answers was sent.
        """
        if self.phase is not _ACTIVE:
            return ()
        if report is None:
            return self._greet(now) if pinged_at > self._welcomed_at else ()
        if self.turn is not _INFERENCE or pinged_at <= self._sent_at:
            return ()
        if report.last_seq > self.seq:
            return self._abandon(now)
        if report.last_seq < self.seq or report.state == RequestState.ANSWERED:
            return self._send_again(now)
        return ()

    def poll(self, now: float) -> Actions:
        """Return HELLO again if the last one was not answered in time."""
        return self._send_hello(now) if self.phase is ClientPhase.GREETING and self._greeting.is_due(now) else ()

    def leave(self, reason: str) -> Actions:
        """End the session with a BYE. `start` may then open one elsewhere; whose turn it is stays as it was."""
        farewell: Actions = (Send(self.group, Bye(session=self.session, reason=reason)),) if self.session else ()
        self.session = 0
        self.phase = ClientPhase.IDLE
        return farewell

    @property
    def is_waiting(self) -> bool:
        """Whether a STEP was sent that has no ACT yet."""
        return self.turn is _INFERENCE

    def is_answering(self, nonce: int) -> bool:
        """Whether this nonce belongs to the HELLO that this group is waiting on."""
        return self.phase is ClientPhase.GREETING and nonce == self._greeting.nonce

    # Within

    def _act(self, act: Act, frames: Received) -> Actions:
        # Accepted in any phase: the ACT of a session that is being resumed, or was lost, still answers the STEP.
        if act.seq != self.seq or act.session != self.session or self.turn is not _INFERENCE or not self.session:
            self.num_ignored += 1
            return ()
        self.is_at_boundary = act.bits & _BOUNDARY != 0
        if act.bits & _RESET:
            self.turn = _ENVIRONMENT
            self._frames = ()
            return (ResetLanes(self.group, act.reset_seed, bool(act.bits & _PICTURE)),)
        sizes = [len(frame) for frame in frames]
        if sizes != self._act_sizes:
            raise RemoteWireError("frame_size", f"an ACT with frames of {sizes} bytes, expected {self._act_sizes}")
        self.turn = _ENVIRONMENT
        self._frames = ()
        return (StepLanes(self.group, frames, act.policy_version, bool(act.bits & _PICTURE)),)

    def _greet(self, now: float) -> Actions:
        self.phase = ClientPhase.GREETING
        self._greeting.begin(now)
        return self._send_hello(now)

    def _send_hello(self, now: float) -> Actions:
        self._greeting.said(now)
        return (Send(self.group, replace(self.hello, nonce=self._greeting.nonce, run_id=self.run_id)),)

    def _welcome(self, welcome: Welcome, now: float) -> Actions:
        if not self.is_answering(welcome.nonce):
            self.num_ignored += 1
            return ()
        if welcome.role != "inference":
            text = f"a service of role {welcome.role!r} answered: set actor.upstream to inference services"
            return self._fail(RejectedError(text))
        if not self.hello.protocol_min <= welcome.protocol <= self.hello.protocol_max:
            text = f"inference chose protocol {welcome.protocol} that this actor lacks: install one version everywhere"
            return self._fail(RejectedError(text))
        is_resumed = welcome.session == self.session
        is_other_run = self._has_left_run or (bool(self.run_id) and welcome.run_id != self.run_id)
        self.phase = ClientPhase.ACTIVE
        self.session = welcome.session
        self.run_id = welcome.run_id
        self.server_epoch = welcome.server_epoch
        self.lease_s = welcome.lease_s
        self.capabilities = welcome.capabilities
        self.refusal = ""
        self._welcomed_at = now
        if is_resumed:
            return self._resume(welcome.next_seq, now)
        if welcome.next_seq:  # a session that this group left, but its BYE was lost: no unroll may continue in it
            return self._abandon(now)
        self._has_left_run = False
        self.num_sessions += 1
        self.seq = welcome.next_seq - 1
        if self.turn is Turn.NEW:
            self._seed = welcome.seed
            return self._begin(fresh=True)
        if is_other_run or self._reset_when_lost:
            self._seed = welcome.seed
            if self.turn is _INFERENCE:
                return self._begin(fresh=False)
            self._is_restarting = True
        elif self.turn is _INFERENCE:
            self.seq += 1
            return self._send_again(now)
        return ()

    def _resume(self, next_seq: int, now: float) -> Actions:
        """Continue the same session: send an outstanding STEP again, to deliver it or to get its cached ACT."""
        if self.turn is _INFERENCE and next_seq in (self.seq, self.seq + 1):
            return self._send_again(now)
        return () if self.turn is not _INFERENCE and next_seq == self.seq + 1 else self._abandon(now)

    def _begin(self, *, fresh: bool) -> Actions:
        self.turn = _ENVIRONMENT
        self._is_restarting = False
        self._frames = ()
        return (StartLanes(self.group, self._seed, fresh),)

    def _send_again(self, now: float) -> Actions:
        self.num_resent += 1
        self._sent_at = now
        return (Send(self.group, Step(session=self.session, seq=self.seq, bits=self._bits), self._frames),)

    def _abandon(self, now: float) -> Actions:
        """The two sides disagree about what was sent: leave this session for a new one."""
        return (*self.leave("moved"), *self._greet(now))

    def _refused(self, answer: Reject | Error, now: float) -> Actions:
        answers_hello = self.is_answering(answer.nonce)
        if not answers_hello and not (type(answer) is Error and 0 != answer.session == self.session):
            self.num_ignored += 1
            return ()
        self.refusal = f"{answer.code}: {answer.message}" + (f" ({answer.hint})" if answer.hint else "")
        if not answer.retryable:
            return self._fail(RejectedError(f"inference refused group {self.group}: {self.refusal}"))
        if answers_hello:
            self._greeting.put_off(now)
        return ()

    def _dismissed(self, bye: Bye, now: float) -> Actions:
        if self.phase in (ClientPhase.IDLE, ClientPhase.DONE) or bye.session not in (0, self.session):
            self.num_ignored += 1
            return ()
        if bye.reason == "run_finished":
            self.leave(bye.reason)
            self.phase = ClientPhase.DONE
            return (Finished(self.group, bye.reason),)
        self.session = 0
        if bye.reason == "another_run":
            self._has_left_run = True
            self.run_id = ""
        if self.phase is _ACTIVE:  # ask again after a moment: the service that is leaving needs time to close
            self.phase = ClientPhase.GREETING
            self._greeting.begin(now, after_s=FIRST_RETRY_S)
            self.refusal = f"inference said BYE: {bye.reason}"
        return ()

    def _fail(self, error: RejectedError) -> Actions:
        self.session = 0
        self.phase = ClientPhase.DONE
        return (Fatal(self.group, error),)
