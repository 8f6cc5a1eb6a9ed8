"""The segments of shared memory that inference services have offered: unrolls are read from them, weights written."""

from collections.abc import Callable
from dataclasses import replace

from seedbed.learner_svc.link.publish import WeightsReply
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.ledger import Producer
from seedbed.shared.protocol.messages import Get, ProducerHello, Unroll, Weights
from seedbed.shared.protocol.segment import OpenedSegment

MAX_SEGMENTS = 256  # that are open, a file descriptor each; further sessions use the socket


class ProducerSegments:
    """The open segments, at most one for each session. Owned by the learner's loop."""

    def __init__(self, open_segment: Callable[[int, int], OpenedSegment | None]) -> None:
        """`open_segment` opens a segment by its id and size, or returns None if it is not to be had here."""
        self._open = open_segment
        self._segments: dict[Producer, OpenedSegment] = {}

    def open(self, hello: ProducerHello, producer: Producer) -> int:
        """Open the segment that HELLO names, if it can be opened here; return its secret for WELCOME, or 0."""
        reader = self._segments.get(producer)
        if reader is None or reader.id != hello.segment:
            self.close(producer)
            may_open = hello.segment and len(self._segments) < MAX_SEGMENTS
            reader = self._open(hello.segment, hello.segment_bytes) if may_open else None
            if reader is not None:
                self._segments[producer] = reader
        return reader.secret if reader is not None else 0

    def read(self, producer: Producer, unroll: Unroll) -> bytes | None:
        """Return a copy of an unroll; None if its segment is of an earlier greeting: it may hold other rows by now.

        Raises: RemoteWireError if there is no such place; the segment is closed then.
        """
        reader = self._segments.get(producer)
        if reader is None or reader.id != unroll.segment:
            return None
        try:
            return reader.read(unroll.offset, unroll.length)
        except RemoteWireError:
            self.close(producer)
            raise

    def note_place(self, producer: Producer, get: Get) -> None:
        """Note where in its segment a producer wants the next weights. Raises: as `read`."""
        segment = self._segments.get(producer)
        if segment is not None and not get.exact:
            try:
                segment.request_weights(get.segment, get.offset, get.length)
            except RemoteWireError:
                self.close(producer)
                raise

    def frames_of(self, answer: WeightsReply, producer: Producer) -> list[bytes]:
        """Return what to send for an answer, without the weights if they could be put into the producer's segment."""
        message, segment = answer.message, self._segments.get(producer)
        if isinstance(message, Weights) and segment and segment.put_weights(message.version, answer.frames[0]):
            return [encode(replace(message, segment=segment.id))]
        return [encode(message), *answer.frames]

    def close(self, producer: Producer) -> None:
        """Close a session's segment, if it has one."""
        segment = self._segments.pop(producer, None)
        if segment is not None:
            segment.close()

    def close_all(self) -> None:
        """Close the segments of all sessions: no unroll can be read from them any more."""
        for producer in list(self._segments):
            self.close(producer)
