"""Who is told that a message of theirs was refused: everyone, but not for ever."""

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import Error

MAX_TOLD = 10  # answers to unreadable messages of one connection
MAX_ROUTES = 1024  # connections that are remembered; the longest remembered is forgiven first
HINT = "docs/protocol.md has every byte of it"
REMEDIES = {
    "frame_size": "a STEP's frames have the sizes of its HELLO's spaces and lanes; to change these, begin anew",
    "statistics": "send one row of finite statistics for each lane that ended in this STEP, and set bit 1",
    "value": "rebuild a lane that would send NaN, an infinite value or no category of its space; send its reset row",
    "reward": "rebuild a lane that would send such a reward and send its reset row, or scale rewards down",
    "bounds": "widen the Box in HELLO to what the environment gives, or set inference.out_of_bounds to count or clip",
}


class RefusalReplies:
    """Answers to messages that broke the protocol. Owned by the service's loop; bounded by the limits above."""

    def __init__(self) -> None:
        self._told: dict[bytes, int] = {}

    def about_message(self, route: bytes, error: RemoteWireError) -> Error | None:
        """For a message that belongs to no session; None where this connection was told often enough."""
        told = self._told[route] = self._told.get(route, 0) + 1
        if len(self._told) > MAX_ROUTES:
            del self._told[next(iter(self._told))]
        if told > MAX_TOLD:
            return None
        return Error(
            code=error.code, scope="connection", session=0, nonce=0, retryable=True,
            message=f"refused: {error}"[:500], hint=HINT,
        )  # fmt: skip


def about_step(session: int, error: RemoteWireError, *, is_over: bool, retryable: bool) -> Error:
    """For a STEP that was refused; `is_over`: it was the last of too many, and the session with it."""
    ending = "; the session is over" if is_over else ""
    return Error(
        code=error.code, scope="session", session=session, nonce=0, retryable=retryable,
        message=f"STEP refused: {error}"[:500] + ending, hint=REMEDIES.get(error.code, HINT),
    )  # fmt: skip
