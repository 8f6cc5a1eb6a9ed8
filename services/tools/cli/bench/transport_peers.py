"""The processes of `bench transport`: a server that answers at once, and clients that never wait.

Both run the code that services run: reactor, endpoints and codec; sessions at the server, connection and groups at the
client. Observations are copied once at the server, as inference does; actions are constant.
"""

import asyncio
import json
import random
import secrets
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gymnasium
import numpy as np
import uvloop

from seedbed.actor_svc.client import GroupClient, Send, StartLanes, StepLanes
from seedbed.actor_svc.connection import ConnectionClient
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keys import bind_keys, dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from seedbed.shared.protocol.codec import decode, encode, encode_act
from seedbed.shared.protocol.layout import Layout
from seedbed.shared.protocol.messages import Hello, Ping, Step, Welcome
from seedbed.shared.protocol.rows import EnvSpec, Flags, act_layout, step_layout
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict
from seedbed.shared.protocol.spaces import space_from_gymnasium

OBSERVATION_BYTES = 64
START_S = 10.0
BEAT_S = 0.2


def make_spec(observation_bytes: int) -> EnvSpec:
    """An environment with float32 observations of this size and four actions."""
    return EnvSpec(
        env_id="bench:transport",
        observation=space_from_gymnasium(gymnasium.spaces.Box(-np.inf, np.inf, (observation_bytes // 4,), np.float32)),
        action=space_from_gymnasium(gymnasium.spaces.Discrete(4)),
    )


SPEC = make_spec(OBSERVATION_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What the server did in all."""

    requests: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReport:
    """What a client did in the second half of its time."""

    requests: int
    seconds: float
    latency_p50_s: float
    latency_p99_s: float


@dataclass(frozen=True, slots=True)
class Served:
    """What the server keeps for a session."""

    layout: Layout  # of its STEPs
    num_frames: int  # of their rows; a statistics frame may follow
    actions: bytes  # zeros, of its ACTs' size


class TransportServer:
    """Sessions behind a router; STEPs are answered when the socket has been emptied or a batch is full.

    It serves any specification whose ACTs fit one frame.
    """

    def __init__(self, reactor: Reactor, keys: Path | None) -> None:
        self.table = SessionTable(secrets.randbits(31), 1, "bench")
        self.requests = 0
        self._loop = reactor.loop
        self._pending: list[Session] = []
        self._staging = bytearray()
        self.router = Router(
            reactor,
            "tcp://127.0.0.1:0",
            on_message=self._receive,
            on_drained=self._answer,
            keys=bind_keys(keys, Role.INFERENCE),
        )

    def _receive(self, route: bytes, frames: list[bytes]) -> None:
        message, now = decode(frames[0]), self._loop.time()
        kind = type(message)
        if kind is Step:
            assert isinstance(message, Step)
            session = self.table.sessions.get(message.session)
            if session is not None:
                served: Served = session.attached
                served.layout.check(frames[1 : 1 + served.num_frames])
            verdict = self.table.step(message, route, now)
            if verdict is StepVerdict.ACCEPT and session is not None:
                start = 0
                for frame in frames[1 : 1 + served.num_frames]:
                    self._staging[start : start + len(frame)] = frame
                    start += len(frame)
                self._pending.append(session)
            elif verdict is StepVerdict.CACHED and session is not None and session.reply is not None:
                self.router.send(route, session.reply)
            elif verdict is StepVerdict.CHALLENGE:
                self.router.send(route, [encode(self.table.challenge(message.session))])
        elif kind is Hello:
            assert isinstance(message, Hello)
            layout = step_layout(message.spec, message.lanes)
            actions = bytes(act_layout(message.spec, message.lanes).num_bytes)
            self._staging = bytearray(max(len(self._staging), layout.num_bytes))
            answer = self.table.hello(message, route, now)
            if isinstance(answer, Welcome):
                self.table.sessions[answer.session].attached = Served(layout, len(layout.frame_bytes), actions)
            self.router.send(route, [encode(answer)])
        elif kind is Ping:
            assert isinstance(message, Ping)
            self.router.send(route, [encode(self.table.ping(message, route, now))])

    def _answer(self) -> None:
        pending, self._pending = self._pending, []
        now = self._loop.time()
        for session in pending:
            frames = [encode_act(session.id, session.last_seq, 1), session.attached.actions]
            self.table.answer(session, frames, now)
            self.router.send(session.route, frames)
        self.requests += len(pending)


class Client:
    """Groups on one connection, each sending its next STEP as soon as it has its ACT, or `period_s` apart.

    A period varies by half either way around that mean, so that STEPs of different groups meet by chance, not for ever.
    """

    def __init__(
        self, reactor: Reactor, address: str, groups: int, lanes: int, spec: EnvSpec = SPEC, keys: Path | None = None,
        *, mode: str = "play", period_s: float = 0.0,
    ) -> None:  # fmt: skip
        self._spec, self._mode, self._period_s = spec, mode, period_s
        self.latencies_s: list[float] = []
        self.begun = asyncio.Event()
        self.served_by = [0] * groups  # server_epoch of the service that sent the newest ACT of each group; 0: none did
        self._loop = reactor.loop
        layout = step_layout(spec, lanes)
        self._rows = [bytes(frame) for frame in layout.allocate()]
        first = layout.allocate()
        layout.views(first)[-1][:] = int(Flags.FIRST)
        self._first_rows = [bytes(frame) for frame in first]
        self._sent_at = [0.0] * groups
        self._due_at = [self._loop.time() + random.random() * period_s for _ in range(groups)]  # of the next STEP
        self._connection = ConnectionClient(address, self._loop.time())
        self._groups = [self._make_group(number, lanes) for number in range(groups)]
        self._dealer = Dealer(
            reactor,
            address,
            on_message=self._receive,
            on_event=self._changed,
            keys=dial_keys(keys, Role.ENVIRONMENT, Role.INFERENCE),
        )

    async def beat(self) -> None:
        """PINGs and repeated HELLOs, for ever."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._perform(self._connection.poll(self._loop.time()))

    def _make_group(self, number: int, lanes: int) -> GroupClient:
        hello = Hello(
            library_version="0", actor="bench", incarnation=secrets.randbits(52), group=number, lanes=lanes, nonce=0,
            mode=self._mode, spec=self._spec,
        )  # fmt: skip
        return GroupClient(hello, lambda: random.getrandbits(52) | 1)

    def _changed(self, event: str) -> None:
        now = self._loop.time()
        if event == "connected":
            for group in self._groups:
                if group not in self._connection.groups:
                    self._connection.add(group, now)
            self._perform(self._connection.connected(now))
        elif event == "disconnected":
            self._connection.disconnected(now)

    def _receive(self, frames: list[bytes]) -> None:
        self._perform(self._connection.receive(decode(frames[0]), frames[1:], self._loop.time()))

    def _perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            if type(action) is Send:
                self._dealer.send([encode(action.message), *action.payload])
            elif type(action) is StepLanes:
                self.latencies_s.append(time.perf_counter() - self._sent_at[action.group])
                self.served_by[action.group] = self._groups[action.group].server_epoch
                self.begun.set()
                self._submit_when_due(action.group, self._rows)
            elif type(action) is StartLanes:
                self._submit_when_due(action.group, self._first_rows)

    def _submit_when_due(self, group: int, rows: Sequence[bytes]) -> None:
        """Submit a group's rows, now or when its period is over."""
        now = self._loop.time()
        due_at = self._due_at[group]
        self._due_at[group] = max(now - self._period_s, due_at) + self._period_s * (0.5 + random.random())
        if due_at > now:
            self._loop.call_at(due_at, self._submit, group, rows)
        else:
            self._submit(group, rows)

    def _submit(self, group: int, rows: Sequence[bytes]) -> None:
        self._sent_at[group] = time.perf_counter()
        self._perform(self._groups[group].submit(rows, 0, self._loop.time()))


async def input_ended() -> None:
    """Wait until standard input ends, by which whoever started this process asks it to report and leave."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())


async def serve(keys: Path | None) -> ServerReport:
    """Say the address, serve until standard input ends."""
    with Reactor() as reactor:
        server = TransportServer(reactor, keys)
        print(server.router.endpoint, flush=True)
        started = time.process_time()
        await input_ended()
        return ServerReport(requests=server.requests, cpu_s=time.process_time() - started)


async def drive(
    address: str,
    groups: int,
    lanes: int,
    seconds: float,
    *,
    spec: EnvSpec = SPEC,
    start_s: float = START_S,
    keys: Path | None = None,
) -> ClientReport:
    """Step for so long, once the first step was answered within `start_s`; report on the second half."""
    with Reactor() as reactor:
        client = Client(reactor, address, groups, lanes, spec, keys)
        beat = asyncio.create_task(client.beat(), name="beat")
        async with asyncio.timeout(start_s):
            await client.begun.wait()
        await asyncio.sleep(seconds / 2)
        client.latencies_s.clear()
        started = time.perf_counter()
        await asyncio.sleep(seconds / 2)
        latencies, elapsed = np.asarray(client.latencies_s), time.perf_counter() - started
        beat.cancel()
    if not len(latencies):
        raise SystemExit("no step was answered")
    p50, p99 = np.percentile(latencies, [50, 99])
    return ClientReport(requests=len(latencies), seconds=elapsed, latency_p50_s=float(p50), latency_p99_s=float(p99))


def main(argv: Sequence[str]) -> int:
    """`server LOOP KEYS` or `client LOOP KEYS ADDRESS GROUPS LANES BYTES SECONDS`; KEYS may be empty.

    The report goes to standard output as JSON.
    """
    role, loop, folder, *words = argv
    keys = Path(folder) if folder else None
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if loop == "uvloop" else None) as runner:
        report: ServerReport | ClientReport
        if role == "server":
            report = runner.run(serve(keys))
        else:
            address, groups, lanes, size, seconds = words
            spec = make_spec(int(size))
            report = runner.run(drive(address, int(groups), int(lanes), float(seconds), spec=spec, keys=keys))
    print(json.dumps(asdict(report)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
