"""The messages of the step link (environments) and the learner link (inference), one frozen record each.

A message on the wire is a header frame (a MessagePack array, the type first, then the fields in the order given here)
and, for STEP, ACT, UNROLL, EPISODES and WEIGHTS, payload frames that `seedbed.shared.protocol.rows` lays out.

Headers are declared only here: codec and the tables of docs/protocol.md are made from these records
(`python -m docs.generator.protocol` writes the tables).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Annotated, Any, TypeVar

from seedbed.shared.protocol.fields import (
    LABEL,
    LATER,
    MAX_COUNT,
    MAX_LABEL,
    MAX_LANES,
    NUMBER,
    SPECIFICATION,
    Boolean,
    Count,
    HeaderField,
    Id,
    Label,
    Labels,
    NumLanes,
    Prose,
    ProtocolVersion,
    Seconds,
    Specification,
    array,
    choice,
    fields_of,
    flags,
    group,
    integer,
    nested,
    one_of,
    optional,
    text,
)
from seedbed.shared.protocol.record import record
from seedbed.shared.protocol.rows import MAX_LIST, MAX_NAME, MAX_SETTING, EnvSpec

MAX_HEADER_BYTES = 4096  # of a message without another limit
MAX_MANIFEST = 1000 * 1000
MAX_SESSIONS = 1024  # of one connection
MAX_LOAD = 512
MAX_TASKS = 128
MAX_RANKS = 1024  # learner ranks of a run
MAX_ADDRESS = 256
MAX_UNROLL_LENGTH = 1 << 20

T = TypeVar("T")

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1  # of environments
LEARNER_PROTOCOL_MAX = 3  # of producers
RECORDING_PROTOCOL = 2  # from this version on they record the fields in the manifest, and their UNROLLs can be joined
RANKS_PROTOCOL = 3  # from this version on they send unrolls to every learner rank


class MessageType(IntEnum):
    """The type of a message, the first element of its header."""

    HELLO = 1
    WELCOME = 2
    REJECT = 3
    STEP = 4
    ACT = 5
    CHALLENGE = 6
    PING = 7
    PONG = 8
    BYE = 9
    ERROR = 10
    PRODUCER_HELLO = 17
    PRODUCER_WELCOME = 18
    UNROLL = 19
    EPISODES = 20
    CREDIT = 21
    GET = 22
    WEIGHTS = 23
    NOT_MODIFIED = 24
    LOOK = 33
    REPORT = 34


class StepBits(IntFlag):
    """The frames that follow a STEP's rows."""

    STATISTICS = 1  # one frame: f32 [ended lanes, K], lanes in ascending order
    RENDER = 2  # one frame, after the statistics: see `pictures`


class ActBits(IntFlag):
    """What an ACT says besides its actions."""

    RESET = 1  # ignore the actions, reset every lane with `reset_seed`, answer with `first` rows
    PICTURE = 2  # send a picture with the answer, because someone watches (capability `render`)
    BOUNDARY = 4  # this ACT answers row 0 of an unroll: a group that leaves now loses no partial unroll


class RequestState(IntEnum):
    """The state of a session's newest STEP, as PONG reports it."""

    UNKNOWN = 0  # none received yet
    QUEUED = 1
    HELD_NO_CREDIT = 2
    HELD_NO_WEIGHTS = 3
    HELD_NO_EVALUATION = 4
    ANSWERED = 5


class RunState(IntEnum):
    """The state of the run, which the learner sends in every CREDIT."""

    STARTING = 0  # no policy yet, because no environment has sent its specification
    TRAINING = 1
    FINISHING = 2  # training is over; the final evaluation is running
    FINISHED = 3


@dataclass(frozen=True, slots=True)
class Header:
    """The declaration of one type of message."""

    kind: MessageType
    direction: str  # "up" (towards the learner), "down" or "both ways"
    max_bytes: int
    record: type[Any]
    fields: tuple[HeaderField, ...]
    num_required: int  # number of fields that every header of this type has


HEADERS: dict[MessageType, Header] = {}


def header(kind: MessageType, direction: str, max_bytes: int = MAX_HEADER_BYTES) -> Callable[[type[T]], type[T]]:
    """Return a decorator that declares a record as the header of a type of message."""

    def declare(record: type[T]) -> type[T]:
        fields = fields_of(record)
        num_required = sum(not field.is_later for field in fields)
        HEADERS[kind] = Header(kind, direction, max_bytes, record, fields, num_required)
        return record

    return declare


@header(MessageType.HELLO, "up", 64 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Environment → inference: one group asks for a session. Idempotent."""

    protocol_min: Annotated[ProtocolVersion, "the protocol versions that you speak"] = PROTOCOL_MIN
    protocol_max: ProtocolVersion = PROTOCOL_MAX
    library: Annotated[Label, "what speaks, as `my-simulator`"] = "seedbed"
    library_version: Label
    actor: Annotated[
        Label,
        "for people and counters, best one for each place in the fleet: a new incarnation under a label that this "
        "inference has met counts as a restart when its group 0 says its first HELLO",
    ]
    incarnation: Annotated[Id, "random, once for each process life"]
    group: Annotated[Count, "which group of this process, from 0"]
    lanes: Annotated[NumLanes, "L"]
    nonce: Annotated[
        Id,
        "random for each greeting, the same while it is repeated, after ERROR `starting` and a retryable REJECT "
        "too; its answer carries it",
    ]
    mode: Annotated[
        str,
        one_of("train", "eval", "play"),
        "`train` for unrolls; `eval` needs capability `reset`; `play` acts and stores nothing",
    ]
    run_id: Annotated[
        Label,
        "as this group's last WELCOME said; empty at first, and after BYE(another_run). Section 5 says what becomes"
        " of it",
    ] = ""
    spec: Annotated[Specification, "section 4"]
    seeding: Annotated[
        str,
        one_of("lane", "group", "none"),
        "what a seed decides: each lane alone, only the group, nothing",
    ] = "group"
    capabilities: Annotated[
        Labels,
        "`reset`: follows ACT's reset bit. `boundary`: asks for ACT's boundary bit. `render`: can send pictures, see "
        "section 5",
    ] = ()
    max_stall_s: Annotated[
        Seconds,
        "how long you may be silent (level loading); the lease is at least this, at most 600 s",
    ] = 10.0
    task: Annotated[
        Label,
        LATER,
        "which of the run's tasks these environments are; empty in a run with one environment",
    ] = ""


@header(MessageType.WELCOME, "down")
@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Inference → environment: the session, and the number of the next STEP."""

    nonce: Annotated[Id, "of the HELLO"]
    session: Annotated[Id, "put it into every STEP"]
    server_epoch: Annotated[Id, "inference's incarnation"]
    protocol: Annotated[
        ProtocolVersion,
        "the version chosen; if you do not speak it: leave, exit status 78, with a BYE or without",
    ]
    role: Annotated[Label, "`inference`; anything else: leave, exit status 78, for the address is wrong"] = "inference"
    run_id: Label
    capabilities: Annotated[Labels, "those of yours that are used; `render` in modes `eval` and `play` only"] = ()
    beat_s: Annotated[Seconds, "send PING this often"]
    lease_s: Annotated[Seconds, "the session ends after this much silence"]
    seed: Annotated[Count, "of the group; section 6"]
    resumed: Annotated[Boolean, "the session was known"]
    next_seq: Annotated[Count, "the seq of the STEP that is expected next"]


@header(MessageType.REJECT, "down", 16 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Down: a HELLO is refused."""

    nonce: Annotated[Id, "of the HELLO"]
    code: Annotated[Label, "section 8"]
    retryable: Annotated[
        Boolean,
        "true: say HELLO again later, 0.2 s doubling to 2 s. false: end with exit status 78, or stay and repeat the"
        " cause",
    ]
    message: Annotated[Prose, "what was wrong"]
    hint: Annotated[Prose, "what to change; may be empty"] = ""


@header(MessageType.STEP, "up")
@record
class Step:
    """Environment → inference: one tick's rows. Payload: `rows.step_layout(spec, lanes)`."""

    session: Id
    seq: Annotated[Count, "rises by one with each tick; 0 in a new session"]
    bits: Annotated[int, flags(StepBits), "1: a statistics frame follows the rows. 2: a picture follows those"] = 0


@header(MessageType.ACT, "down")
@record
class Act:
    """Inference → environment: the actions for one STEP. Payload: `rows.act_layout(spec, lanes)`."""

    session: Id
    seq: Annotated[Count, "of the STEP that it answers"]
    policy_version: Annotated[Count, "that chose the actions"]
    bits: Annotated[
        int,
        flags(ActBits),
        "1: ignore the actions; reset every lane with `reset_seed`; the next STEP has only `first` rows. 2: send a "
        "picture with the next STEP, if you can. 4, only where HELLO has capability `boundary`: an unroll begins "
        "with the rows that this answers",
    ] = 0
    reset_seed: Count = 0


@header(MessageType.CHALLENGE, "down")
@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Down: a session is not known; its peer is to say HELLO again."""

    session: Annotated[
        Id,
        "this session is not known: say HELLO again. Ignore it unless the session is your current one",
    ]
    server_epoch: Id


@header(MessageType.PING, "up", 64 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Both links, up, every beat: a sign of life, with loads by name."""

    sent_ms: Annotated[Count, "> 0, your own clock, never going back; comes back"]
    load: Annotated[
        tuple[tuple[str, float], ...],
        array(MAX_LOAD, group(LABEL, NUMBER)),
        "metrics of the sender, finite; may be empty. `env_busy`: the share of time, 0…1, that environments ran, for "
        "`seedbed explain`; others are ignored",
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """The report on one session in a PONG."""

    session: Id
    last_seq: Annotated[int, integer(-1, MAX_COUNT, "integer −1…2⁶³−1"), "of its newest STEP; −1 before the first"]
    state: Annotated[int, choice(RequestState), "of its newest STEP"]
    age_ms: Annotated[Count, "how long in that state"]


@header(MessageType.PONG, "down", 64 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Down: the answer to PING, with a report on each session of the connection."""

    sent_ms: Annotated[Count, "of the PING"]
    server_epoch: Id
    work_age_ms: Annotated[Count, "how long the running forward pass (learner: update) has been running; 0 when idle"]
    sessions: Annotated[
        tuple[SessionReport, ...],
        array(MAX_SESSIONS, nested(SessionReport, "report")),
        "all sessions of this connection",
    ] = ()
    turns_away: Annotated[
        Boolean,
        LATER,
        "new groups of environments would be refused for now, for there is no policy yet, no free slot, or it is "
        "leaving; groups that are in stay",
    ] = False


@header(MessageType.BYE, "both ways")
@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """Both ways: a session ends on purpose. Session 0 means all sessions of the connection."""

    session: Annotated[Id, "0: every session of this connection"]
    reason: Annotated[
        Label,
        "up: `stopped` (you leave for good, on SIGTERM too), `moved` (the group goes elsewhere, or on in another "
        "session), `run_finished` (the answer to that). Down: `draining`, `run_finished`, `another_run`, `stopped`",
    ]


@header(MessageType.ERROR, "down", 16 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Both ways: a message was invalid, or cannot be served yet."""

    code: Annotated[Label, "section 8"]
    scope: Annotated[str, one_of("session", "connection")]
    session: Annotated[Id, "0 for the connection"]
    nonce: Annotated[Id, "of the HELLO that it answers, or 0"] = 0
    retryable: Annotated[Boolean, "as in REJECT"]
    message: Prose
    hint: Prose = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnv:
    """One task of a run; part of PRODUCER_WELCOME."""

    name: Annotated[str, text(MAX_LABEL, 1)]
    env_id: Annotated[str, text(MAX_NAME, 1)]
    settings: Annotated[
        tuple[tuple[str, str], ...],
        array(MAX_LIST, group(text(MAX_NAME, 1), text(MAX_SETTING))),
        "as in a specification: those that its environments must not contradict",
    ] = ()


@header(MessageType.PRODUCER_HELLO, "up", 64 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHello:
    """Inference → learner: a producer of unrolls and reader of weights asks for a session. Idempotent.

    Over one connection a process has a session for each task of its environments, and one without a task for weights.
    In a run with one environment the latter is the only one. Weights, episodes and evaluations are of stream 0, whose
    learner is rank 0.
    """

    protocol_min: ProtocolVersion = PROTOCOL_MIN
    protocol_max: ProtocolVersion = LEARNER_PROTOCOL_MAX
    library: Label = "seedbed"
    library_version: Label
    name: Label
    incarnation: Id
    nonce: Id
    run_id: Label = ""
    spec: Annotated[
        EnvSpec | None,
        optional(SPECIFICATION),
        "of the first environments that said HELLO, once known",
    ] = None
    oldest_seq: Annotated[
        Count,
        "the first UNROLL that can still be sent; those below were acknowledged and are forgotten",
    ] = 0
    oldest_episodes_seq: Annotated[Count, "the same for EPISODES"] = 0
    task: Annotated[Label, LATER, "what the unrolls and episodes of this session are of; section 7"] = ""
    stream: Annotated[
        int,
        integer(0, MAX_RANKS - 1),
        LATER,
        "numbers the producer's streams of unrolls, one for each learner rank: stream s goes to rank s mod W of W",
    ] = 0
    segment: Annotated[
        Id, LATER, "names the file of a segment of shared memory for UNROLLs and WEIGHTS, section 7; 0: none"
    ] = 0
    segment_bytes: Annotated[Count, LATER, "size of the segment, without what its file begins with"] = 0
    is_lockstep: Annotated[
        Boolean, LATER, "its training groups act in lockstep, as a deterministic run needs and no other may"
    ] = False


@header(MessageType.PRODUCER_WELCOME, "down", 1024 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerWelcome:
    """Learner → inference: the session, and the numbers to continue from."""

    nonce: Id
    session: Id
    epoch: Annotated[Count, "the learner's; higher after each restart"]
    protocol: ProtocolVersion
    role: Annotated[Label, "`learner`"] = "learner"
    rank: Count = 0
    run_id: Label
    run_seed: Count
    spec_digest: Annotated[Label, "of the policy's specification; empty while no policy exists"]
    beat_s: Seconds
    lease_s: Seconds
    unroll_length: Annotated[int, integer(1, MAX_UNROLL_LENGTH), "T, transitions"]
    next_seq: Annotated[Count, "the first UNROLL of this incarnation that is not applied"]
    next_episodes_seq: Count
    state: Annotated[int, choice(RunState), "of the run: 0 starting (no policy), 1 training, 2 finishing, 3 finished"]
    tasks: Annotated[
        tuple[TaskEnv, ...],
        array(MAX_TASKS, nested(TaskEnv, "task")),
        LATER,
        "those of the run; none where it has one environment",
    ] = ()
    ranks: Annotated[
        tuple[str, ...],
        array(MAX_RANKS - 1, text(MAX_ADDRESS, 1)),
        LATER,
        "addresses of learner ranks 1, 2, …, which take unrolls too; the host `*` is the one that this rank was "
        "reached at; from rank 0 only",
    ] = ()
    segment_secret: Annotated[
        Id,
        LATER,
        "the secret number in the file of HELLO's segment, which proves that the learner has it open; 0: it has not",
    ] = 0


@header(MessageType.UNROLL, "up")
@dataclass(frozen=True, slots=True, kw_only=True)
class Unroll:
    """Inference → learner: some lanes' rows of one group. Payload: `RecordSpec.layout(lanes)` in one frame.

    With a segment of shared memory the payload is there, and there is no frame.
    Unrolls of one incarnation and group that have lanes in common can be joined by `first_lane` and `start`.
    """

    session: Id
    seq: Annotated[Count, "numbers the UNROLLs of one incarnation: 0, 1, 2, …"]
    lanes: Annotated[NumLanes, "L of this message; at most 8 MB a message, larger groups are split by lanes"]
    actor: Annotated[Label, "who acted"]
    group: Annotated[Count, "the group's number at this inference, from 1; 0: not told, as in protocol 1"] = 0
    first_lane: Annotated[Count, LATER, "of the group, the lane that this message begins with"] = 0
    start: Annotated[
        Count,
        LATER,
        "rows of the group that came before row 0; with `group` and `first_lane` it says which unrolls of a lane "
        "follow each other",
    ] = 0
    segment: Annotated[
        Id, LATER, "of PRODUCER_HELLO: the payload is in it, and no frame follows; 0: a frame follows"
    ] = 0
    offset: Annotated[Count, LATER, "of the payload in the segment, bytes"] = 0
    length: Annotated[Count, LATER, "of the payload in the segment, bytes"] = 0


@header(MessageType.EPISODES, "up")
@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Inference → learner: finished episodes. Payload: one frame, f32 [N, K] statistics behind i64 [N] versions."""

    session: Id
    seq: Annotated[Count, "numbered apart from UNROLLs"]
    mode: Annotated[str, one_of("train", "eval", "play")]
    evaluation: Annotated[Count, "id of the evaluation; 0 in training"]
    count: Annotated[int, integer(0, MAX_LANES), "N"]
    aborted: Annotated[Count, "episodes cut short by a rebuilt lane"]
    acted_steps: Annotated[Count, "valid transitions of this mode since the last EPISODES"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A request to evaluate one policy version; part of CREDIT."""

    id: Count
    version: Annotated[Count, "of exactly this policy_version"]
    episodes: Count
    seed: Count
    greedy: Boolean


@header(MessageType.CREDIT, "down")
@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Learner → inference: absolute positions, repeated with every PONG; ignored in another epoch."""

    session: Annotated[Id, "void in another session"]
    epoch: Annotated[Count, "void in another epoch"]
    granted_through: Annotated[Count, "section 7"]
    acked_through: Annotated[Count, "UNROLLs with a seq below this are applied, or dropped and counted"]
    episodes_acked_through: Count
    state: Annotated[int, choice(RunState), "of the run, as in PRODUCER_WELCOME"]
    trained_steps: Count
    evaluation: Annotated[Evaluation | None, optional(nested(Evaluation, "evaluation")), "what to evaluate"] = None
    received_through: Annotated[
        Count, LATER, "the first UNROLL that was not received: the segment's places of those below are free"
    ] = 0


@header(MessageType.GET, "up")
@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """Inference → learner: a long-poll for weights newer than a version, or a request for an exact version."""

    session: Id
    have_version: Annotated[Count, "0: none"]
    have_manifest: Annotated[Label, "digest of the manifest that you have; empty: none"]
    exact: Annotated[Count, LATER, "the policy_version that an evaluation asks for; 0: the newest"] = 0
    segment: Annotated[
        Id, LATER, "of PRODUCER_HELLO: the weights may be put into it, at the place that follows; 0: send them"
    ] = 0
    offset: Annotated[Count, LATER, "of that place in the segment, bytes"] = 0
    length: Annotated[Count, LATER, "of that place, bytes: what lies before the weights there, and the weights"] = 0


@header(MessageType.WEIGHTS, "down", 1024 * 1024)
@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Learner → inference: the newest weights. Payload: one frame, the flat buffer; none if it is in the segment."""

    session: Id
    version: Annotated[Count, "policy_version"]
    manifest_digest: Label
    manifest: Annotated[str, text(MAX_MANIFEST), "JSON; empty if you have it"] = ""
    segment: Annotated[
        Id, LATER, "of GET: the weights are at the place that it named, and no frame follows; 0: a frame follows"
    ] = 0


@header(MessageType.NOT_MODIFIED, "down")
@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """Learner → inference: there were no newer weights within the long-poll."""

    session: Id
    version: Annotated[Count, "the newest"]


@header(MessageType.LOOK, "up")
@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Monitor → inference or learner: a request for metrics and picture. Opens no session and changes nothing."""

    wants_page: Annotated[Boolean, "send the page"]
    wants_picture: Annotated[
        Boolean,
        "send the newest picture of an evaluation; inference takes this for a person who watches, for 10 s",
    ]
    have_picture: Annotated[Count, "number of the picture that you have; 0: none"]


@header(MessageType.REPORT, "down")
@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to LOOK. Payload: the page (empty if not wanted) and the picture (empty if none is newer)."""

    incarnation: Id
    service: Annotated[Label, "`inference` or `learner`"]
    name: Label
    run_id: Annotated[Label, "empty while unknown"]
    picture: Annotated[Count, "its number; 0: there is none"]
    picture_version: Annotated[Count, "policy_version that plays"]
    picture_age_ms: Count


Message = (
    Hello | Welcome | Reject | Step | Act | Challenge | Ping | Pong | Bye | Error
    | ProducerHello | ProducerWelcome | Unroll | Episodes | Credit | Get | Weights | NotModified
    | Look | Report
)  # fmt: skip

EPOCH_SHIFT = 40


def pack_version(epoch: int, step: int) -> int:
    """Return the policy_version of the wire, an i64 that orders like (epoch, step). 0 means no version."""
    return epoch << EPOCH_SHIFT | step


def unpack_version(version: int) -> tuple[int, int]:
    """Return (epoch, step) of a packed policy_version."""
    return version >> EPOCH_SHIFT, version & ((1 << EPOCH_SHIFT) - 1)
