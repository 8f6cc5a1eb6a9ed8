"""A producer for a real learner: sends unrolls of noise, counts what it gets, answers evaluations."""

import asyncio
import random
from collections.abc import Callable

import gymnasium
import numpy as np

from seedbed.inference_svc.learner_events import (
    CreditReceived,
    Refused,
    RunFinished,
    SpecificationRefused,
    WeightsReceived,
)
from seedbed.inference_svc.upstream import LearnerLink
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keys import DialKeys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec, episodes_layout
from tests.support.specs import make_spec

T, LANES = 4, 6
RETURN = 30.0  # of every episode


def a_spec(env_id: str = "CartPole-v1") -> EnvSpec:
    """CartPole's specification."""
    env = gymnasium.make("CartPole-v1")
    return make_spec(env.observation_space, env.action_space, env_id=env_id)


class ScriptedProducer:
    """One inference, as far as a learner can tell. Use it in a running loop."""

    def __init__(
        self, reactor: Reactor, address: str, spec: EnvSpec, keys: DialKeys | None = None, *, is_lockstep: bool = False
    ) -> None:
        self.spec = spec
        self.loop = asyncio.get_running_loop()
        self.link = LearnerLink(
            name="scripted", incarnation=random.getrandbits(50), library_version="0", load=lambda: (("lanes", 6.0),),
            is_lockstep=is_lockstep,
        )  # fmt: skip
        self.link.introduce(spec, self.loop.time())
        self.versions: list[int] = []
        self.refusals: list[str] = []  # codes, and messages about specifications
        self.is_finished = False
        self.trained_steps = 0
        self._answered = 0
        self._wanted_version = 0  # of the newest evaluation
        self.dealer = Dealer(reactor, address, on_message=self._receive, on_event=self._event, keys=keys)

    async def play(self, until: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Send unrolls as credit allows until something is the case."""
        async with asyncio.timeout(timeout_s):
            while not until():
                await asyncio.sleep(0.005)
                if self.versions and self.link.outbox.can_send(LANES) and not self.is_finished:
                    self._push()
                self._flush()

    def leave(self) -> None:
        """BYE."""
        self.dealer.send(self.link.bye("run_finished"))
        self.dealer.close(linger_ms=500)

    def _has(self, version: int) -> bool:
        return bool(self.versions) and self.versions[-1] >= version

    def _push(self) -> None:
        layout = RecordSpec(self.spec, T).layout(LANES)
        frames = layout.allocate()
        observation, reward, _flags, _action, log_prob, version = layout.views(frames)
        observation[...] = np.random.default_rng(1).normal(size=observation.shape)
        reward[...], log_prob[...], version[...] = 1.0, np.log(0.5), self.versions[-1]
        self.link.outbox.push(LANES, frames, actor="scripted")
        self._push_episodes(1, "train", 0, T * LANES)

    def _push_episodes(self, count: int, mode: str, evaluation: int, steps: int) -> None:
        layout = episodes_layout(self.spec, count)
        frames = layout.allocate()
        versions, statistics = layout.views(frames)
        versions[...], statistics[...] = self._wanted_version if evaluation else self.versions[-1], RETURN
        self.link.outbox.push_episodes(frames, count=count, acted_steps=steps, mode=mode, evaluation=evaluation)

    def _receive(self, frames: list[bytes]) -> None:
        for event in self.link.receive(decode(frames[0]), frames[1:], self.loop.time()):
            if isinstance(event, WeightsReceived):
                self.versions.append(event.version)
            elif isinstance(event, CreditReceived):
                self.trained_steps = event.credit.trained_steps
                wanted = event.credit.evaluation
                if wanted is not None and wanted.id != self._answered and self._has(wanted.version):
                    self._answered, self._wanted_version = wanted.id, wanted.version
                    self._push_episodes(3, "eval", wanted.id, 0)
            elif isinstance(event, RunFinished):
                self.is_finished = True
            elif isinstance(event, Refused):
                self.refusals.append(event.code)
            elif isinstance(event, SpecificationRefused):
                self.refusals.append(event.message)
        self._flush()

    def _event(self, event: str) -> None:
        (self.link.connected if event == "connected" else self.link.disconnected)(self.loop.time())
        self._flush()

    def _flush(self) -> None:
        for frames in self.link.poll(self.loop.time()):
            self.dealer.send(frames)
        while (outgoing := self.link.outbox.next_outgoing()) is not None:
            if not self.dealer.send([encode(outgoing.message), *outgoing.frames]):
                return
            self.link.outbox.sent(outgoing)
