"""Inference's connections to the learner ranks besides the chief: one for each, over which a stream of unrolls leaves.

Their addresses are in the chief's WELCOME. Streams beyond the number of ranks, of a learner that had more of them, go
over the connection of another rank until all of their unrolls are acknowledged, and are then disconnected.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from seedbed.inference_svc.learner_events import CreditReceived, Refused, Welcomed
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.dialler import Dialler
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Message
from seedbed.shared.runtime.logs import Log

Dial = Callable[[str, Callable[[list[bytes]], None], Callable[[str], None]], Dialler]
CHIEF = 0
COMPLAIN_S = 10.0


class RankConnections:
    """Owned by inference's loop. Memory: a socket for each rank, and the outboxes of its stream.

    Args:
      sessions: of stream 0, which have the other streams.
      chief: the connection to rank 0.
      dial: makes a connection from an address and what is called with its messages and events.
      on_credit: called with the task that has new credit.
      on_refused_message: called for a message that is none.
    """

    def __init__(
        self, sessions: LearnerSessions, chief: Dialler, *, dial: Dial, on_credit: Callable[[str], None],
        on_refused_message: Callable[[], None], log: Log, now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._complain_at = math.inf  # finite while a rank is not connected
        self._on_refused_message = on_refused_message
        self._sessions, self._dial, self._on_credit, self._log, self._now = sessions, dial, on_credit, log, now
        self._diallers: dict[int, Dialler] = {CHIEF: chief}
        self._addresses: tuple[str, ...] = ()

    def follow(self, addresses: Sequence[str], chief_address: str) -> None:
        """Connect to the ranks that the chief names; `chief_address` is the one that it was reached at."""
        wanted = tuple(resolve_rank(address, chief_address) for address in addresses)
        if wanted == self._addresses:
            return
        now = self._now()
        for rank in [item for item in self._diallers if item != CHIEF]:
            self._diallers.pop(rank).close()
        for item in self._sessions.streams.values():
            item.disconnected(now)
        self._addresses = wanted
        self._sessions.set_ranks(len(wanted) + 1, now)
        for item in self._sessions.at_rank(CHIEF)[1:]:
            item.connected(now)
        for rank, address in enumerate(wanted, start=1):
            self._diallers[rank] = self._dial(address, partial(self._receive, rank), partial(self._event, rank))
        self._log.info("learner_ranks", number=len(wanted) + 1, addresses=list(wanted))

    def chief_event(self, event: str) -> None:
        """Pass on what happened to the chief's connection to the further streams over it."""
        self._event(CHIEF, event)

    def poll(self, now: float) -> None:
        """Send what is due over the further streams, and disconnect those that are finished."""
        if not self._sessions.streams:
            return
        for rank, dialler in self._diallers.items():
            for item in self._further(rank):
                for frames in item.poll(now):
                    dialler.send(frames)
        for item in self._sessions.leaving_streams():
            if item.main.welcome is not None:
                self._diallers[item.stream % self._sessions.num_ranks].send(
                    item.main.bye_of_session("stopped", item.main.welcome.session)
                )
            item.disconnected(now)
        self.send_unrolls()

    def send_unrolls(self) -> None:
        """Send the unrolls of the further streams as far as credit and sockets allow."""
        for rank, dialler in self._diallers.items():
            for item in self._further(rank):
                send_unrolls(item, dialler)

    def receive_over_chief(self, message: Message, payload: Sequence[bytes]) -> None:
        """Take a message that came over the chief's connection for the further streams over it."""
        for item in self._further(CHIEF):
            self._take(item, message, payload)

    def bye(self, reason: str) -> None:
        """Say BYE to every rank but the chief."""
        for rank, dialler in self._diallers.items():
            if rank != CHIEF:
                dialler.send(self._sessions.main.bye(reason))

    def complain(self, now: float) -> None:
        """Log what keeps ranks from being connected, every COMPLAIN_S: all ranks wait for one that gets no unrolls."""
        found = {rank: dialler.complaints(now) for rank, dialler in self._diallers.items() if rank != CHIEF}
        if not any(found.values()):
            self._complain_at = math.inf
            return
        self._complain_at = min(self._complain_at, now + COMPLAIN_S)
        if now >= self._complain_at:
            self._complain_at = now + COMPLAIN_S
            for rank, causes in found.items():
                for cause in causes:
                    self._log.warning("learner_rank_awaited", rank=rank, cause=cause)

    def close(self, linger_ms: int = 0) -> None:
        """Hang up the connections that were made here."""
        for rank, dialler in self._diallers.items():
            if rank != CHIEF:
                dialler.close(linger_ms)

    def _further(self, rank: int) -> list[LearnerSessions]:
        return [item for item in self._sessions.at_rank(rank) if item.stream]

    def _event(self, rank: int, event: str) -> None:
        now = self._now()
        for item in self._further(rank):
            if event == "connected":
                item.connected(now)
            elif event == "disconnected":
                item.disconnected(now)
        if rank != CHIEF and event != "connected":
            dialler = self._diallers.get(rank)
            self._log.warning("learner_rank_lost", rank=rank, cause=dialler.refusal if dialler is not None else "")
        self.poll(now)

    def _receive(self, rank: int, frames: list[bytes]) -> None:
        try:
            message = decode(frames[0])
        except RemoteWireError as error:
            self._on_refused_message()
            self._log.warning("learner_message_refused", error=str(error), rank=rank)
            return
        for item in self._further(rank):
            self._take(item, message, frames[1:])
        self.poll(self._now())

    def _take(self, item: LearnerSessions, message: Message, payload: Sequence[bytes]) -> None:
        for task, event in item.receive(message, payload, self._now()):
            if isinstance(event, Welcomed):
                self._log.info(
                    "learner_rank_found", stream=item.stream, epoch=event.welcome.epoch, task=task,
                    **item.of(task).link.describe_way(),
                )  # fmt: skip
            elif isinstance(event, CreditReceived):
                self._on_credit(task)
            elif isinstance(event, Refused):
                self._log.warning(
                    "learner_refused", code=event.code, message=event.message, hint=event.hint, task=task,
                    stream=item.stream,
                )  # fmt: skip
                self._sessions.bind_links()  # without the session of a task that was refused for good


def send_unrolls(sessions: LearnerSessions, dialler: Dialler) -> None:
    """Send the unrolls and episodes of one stream as far as credit and the socket allow."""
    for learner_session in sessions.all:
        outbox = learner_session.link.outbox
        while (outgoing := outbox.next_outgoing()) is not None:
            if not dialler.send([encode(outgoing.message), *outgoing.frames]):
                return
            outbox.sent(outgoing)


def resolve_rank(address: str, chief_address: str) -> str:
    """Return a rank's address in which the host `*` is replaced by that of the chief's address."""
    if not address.startswith("tcp://*:") or not chief_address.startswith("tcp://"):
        return address
    return f"{chief_address.rpartition(':')[0]}:{address.rpartition(':')[2]}"
