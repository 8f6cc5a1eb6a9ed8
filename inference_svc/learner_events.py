"""What a message from the learner means to this inference service: events, which `LearnerLink.receive` returns."""

from dataclasses import dataclass

from seedbed.shared.protocol.messages import Credit, ProducerWelcome
from seedbed.shared.protocol.rows import EnvSpec


@dataclass(frozen=True, slots=True)
class Welcomed:
    """A session with the learner began."""

    welcome: ProducerWelcome


@dataclass(frozen=True, slots=True)
class RunReplaced:
    """The learner is of another run than before. Its session begins after that, with `Welcomed`."""

    run_id: str


@dataclass(frozen=True, slots=True)
class WeightsReceived:
    """New weights; `manifest` is JSON, or empty if it has not changed."""

    version: int
    manifest_digest: str
    manifest: str
    buffer: bytes


@dataclass(frozen=True, slots=True)
class FormerWeightsReceived:
    """The older weights that `fetch` asked for; their manifest is that of the newest ones."""

    version: int
    manifest_digest: str
    buffer: bytes


@dataclass(frozen=True, slots=True)
class CreditReceived:
    """New credit, which may release held groups, and the present request for an evaluation, if any."""

    credit: Credit


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is finished."""


@dataclass(frozen=True, slots=True)
class SpecificationRefused:
    """The learner refused the specification of some environments; the session continues without it."""

    spec: EnvSpec
    message: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The learner refused this service. If `retryable`, HELLO is repeated and the event is only to be logged."""

    code: str  # of REJECT or ERROR
    message: str
    hint: str
    retryable: bool


Event = (
    Welcomed
    | RunReplaced
    | WeightsReceived
    | FormerWeightsReceived
    | CreditReceived
    | RunFinished
    | SpecificationRefused
    | Refused
)
