"""An inference service without a policy, on real sockets: it answers every STEP with zeros, or as a test says."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from seedbed.shared.net.keys import Role, bind_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.router import Router
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, ActBits, Bye, Hello, Message, Ping, Reject, Step, Welcome
from seedbed.shared.protocol.rows import act_layout, step_layout
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict
from tests.support.heard import Changes


class InferenceDouble(Changes):
    """Binds any free port, or the one given; counts what it accepts, and wakes who waits for a number of steps.

    Args:
      refusal: answer every HELLO with this (code, retryable) REJECT.
      reset_at: ask for a reset, in place of actions, with the answer to this seq.
      is_mute: answer no STEP.
      keys: a folder of keys for its link.
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
        keys: Path | None = None,
    ) -> None:
        super().__init__()
        self.table = SessionTable(epoch, 1, "run-a")
        self.hellos: list[Hello] = []
        self.num_resent = 0  # STEPs that came again
        self.byes: list[Bye] = []
        self.firsts: list[tuple[int, bool]] = []  # (group, all rows are reset rows) for each accepted STEP
        self.values: list[float] = []  # the first number of the first lane's observation in each
        self.load: dict[str, float] = {}
        self._refusal, self._reset_at, self._is_mute = refusal, reset_at, is_mute
        self._router = Router(reactor, bind, on_message=self._receive, keys=bind_keys(keys, Role.INFERENCE))
        self.address = self._router.endpoint

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
        self.tell()

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
        self.num_resent += verdict in (StepVerdict.PENDING, StepVerdict.CACHED)
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


class InferenceByHand(InferenceDouble):
    """Answers nothing by itself: a test takes one connection's messages one by one, and sends what it likes."""

    def __init__(self, reactor: Reactor, *, keys: Path | None = None) -> None:
        super().__init__(reactor, keys=keys)
        self._inbox: asyncio.Queue[tuple[Message, list[bytes]]] = asyncio.Queue()
        self._route = b""  # of the connection that was heard last

    @property
    def hello(self) -> Hello:
        """The last one taken."""
        return self.hellos[-1]

    def send(self, message: Message, *payload: bytes) -> None:
        """To the connection that was heard last."""
        self.send_frames([encode(message), *payload])

    def send_frames(self, frames: Sequence[bytes]) -> None:
        """What no codec would write."""
        assert self._router.send(self._route, frames)

    async def take(self) -> tuple[Message, list[bytes]]:
        """The next message and its payload."""
        async with asyncio.timeout(10.0):
            return await self._inbox.get()

    async def take_ping(self) -> Ping:
        """The very next message, which is a PING."""
        message, _ = await self.take()
        assert isinstance(message, Ping), message
        return message

    async def take_hello(self) -> Hello:
        """The next HELLO; nothing but PINGs comes before it."""
        message, _ = await self._take_after_pings()
        assert isinstance(message, Hello), message
        self.hellos.append(message)
        return message

    async def take_step(self) -> tuple[Step, list[bytes]]:
        """The next STEP and its payload; nothing but PINGs comes before it."""
        message, payload = await self._take_after_pings()
        assert isinstance(message, Step), message
        return message, payload

    async def begin(self) -> tuple[Step, list[bytes]]:
        """HELLO, WELCOME, the first STEP."""
        await self.take_hello()
        self.send(self.welcome())
        return await self.take_step()

    def welcome(self, **changes: object) -> Welcome:
        """An answer to the last HELLO taken: session 5, a short beat."""
        welcome = Welcome(
            nonce=self.hello.nonce, session=5, server_epoch=1, protocol=1, run_id="run-a", capabilities=("reset",),
            beat_s=0.05, lease_s=10.0, seed=1, resumed=False, next_seq=0,
        )  # fmt: skip
        return replace(welcome, **changes)  # type: ignore[arg-type]

    def act(self, step: Step, actions: Sequence[int], *, reset_seed: int | None = None) -> None:
        """Answer a STEP of a discrete action space."""
        bits = 0 if reset_seed is None else int(ActBits.RESET)
        header = Act(session=step.session, seq=step.seq, policy_version=1, bits=bits, reset_seed=reset_seed or 0)
        self.send(header, b"".join(action.to_bytes(8, "little", signed=True) for action in actions))

    def _receive(self, route: bytes, frames: list[bytes]) -> None:
        self._route = route
        self._inbox.put_nowait((decode(frames[0]), frames[1:]))

    async def _take_after_pings(self) -> tuple[Message, list[bytes]]:
        while isinstance((found := await self.take())[0], Ping):
            pass
        return found
