"""The learner's socket: messages of producers go to their sessions, and what these answer is sent."""

from collections.abc import Callable, Iterable
from time import monotonic

from seedbed.learner_svc.config import LearnerConfig
from seedbed.learner_svc.link.producer_sessions import (
    Action,
    EpisodesReceived,
    ProducerSessions,
    SendToProducer,
    SpecificationReceived,
    UnrollReceived,
)
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.keys import bind_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.reports import Reports
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from seedbed.shared.runtime.refusal_log import RefusalLog
from seedbed.shared.runtime.service import Service

Received = SpecificationReceived | UnrollReceived | EpisodesReceived


class ProducerSocket:
    """Owned by the learner's loop; memory: libzmq's queues.

    Args:
      on_received: takes what is not only to be answered.
      on_drained: called when all messages that have arrived were handled.
      now: the loop's time, seconds.
    """

    def __init__(
        self, reactor: Reactor, service: Service, config: LearnerConfig, producers: ProducerSessions, *,
        on_received: Callable[[Received], None], on_drained: Callable[[], None], now: Callable[[], float] = monotonic,
    ) -> None:  # fmt: skip
        self.is_listening = True  # False: producers are not answered yet, and will ask again
        self._service, self._producers, self._on_received, self._now = service, producers, on_received, now
        self._router = Router(
            reactor,
            config.bind,
            on_message=self._receive,
            on_drained=on_drained,
            max_frame_bytes=config.max_frame_bytes,
            keys=bind_keys(service.runtime.keys, Role.LEARNER),
            on_refused=RefusalLog(service.metrics, service.log),
            on_revoked=self._revoked,
        )
        self._reports = Reports(service, self._router.send, self._router.user_id)

    @property
    def endpoint(self) -> str:
        """The address that it is bound to."""
        return self._router.endpoint

    def is_drained(self) -> bool:
        """Whether every message that has arrived was handled."""
        return self._router.is_drained()

    def perform(self, actions: Iterable[Action]) -> None:
        """Send what is to be sent, and hand on the rest."""
        for action in actions:
            if not isinstance(action, SendToProducer):
                self._on_received(action)
            elif not self._router.send(action.route, action.frames):
                self._producers.unroutable(action.route, self._now())

    def close(self, linger_ms: int) -> None:
        """Unbind and close; what is queued may still leave for `linger_ms`."""
        self._router.close(linger_ms)

    def _receive(self, route: bytes, frames: list[bytes]) -> bool:
        """Handle a message; return whether it was useful: a new unroll, new episodes, or a request for new weights."""
        try:
            if self._reports.take(route, frames) or not self.is_listening:
                return False
        except RemoteWireError:
            self._producers.refused_messages += 1
            return False
        actions = self._producers.receive(route, frames, self._now())
        self.perform(actions)
        return any(not isinstance(action, SendToProducer) or action.is_useful for action in actions)

    def _revoked(self, routes: list[bytes]) -> None:
        sends = self._producers.revoke(routes)
        self._service.log.warning("keys_revoked", connections=len(routes), sessions=len(sends))
        self.perform(sends)
