"""Inference's decisions, driven by messages and numbers for time."""

from collections.abc import Sequence
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.actions import ForgetState, FreezeWeights, RunBatches, SendToEnvironment
from seedbed.inference_svc.config import InferenceConfig
from seedbed.inference_svc.counters import InferenceCounters
from seedbed.inference_svc.engine import LaneBlock
from seedbed.inference_svc.group import Group
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.inference_svc.server import Server
from seedbed.inference_svc.serving import ServedStatistics
from seedbed.inference_svc.unrolls import UnrollWriter
from seedbed.inference_svc.upstream import FormerWeightsReceived
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Credit,
    Error,
    Evaluation,
    Get,
    Hello,
    Message,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    RequestState,
    RunState,
    Step,
    StepBits,
    TaskEnv,
    Unroll,
    Weights,
    Welcome,
    pack_version,
)
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec, Flags, step_layout
from seedbed.shared.protocol.spaces import space_from_gymnasium

T = 3
SPEC = EnvSpec(
    env_id="test",
    observation=space_from_gymnasium(gymnasium.spaces.Box(-1, 1, (2,), np.float32)),
    action=space_from_gymnasium(gymnasium.spaces.Discrete(3)),
)


class World:
    """A server whose actions are recorded when a test looks; batches are answered when the test says so."""

    def __init__(self) -> None:
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
            InferenceConfig(max_lanes=64), 99, self.learner_sessions, self.counters,
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
        welcome = ProducerWelcome(
            nonce=hello.nonce, session=1, epoch=1, protocol=1, run_id="run", run_seed=1, spec_digest="d", beat_s=1,
            lease_s=10, unroll_length=T, next_seq=0, next_episodes_seq=0, state=RunState.TRAINING,
        )  # fmt: skip
        self.link.receive(welcome, [], 0.0)
        self.grant(lanes)

    def grant(self, through: int, evaluation: Evaluation | None = None) -> None:
        credit = Credit(
            session=1, epoch=1, granted_through=through, acked_through=0, episodes_acked_through=0,
            state=RunState.TRAINING, trained_steps=0, evaluation=evaluation,
        )  # fmt: skip
        self.link.receive(credit, [], 0.0)
        self.server.credited(credit, 0.0)

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


@pytest.fixture
def world() -> World:
    return World()


def test_before_weights_environments_wait_and_their_specification_goes_up(world: World) -> None:
    """HELLO before there is a policy is answered ERROR(starting, retryable), and the learner is told the spaces."""
    world.tell(hello())
    error = world.last()
    assert isinstance(error, Error)
    assert (error.code, error.retryable, error.nonce) == ("starting", True, 5)
    assert world.link.spec == SPEC


def test_a_specification_that_the_learner_refused_is_rejected_before_there_is_a_policy(world: World) -> None:
    """The environment hears the learner's words, and the next environment's specification goes up."""
    world.tell(hello())
    learner_says = Reject(nonce=0, code="spec", retryable=False, message="setting x: ours 1, theirs 2", hint="")
    world.link.spec = None
    world.link.refused[SPEC] = learner_says
    world.tell(hello())
    reject = world.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("spec", False)
    assert "setting x: ours 1, theirs 2" in reject.message
    assert "config.toml" in reject.hint
    other = replace(SPEC, env_id="other")
    world.tell(replace(hello(group=1), spec=other))
    assert isinstance(world.last(), Error)
    assert world.link.spec == other
    assert world.counters.hellos_refused == {"starting": 2, "spec": 1}


@pytest.mark.parametrize("name", ["episode/success", "normalised"])
def test_a_statistic_that_no_table_can_hold_is_rejected_by_name(world: World, name: str) -> None:
    """Before the learner hears of the environment: its name has other characters, or is one of the run's own."""
    spec = replace(SPEC, statistics=(*SPEC.statistics, name))
    world.tell(replace(hello(), spec=spec))
    reject = world.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("spec", False)
    assert repr(name) in reject.message
    assert world.link.spec is None


def test_another_version_is_rejected_before_there_is_a_policy(world: World) -> None:
    """Nothing else that it says is trusted, its specification neither."""
    world.tell(replace(hello(), protocol_min=7, protocol_max=7))
    reject = world.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("protocol", False)
    assert world.link.spec is None


def test_why_each_group_ended_is_counted(world: World) -> None:
    """By reason: what it said itself, silence, a closed connection, broken messages."""
    world.serve()
    sessions = [world.hello(group, route=b"%d" % group).session for group in range(4)]
    world.tell(Bye(session=sessions[0], reason="stopped"), route=b"0")
    world.tell(Bye(session=sessions[1], reason="any text that a peer likes"), route=b"1")
    for _ in range(5):
        world.tell(Step(session=sessions[2], seq=0, bits=0), [b"short"], route=b"2")
    world.gone.add(b"3")
    world.server.probe(0.0)
    world.perform()
    world.server.beat(4.0, drained=True, stalled_until=0.0)
    assert world.counters.groups_ended == {"stopped": 1, "bye": 1, "broken_messages": 1, "closed": 1}
    assert (world.server.num_sessions, world.server.used_slots) == (0, 0)


def test_who_keeps_sending_garbage_is_told_a_few_times_only(world: World) -> None:
    """Ten answers for a connection; the others are counted."""
    for _ in range(30):
        world.server.receive(b"r", [b"garbage"], 0.0)
    assert len(world.sent) == 10
    assert world.counters.refused_messages == 30


def test_observations_out_of_bounds_may_be_clipped(world: World) -> None:
    """What is written for the policy lies within the bounds, and the rows are counted."""
    world.server.config = InferenceConfig(max_lanes=64, out_of_bounds="clip")
    world.serve()
    session = world.hello().session
    for seq in range(3):  # an observation is its seq
        world.step(session, seq)
        writer = world.answer()[0].lanes.rows
    assert isinstance(writer, UnrollWriter)
    assert [float(row.max()) for row in writer.chunks[0].inputs[0][:3]] == [0, 1, 1]
    assert world.counters.out_of_bounds == 2


def test_other_spaces_are_rejected_by_name(world: World) -> None:
    """A group with other spaces than the policy's is told which leaf differs, and for good."""
    world.serve()
    other = replace(SPEC, observation=space_from_gymnasium(gymnasium.spaces.Box(-1, 1, (3,), np.float32)))
    world.tell(replace(hello(), spec=other))
    reject = world.last()
    assert isinstance(reject, Reject)
    assert not reject.retryable
    assert "float32[2]" in reject.message
    assert "float32[3]" in reject.message


def test_replicas_of_a_run_give_different_seeds() -> None:
    """The first group of each plays its own episodes with its own sampling noise."""
    seeds = set()
    for replica in (1, 2, 1):
        world = World()
        world.serve(replica=replica)
        seeds.add(world.hello().seed)
    assert len(seeds) == 2


def test_a_step_is_acted_on_once_and_a_resend_gets_the_cached_act(world: World) -> None:
    """The repeated STEP reaches no batch; after the answer it gets the same ACT again."""
    world.serve()
    session = world.hello().session
    world.step(session, 0)
    world.step(session, 0)
    assert len(world.batches) == 1
    world.answer()
    first = world.last()
    assert isinstance(first, Act)
    world.step(session, 0)
    assert world.last() == first
    assert not world.batches


def test_groups_that_arrive_while_the_device_is_busy_share_the_next_batch(world: World) -> None:
    """Accumulate while busy: two groups queue behind a running batch and leave together."""
    world.serve()
    sessions = [world.hello(group).session for group in range(3)]
    for session in sessions:
        world.step(session, 0)
    assert [len(groups) for groups in world.batches] == [1]
    world.answer()
    assert [len(groups) for groups in world.batches] == [2]


def test_without_credit_a_group_is_held_before_its_forward_pass_and_goes_on_with_it(world: World) -> None:
    """A complete unroll that cannot leave holds its group; PONG says why; CREDIT lets it go on."""
    world.serve(lanes=0)
    session = world.hello().session
    for seq in range(T):
        world.step(session, seq)
        world.answer()
    world.step(session, T)
    assert not world.batches
    assert world.state_of(session) == RequestState.HELD_NO_CREDIT
    world.grant(100)
    world.server.launch(0.0)
    assert len(world.batches) == 1
    assert world.link.outbox.unacked_lanes == 2


def test_evaluation_groups_wait_for_a_round_then_reset_and_play_their_quota(world: World) -> None:
    """Between rounds they are held; a round starts with a seeded reset and ends when every lane has its episodes."""
    world.serve()
    session = world.hello(mode="eval").session
    world.step(session, 0, (Flags.FIRST, Flags.FIRST))
    assert world.state_of(session) == RequestState.HELD_NO_EVALUATION
    world.grant(100, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=42, greedy=True))
    assert world.pins == 1
    world.server.weights_frozen(pack_version(1, 5), 0.0)
    reset = world.last()
    assert isinstance(reset, Act)
    assert (reset.bits, reset.reset_seed) == (1, 42)
    world.step(session, 1, (Flags.FIRST, Flags.FIRST))
    assert world.answer()[0].lanes.greedy
    world.step(session, 2, (Flags.TERMINATED, Flags.TRUNCATED))
    assert not world.batches
    outgoing = world.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.mode, outgoing.message.evaluation, outgoing.message.count) == ("eval", 3, 2)


def test_an_evaluation_waits_for_the_version_it_asks_for(world: World) -> None:
    """Older weights are not evaluated in its name."""
    world.serve()
    world.hello(mode="eval")
    world.grant(100, Evaluation(id=3, version=pack_version(1, 6), episodes=2, seed=42, greedy=True))
    assert world.pins == 0
    world.server.weights_changed(pack_version(1, 6), 0.0)
    assert world.pins == 1


def test_an_evaluation_of_weights_that_were_newer_once_asks_the_learner_for_them(world: World) -> None:
    """Exactly these are played, by every inference service: also by one that came in mid-evaluation."""
    world.serve()
    wanted, live = pack_version(1, 6), pack_version(1, 9)
    session = world.hello(mode="eval").session
    world.step(session, 0, (Flags.FIRST, Flags.FIRST))
    world.link.receive(Weights(session=1, version=live, manifest_digest="m", manifest="{}"), [b"live"], 0.0)
    world.server.weights_changed(live, 0.0)
    world.link.poll(0.0)
    world.grant(100, Evaluation(id=3, version=wanted, episodes=2, seed=42, greedy=True))
    (get,) = [decode(bytes(frames[0])) for frames in world.link.poll(0.1)]
    assert get == Get(session=1, have_version=live, have_manifest="m", exact=wanted)
    assert world.pins == 0
    world.grant(100, Evaluation(id=3, version=wanted, episodes=2, seed=42, greedy=True))
    assert world.link.poll(0.2) == []
    former = Weights(session=1, version=wanted, manifest_digest="m", manifest="")
    assert world.link.receive(former, [b"former"], 0.3) == [FormerWeightsReceived(wanted, "m", b"former")]
    world.server.evaluations.freezing()
    world.server.weights_frozen(wanted, 0.3)
    assert isinstance(world.last(), Act)


def test_wrong_frame_sizes_are_struck_and_end_only_their_own_session(world: World) -> None:
    """A peer that keeps sending wrong sizes loses its session and slots; the other group goes on."""
    world.serve()
    bad, good = world.hello(0).session, world.hello(1, route=b"s").session
    for _ in range(20):
        world.tell(Step(session=bad, seq=0), [b"short"])
    assert world.counters.refused_messages >= 5
    assert world.server.used_slots == 2
    world.step(good, 0, route=b"s")
    assert len(world.batches) == 1
    world.step(bad, 0)
    assert isinstance(world.last(), Challenge)


def test_values_that_would_break_the_loss_are_refused(world: World) -> None:
    """NaN in an observation or reward reaches no batch: it would poison the lanes of others through the loss."""
    world.serve()
    session = world.hello().session
    for place in (0, 1):
        layout = step_layout(SPEC, 2)
        frames = layout.allocate()
        layout.views(frames)[place].fill(np.nan)
        world.tell(Step(session=session, seq=0), [bytes(frame) for frame in frames])
    assert world.counters.refused_messages == 2
    assert not world.batches
    world.step(session, 0)
    assert len(world.batches) == 1


def test_statistics_of_the_wrong_size_are_refused_before_the_step_counts(world: World) -> None:
    """The STEP is not taken, so that its sender can send it again as it should be."""
    world.serve()
    session = world.hello().session
    payload = [*rows(0, (Flags.TERMINATED, 0)), b"\0" * 4]
    world.tell(Step(session=session, seq=0, bits=int(StepBits.STATISTICS)), payload)
    assert (world.counters.refused_messages, len(world.batches)) == (1, 0)
    world.step(session, 0, (Flags.TERMINATED, 0))
    assert len(world.batches) == 1


def test_statistics_that_are_not_finite_are_refused(world: World) -> None:
    """They would spoil the run's mean return. (A figure of the environment's own may be NaN: not known.)"""
    world.serve()
    session = world.hello().session
    payload = [*rows(0, (Flags.TERMINATED, 0)), np.array([np.nan, 1], np.float32).tobytes()]
    world.tell(Step(session=session, seq=0, bits=int(StepBits.STATISTICS)), payload)
    assert (world.counters.refused_messages, len(world.batches)) == (1, 0)


def test_garbage_is_counted_and_changes_nothing(world: World) -> None:
    """Headers that are no messages, and messages that are not for inference, are refused."""
    world.serve()
    for header in (b"", b"\xc1", b"\x00" * 5000, encode(Pong(sent_ms=0, server_epoch=1, work_age_ms=0))):
        world.server.receive(b"x", [header], 0.0)
    assert world.counters.refused_messages == 4
    assert world.server.num_sessions == 0


def test_a_silent_group_is_freed_after_its_lease_and_a_closed_one_sooner(world: World) -> None:
    """Leases free the slots: ten seconds when connected, three when the connection is closed."""
    world.serve()
    world.hello(0)
    world.hello(1, route=b"s")
    world.gone.add(b"s")
    world.server.probe(0.0)
    world.perform()
    world.server.beat(3.5, drained=True, stalled_until=0.0)
    assert world.server.used_slots == 2
    world.server.beat(9.0, drained=True, stalled_until=0.0)
    assert world.server.used_slots == 2
    world.server.beat(10.5, drained=True, stalled_until=0.0)
    assert (world.server.used_slots, world.counters.lost_groups) == (0, 2)


def test_slots_of_a_group_that_left_are_zeroed_for_the_next(world: World) -> None:
    """BYE frees the slots; a new group in the same slots starts with zero policy state."""
    world.serve()
    session = world.hello(0).session
    world.tell(Bye(session=session, reason="stopped"))
    assert world.server.used_slots == 0
    world.hello(1)
    assert [(lanes.start, lanes.count) for lanes in world.forgotten] == [(0, 2), (0, 2)]


def test_an_answer_for_a_group_that_left_meanwhile_is_dropped(world: World) -> None:
    """The batch comes back to a session that is gone: nothing is sent, the others are served."""
    world.serve()
    session = world.hello().session
    world.step(session, 0)
    world.tell(Bye(session=session, reason="stopped"))
    before = len(world.sent)
    world.answer()
    assert len(world.sent) == before


def test_steps_into_reset_rows_are_not_counted_as_acted(world: World) -> None:
    """Acted steps are valid transitions; a reset without an end is an aborted episode."""
    world.serve()
    session = world.hello().session
    world.step(session, 0, (Flags.FIRST, Flags.FIRST))
    world.answer()
    world.step(session, 1, (0, Flags.TERMINATED))
    world.answer()
    world.step(session, 2, (Flags.FIRST, Flags.FIRST))
    world.answer()
    assert world.counters.acted_steps == 2
    world.server.flush_episodes()
    outgoing = world.link.outbox.next_outgoing()
    assert outgoing is not None
    assert (outgoing.message.count, outgoing.message.aborted, outgoing.message.acted_steps) == (1, 1, 2)


def test_another_run_challenges_every_group(world: World) -> None:
    """A learner with another run id means another policy: sessions end and slots come back."""
    world.serve()
    world.hello()
    world.server.serve(RecordSpec(SPEC, T), "another", 2)
    assert isinstance(world.last(), Challenge)
    assert world.server.used_slots == 0


def test_another_unroll_length_begins_anew(world: World) -> None:
    """A learner restarted with another T could not use what is kept: groups start new unrolls, the old are counted."""
    world.serve()
    session = world.hello().session
    for seq in range(T + 1):
        world.step(session, seq)
        world.answer()
    assert world.link.outbox.unacked_lanes == 2
    world.server.serve(RecordSpec(SPEC, 2 * T), "run", 1)
    assert isinstance(world.last(), Challenge)
    assert (world.server.used_slots, world.link.outbox.unacked_lanes, world.link.discarded_lanes) == (0, 0, 2)
    assert world.link.welcome is None


def test_the_same_policy_under_another_epoch_keeps_its_groups(world: World) -> None:
    """A learner that resumed serves the same shape: sessions, rows and unacknowledged unrolls stay."""
    world.serve()
    world.hello()
    world.server.serve(RecordSpec(SPEC, T), "run", 1)
    assert world.server.used_slots == 2


def test_draining_says_bye_and_refuses_newcomers(world: World) -> None:
    """SIGTERM: groups are told to move at once, later HELLOs are refused for now."""
    world.serve()
    world.hello()
    world.server.dismiss("draining")
    assert world.last() == Bye(session=0, reason="draining")
    world.tell(hello(1))
    reject = world.last()
    assert isinstance(reject, Reject)
    assert reject.retryable


def test_draining_flushes_an_unroll_that_was_held_for_credit(world: World) -> None:
    """It is complete: it goes out when credit comes, and none of its steps are dropped."""
    world.serve(lanes=0)
    session = world.hello().session
    for seq in range(T):
        world.step(session, seq)
        world.answer()
    world.step(session, T)
    world.server.dismiss("draining")
    assert world.link.outbox.unacked_lanes == 2
    assert world.server.counters.dropped_steps == {}
    world.grant(2)
    outgoing = world.link.outbox.next_outgoing()
    while outgoing is not None and not isinstance(outgoing.message, Unroll):
        world.link.outbox.sent(outgoing)
        outgoing = world.link.outbox.next_outgoing()
    assert outgoing is not None


def test_what_a_group_leaves_half_done_is_counted_by_why_it_left(world: World) -> None:
    """The steps of its unroll so far, for every lane."""
    world.serve()
    for route, leave in (
        (b"stopped", lambda: world.tell(Bye(session=0, reason="stopped"), route=b"stopped")),
        (b"drained", lambda: world.server.dismiss("draining")),
    ):
        session = world.hello(int(route == b"drained"), route=route).session
        for seq in range(T):
            world.step(session, seq, route=route)
            world.answer()
        leave()
    assert world.server.counters.dropped_steps == {"stopped": 2 * (T - 1), "draining": 2 * (T - 1)}


def test_who_steps_environments_is_known_by_name(world: World) -> None:
    """Their lanes while they are in; none once they were lost."""
    world.serve()
    world.hello(0)
    world.hello(1)
    name = hello().actor
    assert world.server.lanes_by_actor() == {name: 4.0}
    world.server.beat(1e3, drained=True, stalled_until=0.0)
    assert world.server.lanes_by_actor() == {name: 0.0}


def test_whoever_asks_is_told_where_unrolls_begin(world: World) -> None:
    """In the ACT to row 0 of each unroll, and to no other group's."""
    world.serve()
    asking, other = replace(hello(), capabilities=("reset", "boundary")), replace(hello(1), nonce=6)
    sessions = []
    for greeting in (asking, other):
        world.tell(greeting)
        answer = world.last()
        assert isinstance(answer, Welcome)
        sessions.append(answer.session)
    bits: dict[int, list[int]] = {session: [] for session in sessions}
    for seq in range(2 * T + 1):
        for session in sessions:
            world.step(session, seq)
            world.answer()
            act = world.last()
            assert isinstance(act, Act)
            bits[session].append(act.bits)
    begins = [int(ActBits.BOUNDARY), *[0] * (T - 1)]
    assert bits == {sessions[0]: [*begins, *begins, begins[0]], sessions[1]: [0] * (2 * T + 1)}


def test_a_policy_that_is_served_alone_acts_for_players_and_refuses_trainers(world: World) -> None:
    """Evaluation groups act at once, all alike; their episodes are counted; training groups are told where to go."""
    world.serve()
    world.server.served_statistics = ServedStatistics(greedy=True)
    world.tell(hello())
    reject = world.last()
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("not_training", False)
    for group, mode in enumerate(("eval", "play")):
        session = world.hello(group, mode).session
        world.step(session, 0)
        (acted,) = world.answer()
        assert (acted.lanes.greedy, acted.lanes.uses_frozen_weights) == (True, False)
        world.step(session, 1, flags=(1, 0))
        world.answer()
    assert (world.server.served_statistics.num_episodes, world.server.served_statistics.return_mean) == (2, 1.0)


def test_everyone_hears_that_the_run_is_finished(world: World) -> None:
    """Also who asked to come in and was not let in, once, and who asks afterwards: nobody dials on for ever."""
    world.tell(hello(0), route=b"early")
    assert isinstance(world.last(), Error)
    world.serve()
    world.hello(1, route=b"in")
    sent = len(world.sent)
    world.server.dismiss("run_finished")
    bye = Bye(session=0, reason="run_finished")
    assert sorted(world.sent[sent:], key=str) == [(b"early", bye), (b"in", bye)]
    world.tell(hello(2), route=b"late")
    assert world.sent[-1] == (b"late", bye)


def test_a_finished_run_waits_for_those_that_it_told(world: World) -> None:
    """Until they say BYE too; one whose connection broke before it heard may dial again, and is told there."""
    world.serve()
    told, cut = world.hello(0, route=b"told"), world.hello(1, route=b"cut")
    world.gone.add(b"cut")
    world.server.dismiss("run_finished")
    world.perform()
    goodbyes = world.server.goodbyes
    assert goodbyes is not None
    assert set(goodbyes.waiting(0.0)) == {b"told", b"cut"}
    world.step(told.session, 0, route=b"told")
    world.tell(Bye(session=0, reason="stopped"), route=b"told", now=1.0)
    world.server.probe(1.0)
    world.perform()
    world.tell(hello(1), route=b"again", now=2.0)
    assert world.sent[-1] == (b"again", Bye(session=0, reason="run_finished"))
    assert goodbyes.waiting(2.9) == [b"cut", b"again"]
    assert goodbyes.waiting(4.1) == [b"again"]
    world.tell(Bye(session=cut.session, reason="moved"), route=b"again", now=5.0)
    assert goodbyes.waiting(5.0) == [b"again"], "one group's leaving is not the connection's"
    world.tell(Bye(session=0, reason="stopped"), route=b"again", now=5.0)
    assert goodbyes.waiting(5.0) == []


def test_a_finished_run_says_bye_again_each_second(world: World) -> None:
    """A full queue may have swallowed the first; once it takes messages again, the connection is there as before."""
    world.serve()
    world.hello(0, route=b"r")
    world.gone.add(b"r")
    world.server.dismiss("run_finished")
    world.perform()
    world.server.probe(1.0)
    world.perform()
    world.gone.clear()
    sent = len(world.sent)
    world.server.probe(2.0)
    assert world.sent[sent:] == [(b"r", Bye(session=0, reason="run_finished"))]
    assert world.server.goodbyes is not None
    assert world.server.goodbyes.waiting(30.0) == [b"r"]


def test_who_was_not_let_in_and_has_gone_is_not_waited_for(world: World) -> None:
    """Every run would end seconds later for those who asked too early and left."""
    world.tell(hello(0), route=b"early")
    world.gone.add(b"early")
    world.server.dismiss("run_finished")
    world.perform()
    assert world.server.goodbyes is not None
    assert world.server.goodbyes.waiting(0.0) == []


def test_a_run_may_end_while_inference_drains(world: World) -> None:
    """Whoever has come back meanwhile hears that it is over."""
    world.serve()
    world.hello(0, route=b"r")
    world.server.dismiss("draining")
    world.tell(hello(0), route=b"r")
    world.server.dismiss("run_finished")
    assert world.sent[-1] == (b"r", Bye(session=0, reason="run_finished"))


def test_revoked_keys_lose_their_sessions_and_are_told_why(world: World) -> None:
    """Slots are free again, the groups hear a fatal ERROR once, and other connections go on."""
    world.serve()
    lost, kept = world.hello(0, route=b"r"), world.hello(1, route=b"other")
    world.step(lost.session, 0)
    world.step(kept.session, 0, route=b"other")
    sent = len(world.sent)
    assert world.server.revoke([b"r", b"never seen"]) == 1
    ((route, error),) = world.sent[sent:]
    assert isinstance(error, Error)
    assert (route, error.code, error.session, error.retryable) == (b"r", "revoked", lost.session, False)
    assert world.server.used_slots == 2
    assert world.server.revoke([b"r"]) == 0
    world.step(kept.session, 1, route=b"other")
    assert [group.session.id for groups in world.batches for group in groups].count(lost.session) <= 1


def test_a_foreign_key_cannot_strike_a_group_out(world: World) -> None:
    """Broken STEPs that name another owner's session are challenged before they are looked at."""
    world.owners = {b"r": "environment:a", b"thief": "environment:b"}
    world.serve()
    session = world.hello().session
    for _ in range(10):
        world.tell(Step(session=session, seq=0), [b"nonsense"], route=b"thief")
        assert isinstance(world.last(), Challenge)
    world.step(session, 0)
    assert len(world.answer()) == 1


class TaskWorld(World):
    """A server of a run with two tasks, each with its session at the learner."""

    def __init__(self) -> None:
        super().__init__()
        self.server.serve(RecordSpec(replace(SPEC, env_id="tasks"), T), "run", 1)
        self.server.weights_changed(pack_version(1, 5), 0.0)
        self.learner_sessions.connected(0.0)
        self.sessions: dict[str, int] = {}
        self.greet()

    def greet(self) -> None:
        """Answer whoever says HELLO to the learner."""
        tasks = tuple(TaskEnv(name=name, env_id="test") for name in ("pong", "tennis"))
        for frames in self.learner_sessions.poll(0.0):
            asked = decode(bytes(frames[0]))
            if isinstance(asked, ProducerHello):
                number = self.sessions[asked.task] = len(self.sessions) + 1
                welcome = ProducerWelcome(
                    nonce=asked.nonce, session=number, epoch=1, protocol=1, run_id="run", run_seed=1, spec_digest="d",
                    beat_s=1, lease_s=10, unroll_length=T, next_seq=0, next_episodes_seq=0, state=RunState.TRAINING,
                    tasks=tasks,
                )  # fmt: skip
                self.learner_sessions.receive(welcome, [], 0.0)

    def come(self, task: str, mode: str = "train", group: int = 0) -> int:
        self.tell(replace(hello(group, mode), incarnation=hash(task) & 0xFFFF, task=task))
        answer = self.last()
        assert isinstance(answer, Welcome), answer
        self.greet()
        return answer.session

    def credit(self, task: str, through: int, evaluation: Evaluation | None = None) -> None:
        credit = Credit(
            session=self.sessions[task], epoch=1, granted_through=through, acked_through=0, episodes_acked_through=0,
            state=RunState.TRAINING, trained_steps=0, evaluation=evaluation,
        )  # fmt: skip
        for name, _event in self.learner_sessions.receive(credit, [], 0.0):
            self.server.credited(credit, 0.0, task=name)
        self.server.launch(0.0)

    def unroll(self, session: int, first_seq: int = 0) -> None:
        """Play until an unroll is complete."""
        for seq in range(first_seq, first_seq + T + 1):
            self.step(session, seq, (4, 4) if seq == 0 else (0, 0))
            if self.batches:
                self.answer()


def test_a_task_without_credit_holds_only_its_own_groups() -> None:
    """The other one goes on, though it was held later."""
    world = TaskWorld()
    stuck, going = world.come("pong"), world.come("tennis", group=1)
    world.unroll(stuck)
    world.unroll(going)
    assert {world.state_of(session) for session in (stuck, going)} == {RequestState.HELD_NO_CREDIT}
    world.credit("tennis", 10)
    assert world.state_of(going) == RequestState.QUEUED
    assert world.state_of(stuck) == RequestState.HELD_NO_CREDIT
    outboxes = {task: world.learner_sessions.of(task).link.outbox for task in ("pong", "tennis")}
    assert {task: outbox.unacked_lanes for task, outbox in outboxes.items()} == {"pong": 0, "tennis": 2}


def test_episodes_and_steps_go_the_way_of_their_task() -> None:
    """Each EPISODES counts one task."""
    world = TaskWorld()
    sessions = {task: world.come(task, group=index) for index, task in enumerate(("pong", "tennis"))}
    for task, seqs in (("pong", 3), ("tennis", 2)):
        for seq in range(seqs):
            world.step(sessions[task], seq, (4, 4) if seq == 0 else (1, 0))
            world.answer()
    world.server.flush_episodes()
    for task, episodes in (("pong", 2), ("tennis", 1)):
        outgoing = world.learner_sessions.of(task).link.outbox.next_outgoing()
        assert outgoing is not None
        assert (outgoing.message.session, outgoing.message.count) == (world.sessions[task], episodes)
    assert world.link.outbox.is_empty


@pytest.mark.parametrize(
    ("changes", "code", "told"),
    [
        ({"task": "golf"}, "task", "'golf'; this run has the tasks pong, tennis"),
        ({"task": ""}, "task", "actor.task is not set"),
        ({"task": "pong", "spec": replace(SPEC, env_id="other")}, "spec", "ours 'test', theirs 'other'"),
        (
            {"task": "pong", "spec": replace(SPEC, action=space_from_gymnasium(gymnasium.spaces.Discrete(4)))},
            "spec",
            "action space: ours",
        ),
    ],
)
def test_environments_that_do_not_fit_a_task_are_refused(changes: dict, code: str, told: str) -> None:
    """By name, with the remedy, and for good; nothing is opened for them at the learner."""
    world = TaskWorld()
    world.tell(replace(hello(), **changes))
    answer = world.last()
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retryable) == (code, False)
    assert told in answer.message
    assert answer.hint
    assert [stream.task for stream in world.learner_sessions.all] == [""]


def test_a_task_that_differs_from_its_first_environments_is_refused() -> None:
    """What the learner does not know of, replicas of a task must agree on all the same."""
    world = TaskWorld()
    world.come("pong")
    other = replace(SPEC, settings=(("mine", "1"),))
    world.tell(replace(hello(3), incarnation=9, task="pong", spec=other))
    answer = world.last()
    assert isinstance(answer, Reject)
    assert "setting mine" in answer.message


def test_all_tasks_play_one_frozen_version_and_each_tells_its_own_result() -> None:
    """One that comes later plays the same version; the weights are frozen once."""
    world = TaskWorld()
    request = Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=9, greedy=True)
    first = world.come("pong", "eval")
    world.step(first, 0, (4, 4))
    world.credit("pong", 0, request)
    assert world.pins == 1
    world.server.weights_frozen(pack_version(1, 5), 0.0)
    world.server.weights_changed(pack_version(1, 9), 0.0)
    late = world.come("tennis", "eval", group=1)
    world.step(late, 0, (4, 4))
    world.credit("tennis", 0, request)
    assert world.pins == 1
    for task, session in (("tennis", late), ("pong", first)):
        world.step(session, 1, (4, 4))
        world.answer()
        world.step(session, 2, (1, 1))
        outgoing = world.learner_sessions.of(task).link.outbox.next_outgoing()
        assert outgoing is not None
        message = outgoing.message
        assert (message.mode, message.evaluation, message.count) == ("eval", 3, 2)
        assert np.frombuffer(outgoing.frames[0], np.int64, 2).tolist() == [pack_version(1, 5)] * 2
        assert world.state_of(session) == RequestState.HELD_NO_EVALUATION


def test_a_task_that_the_learner_drops_ends_its_groups() -> None:
    """They say HELLO again, and hear why they cannot come; the others stay."""
    world = TaskWorld()
    world.come("pong")
    stays = world.come("tennis", group=1)
    world.server.end_task("pong")
    challenge = world.last()
    assert isinstance(challenge, Challenge)
    assert [session.id for session in world.server.table.sessions.values()] == [stays]
    assert world.server.used_slots == 2


def test_a_policy_built_anew_begins_its_evaluations_again() -> None:
    """The frozen copy went with the former one."""
    world = TaskWorld()
    session = world.come("pong", "eval")
    world.step(session, 0, (4, 4))
    world.credit("pong", 0, Evaluation(id=3, version=pack_version(1, 5), episodes=2, seed=9, greedy=True))
    world.server.weights_frozen(pack_version(1, 5), 0.0)
    world.server.serve(RecordSpec(replace(SPEC, env_id="tasks"), T), "run", 1)
    world.step(session, 1, (4, 4))
    assert world.pins == 2
    assert world.state_of(session) == RequestState.HELD_NO_EVALUATION


def test_groups_that_never_step_hold_nobody_up(world: World) -> None:
    """A batch waits a little for groups that may still come, and these never have."""
    world.serve()
    for group in range(12):
        world.hello(group, lanes=1)
    world.step(world.hello(20).session, 0)
    assert len(world.batches) == 1
