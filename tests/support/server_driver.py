"""Inference's server, driven by messages and numbers for time, for tests of what it decides."""

from collections.abc import Sequence

import gymnasium
import numpy as np

from seedbed.inference_svc.actions import ForgetState, FreezeWeights, RunBatches, SendToEnvironment
from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.counters import InferenceCounters
from seedbed.inference_svc.engine import LaneBlock
from seedbed.inference_svc.group import Group
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.server import Server
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import (
    Evaluation,
    Hello,
    Message,
    Ping,
    Pong,
    ProducerHello,
    Step,
    StepBits,
    Welcome,
    pack_version,
)
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import step_layout
from tests.support.specs import make_spec
from tests.support.unroll_link import credit, producer_welcome

T = 3
SPEC = make_spec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3))


class ServerDriver:
    """A server whose actions are recorded when a test looks; batches are answered when the test says so."""

    def __init__(self, *, lockstep_groups: int = 0) -> None:
        self.counters = InferenceCounters()
        self.learner_sessions = LearnerSessions(name="i", incarnation=7, library_version="0", load=lambda: ())
        self.link = self.learner_sessions.main
        self.now = 0.0  # of the newest event
        self.owners: dict[bytes, str] = {}
        self.gone: set[bytes] = set()
        self._sent: list[tuple[bytes, Message]] = []
        self._batches: list[Sequence[Group]] = []
        self._forgotten: list[LaneBlock] = []
        self._freezes = 0
        self.server = Server(
            InferenceConfig(max_lanes=64, lockstep_groups=lockstep_groups), 99, self.learner_sessions, self.counters,
            owner=lambda route: self.owners.get(route, ""),
        )  # fmt: skip

    def perform(self) -> None:
        """Record what the server has decided."""
        for action in self.server.take_actions():
            if isinstance(action, SendToEnvironment):
                self._sent.append((action.route, decode(bytes(action.frames[0]))))
                if action.route in self.gone:
                    self.server.unroutable(action.route, self.now)
            elif isinstance(action, RunBatches):
                self._batches.append(action.groups)
            elif isinstance(action, ForgetState):
                self._forgotten.append(action.lanes)
            elif isinstance(action, FreezeWeights):
                self._freezes += 1

    @property
    def sent(self) -> list[tuple[bytes, Message]]:
        self.perform()
        return self._sent

    @property
    def batches(self) -> list[Sequence[Group]]:
        self.perform()
        return self._batches

    @property
    def forgotten(self) -> list[LaneBlock]:
        self.perform()
        return self._forgotten

    @property
    def pins(self) -> int:
        self.perform()
        return self._freezes

    def serve(self, lanes: int = 1000, replica: int = 0) -> None:
        self.server.serve(RecordSpec(SPEC, T), "run", 1, replica=replica)
        self.server.weights_changed(pack_version(1, 5), 0.0)
        self.link.connected(0.0)
        hello = decode(bytes(self.link.poll(0.0)[0][0]))
        assert isinstance(hello, ProducerHello)
        self.link.receive(producer_welcome(nonce=hello.nonce, unroll_length=T), [], 0.0)
        self.grant(lanes)

    def grant(self, through: int, evaluation: Evaluation | None = None) -> None:
        granted = credit(through, evaluation=evaluation)
        self.link.receive(granted, [], 0.0)
        self.server.credited(granted, 0.0)

    def tell(self, message: Message, payload: Sequence[bytes] = (), route: bytes = b"r", now: float = 0.0) -> None:
        self.now = now
        self.server.receive(route, [encode(message), *payload], now)
        self.server.launch(now)
        self.perform()

    def hello(self, group: int = 0, mode: str = "train", lanes: int = 2, route: bytes = b"r") -> Welcome:
        self.tell(hello(group, mode, lanes), route=route)
        answer = self.sent[-1][1]
        assert isinstance(answer, Welcome)
        return answer

    def step(
        self, session: int, seq: int, flags: Sequence[int] = (0, 0), now: float = 0.0, route: bytes = b"r"
    ) -> None:
        ended = sum(bool(flag & 3) for flag in flags)
        payload = [*rows(seq, flags), *([np.ones((ended, 2), np.float32).tobytes()] if ended else [])]
        bits = int(StepBits.STATISTICS) if ended else 0
        self.tell(Step(session=session, seq=seq, bits=bits), payload, route, now)

    def answer(self, now: float = 0.0) -> Sequence[Group]:
        groups = self.batches.pop(0)
        payloads = [[bytes(frame) for frame in group.lanes.act_layout.allocate()] for group in groups]
        self.now = now
        self.server.acted(groups, payloads, [self.server.version] * len(groups), now)
        self.perform()
        return groups

    def last(self) -> Message:
        return self.sent[-1][1]

    def state_of(self, session: int) -> int:
        self.tell(Ping(sent_ms=1))
        pong = self.last()
        assert isinstance(pong, Pong)
        return {report.session: report.state for report in pong.sessions}[session]


def hello(group: int = 0, mode: str = "train", lanes: int = 2) -> Hello:
    return Hello(
        library_version="0", actor="a", incarnation=1, group=group, lanes=lanes, nonce=5, mode=mode, spec=SPEC,
        capabilities=("reset",),
    )  # fmt: skip


def rows(value: int, flags: Sequence[int]) -> list[bytes]:
    layout = step_layout(SPEC, len(flags))
    frames = layout.allocate()
    observation, reward, flag = layout.views(frames)
    observation[...], reward[...], flag[...] = value, value, flags
    return [bytes(frame) for frame in frames]
