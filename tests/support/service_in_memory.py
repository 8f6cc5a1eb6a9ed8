"""A service beside the conformance kit, without sockets: the actor's own protocol code, and time that is a number."""

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from seedbed.actor_svc.client import Finished, GroupClient, ResetLanes, Send, StartLanes, StepLanes
from seedbed.actor_svc.connection import ConnectionClient
from seedbed.actor_svc.envs import make_group
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.kit import Drills
from seedbed.services.tools.cli.env.life import Expected, Life, Wires
from seedbed.shared.errors import RejectedError, RemoteWireError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Bye, Hello, Message
from seedbed.shared.runtime.config import EnvConfig

TICK_S = 0.05
MESSAGES_A_TICK = 200
ROUTE = b"peer"
OPTIONS = CheckOptions(lanes=2, groups=2, soak_steps=30, patience_s=4.0)
EXPECTED = Expected(env_id="seedbed.services.memory.env:make", groups=2, lanes=2)

Frames = list[bytes]


def as_it_is(message: Message, frames: Frames) -> list[Frames]:
    """Sends what it should."""
    return [frames]


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How a service differs from a good one."""

    up: Callable[[Message, Frames], list[Frames]] = as_it_is  # what it sends instead of a message
    down: Callable[[Message, Frames], Frames] = lambda message, frames: frames  # what it makes of one; none: deaf to it
    dies_of: Callable[[Message | None], int | None] = lambda message: None  # exit status; None: unreadable
    resets_when_lost: bool = False
    dials_again: bool = True
    lanes: int = 2
    capabilities: tuple[str, ...] = ("reset",)


class Peer:
    """Two groups on one connection, pumped by `run`."""

    def __init__(
        self, kind: type[Life] = Drills, faults: Faults | None = None, options: CheckOptions = OPTIONS
    ) -> None:
        self.faults = faults or Faults()
        self.now = 0.0
        self.status: int | None = None
        self.last_words = ""
        self._down: deque[Frames] = deque()
        self._up: deque[Frames] = deque()
        self._is_cut = False
        self._nonces = iter(range(1, 10_000))
        self.life = kind(options, EXPECTED, Wires(send=self._from_kit, cut=self._cut, stop=self._stop), epoch=7)
        self._groups = [make_group(EnvConfig(id=EXPECTED.env_id), self.faults.lanes) for _ in range(2)]
        self._connection = ConnectionClient("here", 0.0)
        for index, group in enumerate(self._groups):
            hello = Hello(
                library_version="0", actor="check", incarnation=5, group=index, lanes=group.lanes, nonce=0,
                mode="train", spec=group.spec, seeding="lane", capabilities=self.faults.capabilities,
            )  # fmt: skip
            client = GroupClient(hello, lambda: next(self._nonces), reset_when_lost=self.faults.resets_when_lost)
            self._perform(self._connection.add(client, 0.0))
        self._perform(self._connection.connected(0.0))

    def run(self, seconds: float = 200.0) -> dict[str, Any]:
        """Until the life is over; results by rule."""
        while not self.life.is_done:
            assert self.now < seconds, "the kit does not end"
            self.now += TICK_S
            self._exchange()
            if self._is_cut:
                self._is_cut = False
                self._connection.disconnected(self.now)
                if self.faults.dials_again:
                    self._perform(self._connection.connected(self.now))
            if self.status is None:
                self._perform(self._connection.poll(self.now))
            self.life.poll(self.now)
            if self.status is not None:
                self.life.exited(self.status, self.last_words)
        return {item.name: item for item in self.life.all_results()}

    def _exchange(self) -> None:
        """What is on its way, and the answers to it, until both are quiet or it is late."""
        for _ in range(MESSAGES_A_TICK):
            if self._up:
                self.life.receive(ROUTE, self._up.popleft(), self.now)
            if self._down:
                self._read(self._down.popleft())

    def _read(self, frames: Frames) -> None:
        if self.status is not None:
            return
        try:
            message: Message | None = decode(frames[0])
        except RemoteWireError:
            message = None
        self.status = self.faults.dies_of(message)
        frames = frames if message is None else self.faults.down(message, frames)
        if message is not None and frames and self.status is None:
            with contextlib.suppress(RemoteWireError):  # an ACT of a wrong size is dropped
                self._perform(self._connection.receive(decode(frames[0]), frames[1:], self.now))

    def _perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, Send):
                frames = [encode(action.message), *map(bytes, action.payload)]
                self._up.extend(self.faults.up(action.message, frames))
            elif isinstance(action, Finished):
                bye = Bye(session=0, reason="stopped")
                self._up.extend(self.faults.up(bye, [encode(bye)]))
                self.status = 0
            elif isinstance(action, StartLanes | ResetLanes | StepLanes):
                group = self._groups[action.group]
                rows = group.step_frames(action.payload) if isinstance(action, StepLanes) else group.reset(action.seed)
                client = self._connection.groups[action.group]
                self._perform(client.submit(rows.payload, rows.bits, self.now))
            else:
                error = getattr(action, "error", None)
                assert isinstance(error, RejectedError)
                self.status, self.last_words = error.exit_code, str(error)

    def _from_kit(self, route: bytes, frames: Sequence[bytes]) -> bool:
        self._down.append([bytes(frame) for frame in frames])
        return self.status is None

    def _cut(self) -> None:
        self._down.clear()
        self._is_cut = True

    def _stop(self) -> None:
        for client in self._connection.groups:
            self._perform(client.leave("stopped"))
        self._exchange()
        self.status = 0
