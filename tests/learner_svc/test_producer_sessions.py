"""The learner's side of its link, message by message."""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedbed.learner_svc.link.admission import Identity
from seedbed.learner_svc.link.producer_segments import MAX_SEGMENTS
from seedbed.learner_svc.link.producer_sessions import (
    MAX_STRIKES,
    MAX_STRUCK,
    Action,
    EpisodesReceived,
    ProducerSessions,
    SendToProducer,
    SpecificationReceived,
    UnrollReceived,
)
from seedbed.learner_svc.link.publish import Publisher
from seedbed.learner_svc.run.run import Run
from seedbed.learner_svc.sources.queue import QueueSource
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.ledger import SINGLE_TASK, Ledger
from seedbed.shared.protocol.messages import (
    LEARNER_PROTOCOL_MAX,
    RECORDING_PROTOCOL,
    Bye,
    Challenge,
    Credit,
    Episodes,
    Error,
    Get,
    Message,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    RunState,
    Step,
    TaskEnv,
    Unroll,
    Weights,
)
from seedbed.shared.protocol.recording import RecordSpec
from seedbed.shared.protocol.rows import EnvSpec, episodes_layout
from seedbed.shared.protocol.segment import FOLDER, OpenedSegment, Segment, SharedPlace
from seedbed.shared.runtime.config import EnvConfig, EvalConfig, RunConfig
from tests.support.specs import make_spec

T = 2
ROUTE = b"route"


def a_spec(env_id: str = "e", actions: int = 2, settings: tuple[tuple[str, str], ...] = ()) -> EnvSpec:
    return make_spec(
        gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(actions), env_id=env_id, settings=settings
    )


class SessionsDriver:
    """Producer sessions with their parts, and messages in and out as records."""

    def __init__(
        self, *, has_policy: bool = True, tasks: tuple[TaskEnv, ...] = (), protocol_min: int = 1,
        is_deterministic: bool = False, rank: int = 0, num_ranks: int = 1, folder: Path = FOLDER,
    ) -> None:  # fmt: skip
        self.run = Run(RunConfig(), EvalConfig(), epoch=3, patience_s=10.0)
        weights = {task.name: 1 / len(tasks) for task in tasks} or SINGLE_TASK
        self.ledger = Ledger(epoch=3, window_lanes=8, lease_s=10.0, weights=weights)
        self.publisher = Publisher()
        identity = Identity(
            epoch=3, run_id="run", run_seed=5, unroll_length=T, beat_s=1.0, lease_s=10.0, tasks=tasks,
            protocol_min=protocol_min, is_deterministic=is_deterministic, rank=rank,
            num_ranks=num_ranks,
        )  # fmt: skip
        self.producers = ProducerSessions(
            identity, EnvConfig(id="e"), self.ledger, self.publisher, self.run, lambda: 0.25,
            open_segment=partial(OpenedSegment.open, folder=folder),
        )  # fmt: skip
        if has_policy:
            source: QueueSource[object] = QueueSource(RecordSpec(a_spec(), T), batch=4)
            self.producers.adopt(a_spec(), source.check)
            self.run.start(0.0)
            self.publisher.describe("digest", "{}")
            self.publisher.publish(7, b"weights")

    def say(self, message: Message, *payload: bytes, route: bytes = ROUTE, now: float = 0.0) -> list[Action]:
        return self.producers.receive(route, [encode(message), *payload], now)

    def ask(self, message: Message, *payload: bytes, route: bytes = ROUTE, now: float = 0.0) -> list[Message]:
        return messages(self.say(message, *payload, route=route, now=now))

    def enter(self, **changes: Any) -> int:
        welcome = self.ask(a_hello(**changes))[0]
        assert isinstance(welcome, ProducerWelcome)
        return welcome.session


def messages(actions: list[Any]) -> list[Message]:
    return [decode(action.frames[0]) for action in actions if isinstance(action, SendToProducer)]


def a_hello(incarnation: int = 7, **changes: Any) -> ProducerHello:
    return ProducerHello(**({"library_version": "0", "name": "p", "incarnation": incarnation, "nonce": 11} | changes))


def an_unroll_frame(lanes: int = 2) -> bytes:
    return bytes(RecordSpec(a_spec(), T).layout(lanes).frame_bytes[0])


def test_hello_is_answered_by_who_we_are_and_what_may_be_sent() -> None:
    """WELCOME, then CREDIT."""
    welcome, credit = SessionsDriver().ask(a_hello())
    assert isinstance(welcome, ProducerWelcome)
    assert (welcome.nonce, welcome.epoch, welcome.run_id, welcome.run_seed) == (11, 3, "run", 5)
    assert (welcome.unroll_length, welcome.next_seq, welcome.spec_digest) == (T, 0, a_spec().digest())
    assert isinstance(credit, Credit)
    assert (credit.session, credit.granted_through, credit.state) == (welcome.session, 8, RunState.TRAINING)


def test_the_first_specification_starts_the_policy() -> None:
    """Before there is a policy everyone is welcome; the first specification of the right environment is handed on."""
    driver = SessionsDriver(has_policy=False)
    assert not any(isinstance(action, SpecificationReceived) for action in driver.say(a_hello()))
    actions = driver.say(a_hello(spec=a_spec()))
    assert actions[0] == SpecificationReceived(a_spec())
    welcome = messages(actions)[0]
    assert isinstance(welcome, ProducerWelcome)
    assert (welcome.spec_digest, welcome.state) == ("", RunState.STARTING)
    credit = messages(actions)[1]
    assert isinstance(credit, Credit)
    assert credit.granted_through == 0, "an unroll that nobody can read yet"


def test_another_environment_is_refused_by_name() -> None:
    """Fatal, with both values."""
    (reject,) = SessionsDriver(has_policy=False).ask(a_hello(spec=a_spec("other")))
    assert isinstance(reject, Reject)
    assert not reject.retryable
    assert "'e'" in reject.message
    assert "'other'" in reject.message


def test_other_settings_are_refused_by_name() -> None:
    """The learner's own [env] section must agree with the environments'."""
    spec = a_spec(settings=(("max_episode_steps", "5"),))
    (reject,) = SessionsDriver(has_policy=False).ask(a_hello(spec=spec))
    assert isinstance(reject, Reject)
    assert "max_episode_steps: null in the run's [env], 5 in" in reject.message


def test_a_statistic_that_no_table_can_hold_is_refused_by_name() -> None:
    """As inference does, which may be of another version."""
    spec = replace(a_spec(), statistics=("return", "length", "a,b"))
    (reject,) = SessionsDriver(has_policy=False).ask(a_hello(spec=spec))
    assert isinstance(reject, Reject)
    assert "'a,b'" in reject.message


def test_a_specification_unlike_the_policys_is_refused() -> None:
    """From the first one on, others get REJECT."""
    (reject,) = SessionsDriver().ask(a_hello(spec=a_spec(actions=3)))
    assert isinstance(reject, Reject)
    assert reject.nonce == 11
    assert "action" in reject.message


def test_another_protocol_is_refused() -> None:
    """With both ranges."""
    (reject,) = SessionsDriver().ask(a_hello(protocol_min=9, protocol_max=9))
    assert isinstance(reject, Reject)
    assert reject.code == "protocol"


def test_an_inference_that_cannot_record_what_is_needed_is_refused() -> None:
    """An earlier one would record what it always did, and every UNROLL would be refused."""
    (reject,) = SessionsDriver(protocol_min=RECORDING_PROTOCOL).ask(a_hello(protocol_max=1))
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("protocol", False)
    welcome = SessionsDriver(protocol_min=RECORDING_PROTOCOL).ask(a_hello())[0]
    assert isinstance(welcome, ProducerWelcome)
    assert welcome.protocol == LEARNER_PROTOCOL_MAX


def test_an_unknown_session_is_challenged() -> None:
    """Whatever it sends: after a restart or an expired lease it says HELLO again."""
    driver = SessionsDriver()
    unknown = Get(session=99, have_version=0, have_manifest="")
    assert driver.ask(unknown) == [Challenge(session=99, server_epoch=3)]
    unroll = Unroll(session=98, seq=0, lanes=2, actor="a")
    assert driver.ask(unroll, an_unroll_frame()) == [Challenge(session=98, server_epoch=3)]


def test_an_unroll_is_handed_on_once() -> None:
    """A doubled one is not."""
    driver = SessionsDriver()
    unroll = Unroll(session=driver.enter(), seq=0, lanes=2, actor="a")
    (came,) = driver.say(unroll, an_unroll_frame())
    assert isinstance(came, UnrollReceived)
    assert (came.key.seq, came.key.actor, came.lanes, came.skip) == (0, "a", 2, 0)
    assert driver.say(unroll, an_unroll_frame()) == []


def test_an_unroll_of_the_wrong_size_is_an_error_and_no_unroll() -> None:
    """It is refused before it is counted as received."""
    driver = SessionsDriver()
    unroll = Unroll(session=driver.enter(), seq=0, lanes=2, actor="a")
    (error,) = driver.ask(unroll, b"short")
    assert isinstance(error, Error)
    assert error.code == "frame_size"
    assert len(driver.say(unroll, an_unroll_frame())) == 1


def test_many_broken_messages_end_the_senders_session_only() -> None:
    """Others are unaffected."""
    driver = SessionsDriver()
    session, other = driver.enter(), None
    other = driver.ask(a_hello(8), route=b"other")[0]
    assert isinstance(other, ProducerWelcome)
    for _ in range(MAX_STRIKES):
        driver.producers.receive(ROUTE, [b"\xff\xff"], 0.0)
    assert driver.producers.refused_messages == MAX_STRIKES
    assert list(driver.ledger.sessions) == [other.session]
    assert driver.ask(Get(session=session, have_version=0, have_manifest="")) == [
        Challenge(session=session, server_epoch=3)
    ]


def test_strikes_of_senders_that_come_and_go_are_bounded() -> None:
    """Whoever dials anew for each broken message costs no memory."""
    driver = SessionsDriver()

    def strike(routes: range) -> int:
        for number in routes:
            driver.producers.receive(b"%d" % number, [b"\xff\xff"], 0.0)
        return sys.getsizeof(driver.producers._strikes)

    assert strike(range(3 * MAX_STRUCK)) == strike(range(3 * MAX_STRUCK, 20 * MAX_STRUCK))


def test_a_message_of_the_other_link_is_broken() -> None:
    """STEP is nothing for a learner."""
    (error,) = SessionsDriver().ask(Step(session=1, seq=0))
    assert isinstance(error, Error)


def test_ping_is_answered_by_credit_and_then_pong() -> None:
    """PONG shows what was received and how old the last work is; its load is kept."""
    driver = SessionsDriver()
    session = driver.enter()
    driver.say(Unroll(session=session, seq=0, lanes=2, actor="a"), an_unroll_frame())
    credit, pong = driver.ask(Ping(sent_ms=77, load=(("lanes", 64.0),)))
    assert isinstance(credit, Credit)
    assert isinstance(pong, Pong)
    assert (pong.sent_ms, pong.server_epoch, pong.work_age_ms) == (77, 3, 250)
    assert [(report.session, report.last_seq) for report in pong.sessions] == [(session, 0)]
    assert [load.figures for load in driver.producers.loads.values()] == [{"lanes": 64.0}]


def test_get_is_answered_or_held() -> None:
    """Weights with their manifest at once; then NOT_MODIFIED after a second."""
    driver = SessionsDriver()
    session = driver.enter()
    (weights,) = driver.say(Get(session=session, have_version=0, have_manifest=""))
    assert isinstance(weights, SendToProducer)
    assert isinstance(decode(weights.frames[0]), Weights)
    assert weights.frames[1:] == [b"weights"]
    assert driver.say(Get(session=session, have_version=7, have_manifest="digest")) == []
    assert messages([*driver.producers.beat(2.0, may_expire=True)]) == [NotModified(session=session, version=7)]


def test_episodes_are_handed_on_once_and_acknowledged() -> None:
    """Versions and statistics as arrays."""
    driver = SessionsDriver()
    session = driver.enter()
    layout = episodes_layout(a_spec(), 2)
    frames = layout.allocate()
    versions, statistics = layout.views(frames)
    versions[:], statistics[:] = 7, [[1, 2], [3, 4]]
    header = Episodes(session=session, seq=0, mode="train", evaluation=0, count=2, aborted=0, acted_steps=9)
    (came,) = driver.say(header, bytes(frames[0]))
    assert isinstance(came, EpisodesReceived)
    assert np.array_equal(came.statistics, [[1, 2], [3, 4]])
    (send,) = driver.producers.credits()
    credit = decode(send.frames[0])
    assert isinstance(credit, Credit)
    assert credit.episodes_acked_through == 1
    assert driver.say(header, bytes(frames[0])) == []


def test_episodes_that_come_before_the_policy_of_a_resumed_run_are_no_mistake_and_come_again() -> None:
    """An inference that lived on sends those of the learner before it as soon as it is welcomed."""
    driver = SessionsDriver(has_policy=False)
    session = driver.enter(spec=a_spec(), oldest_episodes_seq=4)
    frame = bytes(episodes_layout(a_spec(), 2).allocate()[0])
    header = Episodes(session=session, seq=4, mode="train", evaluation=0, count=2, aborted=0, acted_steps=9)
    assert driver.say(header, frame) == []
    assert driver.producers.refused_messages == 0
    credit, _ = driver.ask(Ping(sent_ms=1, load=()))
    assert isinstance(credit, Credit)
    assert credit.episodes_acked_through == 4
    driver.producers.adopt(a_spec(), QueueSource(RecordSpec(a_spec(), T), batch=4).check)
    (came,) = driver.say(header, frame)
    assert isinstance(came, EpisodesReceived)


def test_silence_ends_a_session_only_when_it_can_be_judged() -> None:
    """Not after a stall of our own, nor before the socket was emptied."""
    driver = SessionsDriver()
    driver.enter()
    driver.producers.beat(11.0, may_expire=False)
    assert not driver.producers.has_left
    driver.producers.beat(11.0, may_expire=True)
    assert driver.producers.has_left


def test_bye_ends_the_session_and_keeps_its_account() -> None:
    """A producer that comes back goes on with its numbers."""
    driver = SessionsDriver()
    session = driver.enter()
    driver.say(Unroll(session=session, seq=0, lanes=2, actor="a"), an_unroll_frame())
    driver.say(Bye(session=0, reason="draining"))
    assert driver.producers.has_left
    driver.enter()
    assert driver.say(Unroll(session=driver.enter(), seq=0, lanes=2, actor="a"), an_unroll_frame()) == []


def test_a_finished_run_says_so_to_everyone_and_keeps_serving_weights() -> None:
    """FINISHED in CREDIT and WELCOME, then BYE(run_finished); no more unrolls, weights as before."""
    driver = SessionsDriver()
    session = driver.enter()
    driver.run.state = RunState.FINISHED
    credit, bye, pong = driver.ask(Ping(sent_ms=1))
    assert isinstance(credit, Credit)
    assert credit.state == RunState.FINISHED
    assert bye == Bye(session=session, reason="run_finished")
    assert isinstance(pong, Pong)
    assert [type(message) for message in driver.ask(a_hello(9))] == [ProducerWelcome, Credit, Bye]
    assert driver.say(Unroll(session=session, seq=0, lanes=2, actor="a"), an_unroll_frame()) == []
    assert isinstance(driver.ask(Get(session=session, have_version=0, have_manifest=""))[0], Weights)
    assert {type(message) for message in messages([*driver.producers.farewell("run_finished")])} == {Bye}


def test_restarts_are_counted_from_incarnations() -> None:
    """By name."""
    driver = SessionsDriver()
    for incarnation in (1, 1, 2, 3):
        driver.say(a_hello(incarnation))
    assert len(driver.producers.incarnations["p"]) == 3


def test_a_revoked_key_loses_its_session_and_is_told_why() -> None:
    """Once, fatally; other producers stay, and what had come counts on."""
    driver = SessionsDriver()
    session = driver.enter()
    other = driver.ask(a_hello(incarnation=8), route=b"other")[0]
    assert isinstance(other, ProducerWelcome)
    (error,) = messages(list(driver.producers.revoke([ROUTE, b"never seen"])))
    assert isinstance(error, Error)
    assert (error.code, error.session, error.retryable) == ("revoked", session, False)
    assert set(driver.ledger.sessions) == {other.session}
    assert driver.producers.revoke([ROUTE]) == []


TASKS = (TaskEnv(name="pong", env_id="P", settings=(("frame_skip", "4"),)), TaskEnv(name="tennis", env_id="T"))


def test_a_run_says_which_tasks_it_has_and_reads_nothing_into_a_session_without_one() -> None:
    """Inference greets before it knows them, with whatever specification it has met."""
    driver = SessionsDriver(tasks=TASKS)
    welcome, credit = driver.ask(a_hello(spec=a_spec("whatever", actions=9)))
    assert isinstance(welcome, ProducerWelcome)
    assert welcome.tasks == TASKS
    assert isinstance(credit, Credit)
    assert credit.granted_through == 0


def test_the_first_tasks_specification_starts_a_policy_of_no_environment_in_particular() -> None:
    """Its id and settings are the task's own affair."""
    driver = SessionsDriver(has_policy=False, tasks=TASKS)
    actions = driver.say(a_hello(task="pong", spec=a_spec("P", settings=(("frame_skip", "4"),))))
    assert actions[0] == SpecificationReceived(a_spec("tasks"))


@pytest.mark.parametrize(
    ("task", "spec", "code", "told"),
    [
        ("golf", a_spec("P"), "task", ["'golf'", "pong, tennis"]),
        ("pong", a_spec("T"), "spec", ["'pong'", "ours 'P'", "theirs 'T'"]),
        ("pong", a_spec("P", settings=(("frame_skip", "2"),)), "spec", ["frame_skip", "4 in the run", "2 in this"]),
        ("tennis", a_spec("T", actions=6), "spec", ["'tennis'", "action space: ours", "2", "6"]),
    ],
)
def test_what_does_not_fit_a_task_is_refused_by_name(task: str, spec: EnvSpec, code: str, told: list[str]) -> None:
    """For good, with both values; other tasks are served on."""
    driver = SessionsDriver(tasks=TASKS)
    (reject,) = driver.ask(a_hello(task=task, spec=spec))
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == (code, False)
    assert all(part in reject.message for part in told), reject.message
    assert reject.hint
    assert isinstance(driver.ask(a_hello(task="tennis", spec=a_spec("T")))[0], ProducerWelcome)


def test_sessions_of_one_process_are_apart_by_task() -> None:
    """Unrolls and episodes come with the task of their session; a PONG tells of all of them."""
    driver = SessionsDriver(tasks=TASKS)
    sessions = {task: driver.enter(task=task, spec=a_spec(env_id)) for task, env_id in (("pong", "P"), ("tennis", "T"))}
    main = driver.enter()
    assert len({main, *sessions.values()}) == 3
    for task, session in sessions.items():
        (came,) = driver.say(Unroll(session=session, seq=0, lanes=2, actor="a"), an_unroll_frame())
        assert isinstance(came, UnrollReceived)
        assert came.key.producer.task == task
    pong = driver.ask(Ping(sent_ms=5))[-1]
    assert isinstance(pong, Pong)
    assert {report.session: report.last_seq for report in pong.sessions} == {
        main: -1, sessions["pong"]: 0, sessions["tennis"]: 0,
    }  # fmt: skip
    (error,) = driver.ask(Unroll(session=main, seq=0, lanes=2, actor="a"), an_unroll_frame())
    assert isinstance(error, Error)


def test_a_task_in_a_run_without_tasks_is_refused() -> None:
    """It would be counted nowhere."""
    (reject,) = SessionsDriver().ask(a_hello(task="pong", spec=a_spec()))
    assert isinstance(reject, Reject)
    assert reject.code == "task"


def test_a_deterministic_run_has_one_inference_service() -> None:
    """It may greet as often as it likes; another one, or a new life of it, is told to start the run anew."""
    driver = SessionsDriver(is_deterministic=True)
    session = driver.enter(is_lockstep=True)
    driver.say(Bye(session=session, reason="draining"))
    assert isinstance(driver.ask(a_hello(is_lockstep=True))[0], ProducerWelcome)
    (reject,) = driver.ask(a_hello(incarnation=8, is_lockstep=True))
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("deterministic", False)


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_learner_and_inference_are_deterministic_together_or_not_at_all(is_deterministic: bool) -> None:
    """Whichever side it was forgotten for, both settings are named, and no restart helps."""
    driver = SessionsDriver(is_deterministic=is_deterministic)
    (reject,) = driver.ask(a_hello(is_lockstep=not is_deterministic))
    assert isinstance(reject, Reject)
    assert (reject.code, reject.retryable) == ("deterministic", False)
    assert "inference.lockstep_groups" in reject.message
    assert "run.deterministic" in reject.message
    assert driver.enter(is_lockstep=is_deterministic)


@pytest.mark.parametrize(("stream", "is_ours"), [(0, False), (1, True), (2, False), (3, True)])
def test_a_rank_takes_the_streams_that_are_its_own(stream: int, is_ours: bool) -> None:
    """Every second one, of two ranks: also those of a time when there were more."""
    answer = SessionsDriver(rank=1, num_ranks=2).ask(a_hello(stream=stream))[0]
    if is_ours:
        assert isinstance(answer, ProducerWelcome)
        assert answer.rank == 1
    else:
        assert isinstance(answer, Reject)
        assert (answer.code, answer.retryable) == ("rank", True)


def test_episodes_belong_to_stream_0() -> None:
    """Another rank would take and lose them."""
    driver = SessionsDriver(rank=1, num_ranks=2)
    session = driver.enter(spec=a_spec(), stream=1)
    frame = bytes(episodes_layout(a_spec(), 0).allocate()[0])
    message = Episodes(session=session, seq=0, mode="train", evaluation=0, count=0, aborted=0, acted_steps=5)
    (answer,) = driver.ask(message, frame)
    assert isinstance(answer, Error)
    assert answer.code == "stream"


def test_streams_of_one_producer_are_counted_apart() -> None:
    """One rank has both after the other is gone."""
    driver = SessionsDriver()
    first, second = driver.enter(spec=a_spec()), driver.enter(spec=a_spec(), stream=1)
    assert first != second
    for session in (first, second):
        unroll = Unroll(session=session, seq=0, lanes=2, actor="a")
        assert [type(action) for action in driver.say(unroll, an_unroll_frame())] == [UnrollReceived]
    records = {record.stream: record for record in driver.ledger.records()}
    assert sorted(records) == [0, 1]


# Shared memory


class SharedDriver(SessionsDriver):
    """A producer's segment in a folder, and the sessions that have it open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder=folder)
        self.folder = folder
        self.segment = Segment(4 * 4096, folder)
        self.file = os.open(folder / f"seedbed-{self.segment.id:016x}", os.O_RDWR)
        self.session = self.greet(self.segment).session

    def greet(self, segment: Segment, **changes: Any) -> ProducerWelcome:
        welcome = self.ask(a_hello(segment=segment.id, segment_bytes=segment.num_bytes, **changes))[0]
        assert isinstance(welcome, ProducerWelcome)
        return welcome

    def put(self, seq: int, frame: bytes | None = None) -> SharedPlace:
        place = self.segment.put(seq, [an_unroll_frame() if frame is None else frame])
        assert place is not None
        return place

    def say_unroll(self, seq: int, place: SharedPlace) -> list[Action]:
        header = Unroll(
            session=self.session, seq=seq, lanes=2, actor="a", segment=place.segment, offset=place.offset,
            length=place.length,
        )  # fmt: skip
        return self.say(header)

    def close(self) -> None:
        os.close(self.file)
        self.segment.close()
        self.producers.close()
        assert not list(self.folder.iterdir())


@pytest.fixture
def shared(shm_folder: Path) -> Iterator[SharedDriver]:
    driver = SharedDriver(shm_folder)
    yield driver
    driver.close()


def test_a_segment_that_can_be_opened_is_proved_by_its_secret(shared: SharedDriver) -> None:
    """However often HELLO is repeated; a HELLO without a segment closes it."""
    assert shared.greet(shared.segment).segment_secret == shared.segment.secret
    welcome = shared.ask(a_hello())[0]
    assert isinstance(welcome, ProducerWelcome)
    assert welcome.segment_secret == 0
    assert shared.greet(shared.segment).segment_secret == 0, "its name is gone"


def test_a_segment_of_another_host_is_not_taken(shm_folder: Path) -> None:
    """There HELLO's name means nothing, and unrolls come over the socket."""
    (elsewhere := shm_folder / "elsewhere").mkdir()
    (here := shm_folder / "here").mkdir()
    segment = Segment(4096, elsewhere)
    welcome = SessionsDriver(folder=here).ask(a_hello(segment=segment.id, segment_bytes=4096))[0]
    assert isinstance(welcome, ProducerWelcome)
    assert welcome.segment_secret == 0
    segment.close()


def test_an_unroll_in_shared_memory_is_handed_on_once_and_its_place_is_free(shared: SharedDriver) -> None:
    """CREDIT says so at once, before the unroll was copied into a batch."""
    frame = bytes(range(len(an_unroll_frame())))
    place = shared.put(0, frame)
    (came,) = shared.say_unroll(0, place)
    assert isinstance(came, UnrollReceived)
    assert came.frame == frame
    assert shared.say_unroll(0, place) == []
    (credit,) = messages([*shared.producers.credits()])
    assert isinstance(credit, Credit)
    assert (credit.received_through, credit.acked_through) == (1, 0)
    shared.segment.free(credit.received_through)
    assert shared.put(1).offset == 0


def test_an_unroll_over_the_socket_may_follow_one_in_shared_memory(shared: SharedDriver) -> None:
    """As when the segment is full."""
    assert len(shared.say_unroll(0, shared.put(0))) == 1
    unroll = Unroll(session=shared.session, seq=1, lanes=2, actor="a")
    assert len(shared.say(unroll, an_unroll_frame())) == 1


@pytest.mark.parametrize("fault", ["offset", "length", "lanes", "truncated", "with a frame"])
def test_an_unroll_in_a_place_that_is_none_is_refused_by_code(shared: SharedDriver, fault: str) -> None:
    """The learner lives, the number is not taken, and the same unroll over the socket is."""
    place, frames = shared.put(0), []
    match fault:
        case "offset":
            place = place._replace(offset=shared.segment.num_bytes)
        case "length":
            place = place._replace(length=1 << 62)
        case "lanes":
            place = place._replace(length=place.length - 8)
        case "truncated":
            os.ftruncate(shared.file, 4096 + 8)
        case "with a frame":
            frames = [an_unroll_frame()]
    header = Unroll(
        session=shared.session, seq=0, lanes=2, actor="a", segment=place.segment, offset=place.offset,
        length=place.length,
    )  # fmt: skip
    (error,) = shared.ask(header, *frames)
    assert isinstance(error, Error)
    codes = {"offset": "segment", "truncated": "segment", "with a frame": "frames"}
    assert (error.code, error.retryable) == (codes.get(fault, "frame_size"), True)
    assert len(shared.say(Unroll(session=shared.session, seq=0, lanes=2, actor="a"), an_unroll_frame())) == 1


def test_weights_are_put_where_get_wants_them(shared: SharedDriver) -> None:
    """Without a frame then; a GET that names no place, or one of another size, gets a frame."""
    place = shared.segment.place_for_weights(len(b"weights"))
    assert place is not None
    get = Get(
        session=shared.session, have_version=0, have_manifest="", segment=place.segment, offset=place.offset,
        length=place.length,
    )  # fmt: skip
    (sent,) = shared.say(get)
    assert isinstance(sent, SendToProducer)
    answer = decode(sent.frames[0])
    assert isinstance(answer, Weights)
    assert (len(sent.frames), answer.segment, answer.version, sent.is_useful) == (1, shared.segment.id, 7, True)
    assert shared.segment.take_weights(7) == b"weights"
    for again in (replace(get, length=place.length - 1), Get(session=shared.session, have_version=0, have_manifest="")):
        (sent,) = shared.say(again, now=2.0)
        assert isinstance(sent, SendToProducer)
        assert sent.frames[1:] == [b"weights"]
        shared.producers.publisher.forget(shared.session)


def test_a_place_for_weights_beyond_the_segment_is_an_error(shared: SharedDriver) -> None:
    """And nothing is written there."""
    get = Get(
        session=shared.session, have_version=0, have_manifest="", segment=shared.segment.id,
        offset=shared.segment.num_bytes, length=15,
    )  # fmt: skip
    (error,) = shared.ask(get)
    assert isinstance(error, Error)
    assert (error.code, error.retryable) == ("segment", True)
    assert os.fstat(shared.file).st_size == 4096 + shared.segment.num_bytes
    assert len(shared.say(replace(get, segment=0))) == 1


def test_a_spoiled_place_spoils_only_the_senders_own_rows(shared: SharedDriver) -> None:
    """What is judged is a copy: it no longer changes when the producer writes to the place again."""
    place = shared.put(0, bytes(len(an_unroll_frame())))
    (came,) = shared.say_unroll(0, place)
    os.pwrite(shared.file, b"\xff" * place.length, 4096 + place.offset)
    assert isinstance(came, UnrollReceived)
    assert came.frame == bytes(place.length)


def test_an_unroll_in_the_segment_of_an_earlier_greeting_is_not_read(shared: SharedDriver) -> None:
    """Its place may hold another unroll by now. A producer that means it says HELLO again and offers a new segment."""
    place = shared.put(0)
    other = Segment(4096, shared.folder)
    assert shared.greet(other).segment_secret == other.secret
    assert messages(shared.say_unroll(0, place)) == [Challenge(session=shared.session, server_epoch=3)]
    assert shared.producers.refused_messages == 0
    assert len(shared.say(Unroll(session=shared.session, seq=0, lanes=2, actor="a"), an_unroll_frame())) == 1
    other.close()


@pytest.mark.parametrize("end", ["bye", "lease", "revoked", "close"])
def test_a_segment_is_closed_with_its_session(shm_folder: Path, end: str) -> None:
    """Memory and file descriptor return, whichever way it ends."""
    before = len(os.listdir("/proc/self/fd"))
    driver = SharedDriver(shm_folder)
    match end:
        case "bye":
            driver.say(Bye(session=0, reason="draining"))
        case "lease":
            driver.producers.beat(100.0, may_expire=True)
        case "revoked":
            driver.producers.revoke([ROUTE])
        case "close":
            driver.producers.close()
    os.close(driver.file)
    driver.segment.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_open_segments_are_bounded(shm_folder: Path) -> None:
    """Each has a file descriptor; sessions beyond use the socket."""
    driver = SessionsDriver(folder=shm_folder)
    secrets = []
    for number in range(MAX_SEGMENTS + 1):
        segment = Segment(4096, shm_folder)
        hello = a_hello(number, segment=segment.id, segment_bytes=4096)
        welcome = driver.ask(hello, route=b"%d" % number)[0]
        assert isinstance(welcome, ProducerWelcome)
        secrets.append(welcome.segment_secret)
        segment.close()
    assert [bool(secret) for secret in secrets] == [True] * MAX_SEGMENTS + [False]
    driver.producers.close()
