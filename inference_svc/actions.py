"""The actions that `Server` decides on, as values; the shell performs them in their order."""

from collections.abc import Sequence
from typing import NamedTuple

from seedbed.inference_svc.engine import LaneBlock
from seedbed.inference_svc.group import Group


class SendToEnvironment(NamedTuple):
    """Send these frames over a connection. If it is gone, call `Server.unroutable`."""

    route: bytes
    frames: Sequence[bytes]


class RunBatches(NamedTuple):
    """Run the policy for each batch in turn, then pass the payloads and versions of all to `Server.acted`."""

    batches: Sequence[Sequence[LaneBlock]]
    groups: Sequence[Group]  # of all batches, in their order


class ForgetState(NamedTuple):
    """Zero the policy state of these lanes before their next batch."""

    lanes: LaneBlock


class FreezeWeights(NamedTuple):
    """Freeze the live weights for an evaluation, then call `Server.weights_frozen` with their version."""


class LaunchAt(NamedTuple):
    """Call `Server.launch` at this time, in seconds."""

    at: float


Action = SendToEnvironment | RunBatches | ForgetState | FreezeWeights | LaunchAt
