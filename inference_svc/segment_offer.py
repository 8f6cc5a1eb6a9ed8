"""A link's segment of shared memory: offered in each greeting, used once the learner proves that it has it open."""

from collections.abc import Callable

from seedbed.shared.protocol.messages import ProducerWelcome, Weights
from seedbed.shared.protocol.segment import NoSegmentError, Segment


def no_segment() -> Segment:
    """Make no segment of shared memory. Raises: NoSegmentError, always."""
    raise NoSegmentError("inference.shared_memory_bytes is 0")


class SegmentOffer:
    """The segment of one link. Owned by inference's loop; at most one at a time."""

    def __init__(self, make: Callable[[], Segment]) -> None:
        """`make` makes a segment, or raises NoSegmentError."""
        self.segment: Segment | None = None  # offered in the newest HELLO, or in use
        self._make = make
        self._reason = ""  # why there is none
        self._is_refused = False

    def offer(self) -> Segment | None:
        """Return the segment to name in HELLO; one for each greeting, however often HELLO is repeated."""
        if self.segment is None and not self._is_refused:
            try:
                self.segment = self._make()
            except NoSegmentError as error:
                self._reason = str(error)
        return self.segment

    def settle(self, welcome: ProducerWelcome, *, is_needed: bool) -> Segment | None:
        """Return the segment that was offered if the learner has it open and it is needed; else give it up."""
        if self.segment is None:
            return None
        if is_needed and welcome.segment_secret == self.segment.secret:
            self.segment.withdraw()
            return self.segment
        self.drop()
        self._reason = "the learner cannot open the segment: it is on another host, has another /dev/shm or user"
        return None

    def refuse(self, reason: str) -> None:
        """Offer none from now on: what was lost with this one is sent again once a PONG shows that it misses."""
        self.drop()
        self._is_refused, self._reason = True, reason

    def drop(self) -> None:
        """Close the segment, if there is one."""
        if self.segment is not None:
            self.segment.close()
        self.segment = None

    def take_weights(self, message: Weights) -> bytes | None:
        """Return the weights that WEIGHTS says are in the segment; None if they are not, or not any more."""
        if self.segment is None or self.segment.id != message.segment:
            return None
        return self.segment.take_weights(message.version)

    def describe(self) -> dict[str, str]:
        """Return how unrolls travel, for the log, and why not through shared memory if they do not."""
        if self.segment is not None:
            return {"unrolls_by": "shared_memory"}
        return {"unrolls_by": "socket", "because": self._reason}
