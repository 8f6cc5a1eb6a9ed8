"""A service beside the conformance kit on a simulated network: the actor's own protocol code, broken where asked."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from seedbed.actor_svc.client import Finished, GroupClient, ResetLanes, Send, StartLanes, StepLanes
from seedbed.actor_svc.connection import ConnectionClient
from seedbed.actor_svc.envs import make_group
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.kit import ScriptedLife
from seedbed.services.tools.cli.env.life import Expected, Life, ServiceLink
from seedbed.shared.errors import RejectedError, RemoteWireError
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Bye, Hello, Message
from seedbed.shared.runtime.config import EnvConfig
from tests.support.simulated_network import NetworkFaults, SimulatedNetwork

TICK_S = 0.05
DELAY_S = 0.001  # of every message
ROUTE = b"peer"
OPTIONS = CheckOptions(lanes=2, groups=2, soak_steps=30, patience_s=4.0)
EXPECTED = Expected(env_id="seedbed.services.memory.env:make", groups=2, lanes=2)

Frames = list[bytes]


def as_it_is(message: Message, frames: Frames) -> list[Frames]:
    """Sends what it should."""
    return [frames]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRules:
    """How a service differs from a good one."""

    up: Callable[[Message, Frames], list[Frames]] = as_it_is  # what it sends instead of a message
    down: Callable[[Message, Frames], Frames] = lambda message, frames: frames  # what it makes of one; none: deaf to it
    dies_of: Callable[[Message | None], int | None] = lambda message: None  # exit status; None: unreadable
    resets_when_lost: bool = False
    dials_again: bool = True
    lanes: int = 2
    capabilities: tuple[str, ...] = ("reset",)


class ServiceInMemory:
    """Two groups on one connection."""

    def __init__(
        self, kind: type[Life] = ScriptedLife, broken: BrokenRules | None = None, options: CheckOptions = OPTIONS
    ) -> None:
        self.broken = broken or BrokenRules()
        self.network = SimulatedNetwork(faults=NetworkFaults(min_delay_s=DELAY_S, max_delay_s=DELAY_S))
        self.status: int | None = None  # exit status
        self.last_words = ""
        self._num_cuts = 0
        self._nonces = iter(range(1, 10_000))
        self.life = kind(
            ServiceLink(
                options=options, expected=EXPECTED, epoch=7, send=self._from_kit, cut=self._cut, stop=self._stop
            )
        )
        self._groups = [make_group(EnvConfig(id=EXPECTED.env_id), self.broken.lanes) for _ in range(2)]
        self._connection = ConnectionClient("here", 0.0)
        for index, group in enumerate(self._groups):
            hello = Hello(
                library_version="0", actor="check", incarnation=5, group=index, lanes=group.lanes, nonce=0,
                mode="train", spec=group.spec, seeding="lane", capabilities=self.broken.capabilities,
            )  # fmt: skip
            client = GroupClient(hello, lambda: next(self._nonces), reset_when_lost=self.broken.resets_when_lost)
            self._perform(self._connection.add(client, 0.0))
        self._perform(self._connection.connected(0.0))

    def run(self, seconds: float = 200.0) -> dict[str, Any]:
        """Until the life is over; results by rule."""
        while not self.life.is_done:
            assert self._now < seconds, "the kit does not end"
            self.network.run(TICK_S)
            if self.status is None:
                self._perform(self._connection.poll(self._now))
            self.life.poll(self._now)
            if self.status is not None:  # known once what it had sent is there
                self.network.send("up", self.life.exited, self.status, self.last_words)
        return {item.name: item for item in self.life.all_results()}

    @property
    def _now(self) -> float:
        return self.network.now

    def _arrive_up(self, frames: Frames) -> None:
        self.life.receive(ROUTE, frames, self._now)

    def _arrive_down(self, num_cuts: int, frames: Frames) -> None:
        if self.status is not None or num_cuts != self._num_cuts:
            return
        try:
            message: Message | None = decode(frames[0])
        except RemoteWireError:
            message = None
        self.status = self.broken.dies_of(message)
        frames = frames if message is None else self.broken.down(message, frames)
        if message is not None and frames and self.status is None:
            with contextlib.suppress(RemoteWireError):  # an ACT of a wrong size is dropped
                self._perform(self._connection.receive(decode(frames[0]), frames[1:], self._now))

    def _perform(self, actions: Sequence[object]) -> None:
        for action in actions:
            if isinstance(action, Send):
                frames = [encode(action.message), *map(bytes, action.payload)]
                self._send_up(action.message, frames)
            elif isinstance(action, Finished):
                bye = Bye(session=0, reason="stopped")
                self._send_up(bye, [encode(bye)])
                self.status = 0
            elif isinstance(action, StartLanes | ResetLanes | StepLanes):
                group = self._groups[action.group]
                rows = group.step_frames(action.payload) if isinstance(action, StepLanes) else group.reset(action.seed)
                client = self._connection.groups[action.group]
                self._perform(client.submit(rows.payload, rows.bits, self._now))
            else:
                error = getattr(action, "error", None)
                assert isinstance(error, RejectedError)
                self.status, self.last_words = error.exit_code, str(error)

    def _send_up(self, message: Message, frames: Frames) -> None:
        for changed in self.broken.up(message, frames):
            self.network.send("up", self._arrive_up, changed)

    def _from_kit(self, route: bytes, frames: Sequence[bytes]) -> bool:
        self.network.send("down", self._arrive_down, self._num_cuts, [bytes(frame) for frame in frames])
        return self.status is None

    def _cut(self) -> None:
        """What is on its way down is lost; the service notices a little later."""
        self._num_cuts += 1
        self.network.later(DELAY_S, self._lose_connection)

    def _lose_connection(self) -> None:
        self._connection.disconnected(self._now)
        if self.broken.dials_again:
            self._perform(self._connection.connected(self._now))

    def _stop(self) -> None:
        for client in self._connection.groups:
            self._perform(client.leave("stopped"))
        self.status = 0
