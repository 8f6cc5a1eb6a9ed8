"""One frozen record per message of the step link (environments) and the learner link (inference).

A message on the wire is a header frame (a MessagePack array, the type first, then the fields in the order given here)
and, for STEP, ACT, UNROLL, EPISODES and WEIGHTS, payload frames that `seedbed.shared.protocol.rows` lays out.
"""

from dataclasses import dataclass
from enum import IntEnum, IntFlag

from seedbed.shared.protocol.record import record
from seedbed.shared.protocol.rows import EnvSpec

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1  # of environments
LEARNER_PROTOCOL_MAX = 2  # of producers
RECORDING_PROTOCOL = 2  # since then they record what the manifest names, and their UNROLLs can be joined


class MessageType(IntEnum):
    """First element of every header."""

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
    """What follows a STEP's observation frames."""

    STATISTICS = 1  # one frame: f32 [ended lanes, K], lanes in ascending order
    RENDER = 2  # one frame, behind the statistics: see `pictures`


class ActBits(IntFlag):
    """What an ACT asks beyond its actions."""

    RESET = 1  # ignore the actions, reset every lane with `reset_seed`, answer with `first` rows
    PICTURE = 2  # somebody watches: send a picture with the answer (capability `render`)
    BOUNDARY = 4  # an unroll begins with the rows that this answers: whoever leaves now takes none with it


class RequestState(IntEnum):
    """Where a session's newest STEP is, as PONG reports it."""

    UNKNOWN = 0  # none received yet
    QUEUED = 1
    HELD_NO_CREDIT = 2
    HELD_NO_WEIGHTS = 3
    HELD_NO_EVALUATION = 4
    ANSWERED = 5


class RunState(IntEnum):
    """Where the run is, as the learner tells everyone."""

    STARTING = 0  # no policy yet: no environment has introduced itself
    TRAINING = 1
    FINISHING = 2  # trained to the end; the final evaluation is running
    FINISHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Environment → inference: one group introduces itself. Idempotent."""

    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    library: str = "seedbed"
    library_version: str
    actor: str  # a label for people; identity is (incarnation, group)
    incarnation: int  # random, one process life
    group: int
    lanes: int
    nonce: int  # echoed by WELCOME and REJECT
    mode: str  # "train", "eval" or "play"
    run_id: str = ""  # empty when not known yet
    spec: EnvSpec
    seeding: str = "group"  # "lane" if every lane can be seeded on its own, "group", or "none"
    capabilities: tuple[str, ...] = ()  # "reset", "render"
    max_stall_s: float = 10.0  # how long this environment may be silent, seconds
    task: str = ""  # which of the run's tasks this group plays; empty in a run with one environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Inference → environment: the session, and where to go on."""

    nonce: int
    session: int
    server_epoch: int  # inference's incarnation
    protocol: int
    role: str = "inference"
    run_id: str
    capabilities: tuple[str, ...] = ()
    beat_s: float  # PING this often
    lease_s: float  # silent for longer means gone
    seed: int  # of the group; lane i spawns its own from it
    resumed: bool
    next_seq: int  # the STEP that inference expects next


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """Down: this HELLO is refused."""

    nonce: int
    code: str
    retryable: bool
    message: str
    hint: str = ""


@record
class Step:
    """Environment → inference: one tick's rows. Payload: `EnvSpec.step_layout(lanes)`."""

    session: int
    seq: int  # rises by one with each tick
    bits: int = 0  # StepBits


@record
class Act:
    """Inference → environment: the actions for one STEP. Payload: `EnvSpec.act_layout(lanes)`."""

    session: int
    seq: int
    policy_version: int
    bits: int = 0  # ActBits
    reset_seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Down: I do not know this session; say HELLO again."""

    session: int
    server_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Both links, up, every beat: I live; with load figures by name."""

    sent_ms: int  # sender's own clock; echoed
    load: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """One session's line in a PONG."""

    session: int
    last_seq: int  # -1 before the first STEP
    state: int  # RequestState
    age_ms: int  # how long in that state


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """Down: the answer to PING, with each of that connection's sessions."""

    sent_ms: int
    server_epoch: int
    work_age_ms: int  # how long the running forward pass or update has been running; a stuck thread shows here
    sessions: tuple[SessionReport, ...] = ()
    turns_away: bool = False  # new groups would be refused for now: no policy yet, full, or leaving


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """Both ways: leaving on purpose. Session 0 means every session of this connection."""

    session: int
    reason: str  # "draining", "moved", "run_finished", "stopped", "another_run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Both ways: something was wrong with what you sent, or cannot be served yet."""

    code: str
    scope: str  # "session" or "connection"
    session: int  # 0 for the connection
    nonce: int = 0  # of the HELLO that this answers, if any
    retryable: bool
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnv:
    """One task of a run, as the learner knows it; part of PRODUCER_WELCOME."""

    name: str
    env_id: str
    settings: tuple[tuple[str, str], ...] = ()  # (name, value as JSON): what its environments must agree on


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerHello:
    """Inference → learner: a producer of unrolls and reader of weights introduces itself. Idempotent.

    A process has one session for each task that it has environments of, all over one connection, and one without a
    task, which reads the weights; in a run with one environment the latter is the only one.
    """

    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = LEARNER_PROTOCOL_MAX
    library: str = "seedbed"
    library_version: str
    name: str
    incarnation: int
    nonce: int
    run_id: str = ""
    spec: EnvSpec | None = None  # of the first environments that said HELLO here, once known
    oldest_seq: int = 0  # the first UNROLL it can still send; those below were acknowledged and are forgotten
    oldest_episodes_seq: int = 0
    task: str = ""  # what this session's unrolls and episodes are of


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerWelcome:
    """Learner → inference: the session, and where to go on."""

    nonce: int
    session: int
    epoch: int  # the learner's: higher after each restart
    protocol: int
    role: str = "learner"
    rank: int = 0
    run_id: str
    run_seed: int
    spec_digest: str  # empty while no policy exists
    beat_s: float
    lease_s: float
    unroll_length: int  # T, transitions
    next_seq: int  # the first UNROLL of this incarnation that is not applied yet
    next_episodes_seq: int
    state: int  # RunState
    tasks: tuple[TaskEnv, ...] = ()  # of the run; none in a run with one environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Unroll:
    """Inference → learner: some lanes' rows of one group. Payload: `RecordSpec.layout(lanes)` in one frame.

    Unrolls of one incarnation and group that have lanes in common can be joined by `first_lane` and `start`.
    """

    session: int
    seq: int
    lanes: int
    actor: str  # who acted: label and incarnation, for counters
    group: int = 0  # its number at this inference, from 1; 0 from those who do not tell (protocol 1)
    first_lane: int = 0  # of the group, that this one begins with
    start: int = 0  # how many rows of the group came before row 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Episodes:
    """Inference → learner: finished episodes. Payload: one frame, f32 [N, K] statistics behind i64 [N] versions."""

    session: int
    seq: int
    mode: str  # "train" or "eval"
    evaluation: int  # id of the evaluation, 0 when training
    count: int  # N
    aborted: int  # episodes cut short by a rebuilt lane
    acted_steps: int  # valid transitions of this mode acted since the last EPISODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """A request to evaluate one policy version; part of CREDIT."""

    id: int
    version: int  # at least this one, packed
    episodes: int
    seed: int
    greedy: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """Learner → inference, absolute figures, repeated after every PONG; void in another epoch."""

    session: int
    epoch: int
    granted_through: int  # lane-unrolls this session may have sent in all
    acked_through: int  # UNROLLs with seq below this are applied or counted as dropped
    episodes_acked_through: int
    state: int  # RunState
    trained_steps: int
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Get:
    """Inference → learner, long-poll: anything newer than this? Or, answered at once: exactly that version."""

    session: int
    have_version: int  # packed, 0 for none
    have_manifest: str  # digest, empty for none
    exact: int = 0  # packed: the version that an evaluation asked for; 0: the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Learner → inference: the newest weights. Payload: one frame, the flat buffer."""

    session: int
    version: int
    manifest_digest: str
    manifest: str = ""  # JSON; empty when the reader has this one


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """Learner → inference: nothing newer within the poll."""

    session: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Monitor → inference or learner: show me your figures. Keeps no session and changes nothing."""

    wants_page: bool
    wants_picture: bool  # of an evaluation
    have_picture: int  # number of the newest that it has, 0 for none


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The answer to LOOK. Payload: the page (empty if not wanted) and the picture (empty if none is newer)."""

    incarnation: int
    service: str  # "inference" or "learner"
    name: str
    run_id: str
    picture: int  # its number, 0 for none
    picture_version: int  # packed, of the policy that plays
    picture_age_ms: int


Message = (
    Hello | Welcome | Reject | Step | Act | Challenge | Ping | Pong | Bye | Error
    | ProducerHello | ProducerWelcome | Unroll | Episodes | Credit | Get | Weights | NotModified
    | Look | Report
)  # fmt: skip

EPOCH_SHIFT = 40


def pack_version(epoch: int, step: int) -> int:
    """One integer that orders like (epoch, step): the policy_version on the wire, i64. Zero is no version."""
    return epoch << EPOCH_SHIFT | step


def unpack_version(version: int) -> tuple[int, int]:
    """(epoch, step) of a packed policy_version."""
    return version >> EPOCH_SHIFT, version & ((1 << EPOCH_SHIFT) - 1)
