"""A learner that is started on a finished run: it does not train, and answers every producer with BYE."""

import asyncio

from seedbed.learner_svc.config import LearnerConfig
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.net.keys import bind_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Bye, ProducerHello
from seedbed.shared.runtime.linger import LingerTimer
from seedbed.shared.runtime.refusal_log import RefusalLog
from seedbed.shared.runtime.service import Service


async def tell_finished(config: LearnerConfig, service: Service) -> None:
    """Answer the HELLO of each inference service with BYE(run_finished), for `learner.finished_s` at most."""
    loop = asyncio.get_running_loop()
    farewell = LingerTimer(config.finished_s, loop.time())
    if farewell.is_over(loop.time()):
        return

    def receive(route: bytes, frames: list[bytes]) -> None:
        try:
            message = decode(frames[0])
        except RemoteWireError:
            return
        if isinstance(message, ProducerHello):
            farewell.heard(loop.time())
            router.send(route, [encode(Bye(session=0, reason="run_finished"))])

    with Reactor() as reactor:
        router = Router(
            reactor,
            config.bind,
            on_message=receive,
            max_frame_bytes=config.max_frame_bytes,
            keys=bind_keys(service.runtime.keys, Role.LEARNER),
            on_refused=RefusalLog(service.metrics, service.log),
        )
        try:
            service.ready(endpoint=router.endpoint)
            await service.linger(farewell.is_over)
        finally:
            router.close(linger_ms=500)
