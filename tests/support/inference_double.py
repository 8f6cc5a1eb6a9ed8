"""An inference service without a policy: real sockets and sessions; it answers every STEP with zeros."""

import asyncio
from collections.abc import Callable

from seedbed.shared.net.endpoints import Router
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, ActBits, Bye, Hello, Ping, Reject, Step
from seedbed.shared.protocol.rows import act_layout, step_layout
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict


class InferenceDouble:
    """Binds any free port, or the one given; counts what it accepts, and wakes who waits for a number of steps.

    Args:
      refusal: answer every HELLO with this (code, retryable) REJECT.
      reset_at: ask for a reset, in place of actions, with the answer to this seq.
      is_mute: answer no STEP.
    """

    def __init__(
        self,
        reactor: Reactor,
        bind: str = "tcp://127.0.0.1:0",
        *,
        epoch: int = 1,
        refusal: tuple[str, bool] | None = None,
        reset_at: int = -1,
        is_mute: bool = False,
    ) -> None:
        self.table = SessionTable(epoch, 1, "run-a")
        self.hellos: list[Hello] = []
        self.resent = 0  # STEPs that came again
        self.byes: list[Bye] = []
        self.firsts: list[tuple[int, bool]] = []  # (group, all rows are reset rows) for each accepted STEP
        self.values: list[float] = []  # the first number of the first lane's observation in each
        self.load: dict[str, float] = {}
        self._refusal, self._reset_at, self._is_mute = refusal, reset_at, is_mute
        self._changed = asyncio.Event()
        self._router = Router(reactor, bind, on_message=self._receive)
        self.address = self._router.endpoint

    async def until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait for a condition on this double, looked at after each message."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def say_bye(self, reason: str) -> None:
        """To every connection, for all of its sessions."""
        for route in self.table.routes():
            self._router.send(route, [encode(Bye(session=0, reason=reason))])

    def close(self) -> None:
        """Hang up without a word."""
        self._router.close()

    def _receive(self, route: bytes, frames: list[bytes]) -> None:
        now = asyncio.get_running_loop().time()
        message = decode(frames[0])
        if isinstance(message, Hello):
            self._hello(message, route, now)
        elif isinstance(message, Ping):
            self.load = dict(message.load)
            self._router.send(route, [encode(self.table.ping(message, route, now))])
        elif isinstance(message, Bye):
            self.byes.append(message)
            self.table.bye(message, route, now)
        elif isinstance(message, Step):
            self._step(message, route, frames[1:], now)
        self._changed.set()

    def _hello(self, hello: Hello, route: bytes, now: float) -> None:
        self.hellos.append(hello)
        if self._refusal is None:
            answer = self.table.hello(hello, route, now)
        else:
            code, retryable = self._refusal
            answer = Reject(nonce=hello.nonce, code=code, retryable=retryable, message="a/0 differs", hint="change it")
        self._router.send(route, [encode(answer)])

    def _step(self, step: Step, route: bytes, payload: list[bytes], now: float) -> None:
        verdict = self.table.step(step, route, now)
        self.resent += verdict in (StepVerdict.PENDING, StepVerdict.CACHED)
        if verdict is StepVerdict.CHALLENGE:
            self._router.send(route, [encode(self.table.challenge(step.session))])
            return
        session = self.table.sessions[step.session]
        if verdict is StepVerdict.ACCEPT:
            layout = step_layout(session.hello.spec, session.lanes)
            count = len(layout.frame_bytes)
            layout.check(payload[:count])
            views = layout.views(payload[:count])
            flags = views[-1]
            self.values.append(float(views[0].flat[0]))
            self.firsts.append((session.hello.group, bool((flags & 4).all())))
            if not self._is_mute:
                self._answer(session, step.seq, now)
        if verdict in (StepVerdict.ACCEPT, StepVerdict.CACHED) and session.reply is not None:
            self._router.send(route, session.reply)

    def _answer(self, session: Session, seq: int, now: float) -> None:
        bits = int(ActBits.RESET) if seq == self._reset_at else 0
        header = encode(Act(session=session.id, seq=seq, policy_version=1, bits=bits, reset_seed=7))
        frames = act_layout(session.hello.spec, session.lanes).allocate()
        self.table.answer(session, [header, *map(bytes, frames)], now)
