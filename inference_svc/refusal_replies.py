"""Answers to messages that broke the protocol, limited in number for each connection."""

from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import Error

MAX_ANSWERS = 10  # answers to unreadable messages of one connection
MAX_ROUTES = 1024  # connections that are counted; the one counted for longest is forgotten first
HINT = "compare the message with docs/protocol.md"
REMEDIES = {
    "frame_size": "send frames of the sizes that HELLO's spaces and lanes give; to change those, open a new session",
    "statistics": "send one row of finite statistics for each lane that ended in this STEP, and set bit 1",
    "value": "if a value is not finite or outside its categories, rebuild that lane and send its reset row",
    "reward": "rebuild a lane with such a reward and send its reset row, or scale rewards down",
    "bounds": "widen the Box in HELLO to the values that occur, or set inference.out_of_bounds to 'count' or 'clip'",
}


class RefusalReplies:
    """Counts the answers of each connection. Owned by the service's loop; bounded by MAX_ROUTES."""

    def __init__(self) -> None:
        self._told: dict[bytes, int] = {}

    def about_message(self, route: bytes, error: RemoteWireError) -> Error | None:
        """Return the answer to a message without a session; None if this connection has had MAX_ANSWERS."""
        told = self._told[route] = self._told.get(route, 0) + 1
        if len(self._told) > MAX_ROUTES:
            del self._told[next(iter(self._told))]
        if told > MAX_ANSWERS:
            return None
        return Error(
            code=error.code, scope="connection", session=0, nonce=0, retryable=True,
            message=f"refused: {error}"[:500], hint=HINT,
        )  # fmt: skip


def about_step(session: int, error: RemoteWireError, *, is_over: bool, retryable: bool) -> Error:
    """Return the answer to a refused STEP; `is_over` says that the session ends with it."""
    ending = "; the session is over" if is_over else ""
    return Error(
        code=error.code, scope="session", session=session, nonce=0, retryable=retryable,
        message=f"STEP refused: {error}"[:500] + ending, hint=REMEDIES.get(error.code, HINT),
    )  # fmt: skip
