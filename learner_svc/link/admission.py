"""Which inference services a learner accepts, by what PRODUCER_HELLO says of the service, environments apart."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from seedbed.shared.protocol.messages import LEARNER_PROTOCOL_MAX, PROTOCOL_MIN, ProducerHello, Reject, TaskEnv


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that are the same in every WELCOME of this learner."""

    epoch: int
    run_id: str
    run_seed: int
    unroll_length: int
    beat_s: float
    lease_s: float
    tasks: tuple[TaskEnv, ...] = ()  # empty: a run with one environment
    protocol_min: int = PROTOCOL_MIN  # higher if inference must record more than protocol 1 can
    is_deterministic: bool = False  # only the first inference service may join
    rank: int = 0  # among the learner's ranks
    num_ranks: int = 1
    ranks: tuple[str, ...] = ()  # addresses of the others; the chief's alone


def check_hello(hello: ProducerHello, identity: Identity, incarnations: Mapping[str, Set[int]]) -> Reject | None:
    """Return the REJECT for an inference service that cannot be served; None if it can.

    `incarnations`: of all services that were accepted so far, by their names.
    """
    if hello.protocol_min > LEARNER_PROTOCOL_MAX or hello.protocol_max < identity.protocol_min:
        return Reject(
            nonce=hello.nonce, code="protocol", retryable=False,
            message=f"inference speaks protocol {hello.protocol_min} to {hello.protocol_max}, "
            f"the learner {identity.protocol_min} to {LEARNER_PROTOCOL_MAX}",
            hint="install one version of seedbed everywhere",
        )  # fmt: skip
    if hello.is_lockstep != identity.is_deterministic:
        return _lockstep_mismatch(hello)
    if identity.is_deterministic and set().union(*incarnations.values()) - {hello.incarnation}:
        return Reject(
            nonce=hello.nonce, code="deterministic", retryable=False,
            message="a deterministic run has one inference service from its start to its end, and had another one",
            hint="start the run anew, or set run.deterministic = false",
        )  # fmt: skip
    if hello.stream % identity.num_ranks != identity.rank:
        return Reject(
            nonce=hello.nonce, code="rank", retryable=True,
            message=f"this is learner rank {identity.rank} of {identity.num_ranks}, and stream "
            f"{hello.stream} belongs to another",
            hint="the addresses in the chief's WELCOME are in the order of ranks",
        )  # fmt: skip
    return None


def _lockstep_mismatch(hello: ProducerHello) -> Reject:
    """Return the REJECT for an inference service of which only one side is deterministic."""
    if hello.is_lockstep:
        message = "inference.lockstep_groups is set, and the learner has run.deterministic = false"
        hint = "set run.deterministic = true for the learner, or leave inference.lockstep_groups out"
    else:
        message = "the learner has run.deterministic = true, and inference.lockstep_groups is not set"
        hint = "set inference.lockstep_groups to the number of groups of all training actors"
    return Reject(nonce=hello.nonce, code="deterministic", retryable=False, message=message, hint=hint)
