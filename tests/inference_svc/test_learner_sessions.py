"""Ways to the learner, one for each task over one connection, driven by messages and numbers for time."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.learner_events import (
    CreditReceived,
    Refused,
    RunFinished,
    SpecificationRefused,
    WeightsReceived,
    Welcomed,
)
from seedbed.inference_svc.learner_sessions import LearnerSessions
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Credit,
    Get,
    Message,
    Ping,
    Pong,
    ProducerHello,
    Reject,
    SessionReport,
    TaskEnv,
    Weights,
)
from seedbed.shared.protocol.rows import EnvSpec
from tests.support.specs import make_spec
from tests.support.unroll_link import credit, producer_welcome

SPEC = make_spec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3), env_id="P")
TENNIS = replace(SPEC, env_id="T")
TASKS = (TaskEnv(name="pong", env_id="P"), TaskEnv(name="tennis", env_id="T"))
SESSIONS = {"": 1, "pong": 2, "tennis": 3}


class ScriptedLearner:
    """LearnerSessions, and a learner as scripted as a test wants it."""

    def __init__(self) -> None:
        self.learner_sessions = LearnerSessions(name="i", incarnation=7, library_version="0", load=lambda: ())

    def poll(self, now: float = 0.0) -> list[Message]:
        return [decode(bytes(frames[0])) for frames in self.learner_sessions.poll(now)]

    def hellos(self, now: float = 0.0) -> dict[str, ProducerHello]:
        return {item.task: item for item in self.poll(now) if isinstance(item, ProducerHello)}

    def welcome(self, hello: ProducerHello, tasks: tuple[TaskEnv, ...] = TASKS) -> None:
        message = producer_welcome(nonce=hello.nonce, session=SESSIONS[hello.task], tasks=tasks)
        ((task, event),) = self.learner_sessions.receive(message, [], 0.0)
        assert (task, type(event)) == (hello.task, Welcomed)

    def open(self, *tasks: str) -> "ScriptedLearner":
        self.learner_sessions.connected(0.0)
        self.welcome(self.hellos()[""])
        for task in tasks:
            self.learner_sessions.introduce(task, SPEC if task == "pong" else TENNIS, 0.0)
        for hello in self.hellos().values():
            self.welcome(hello)
        return self


def a_credit(task: str, through: int, acked: int = 0) -> Credit:
    return credit(through, acked, session=SESSIONS[task])


def test_a_tasks_way_is_opened_by_its_first_environments() -> None:
    """With their specification, once the learner has said that there is such a task."""
    scripted = ScriptedLearner()
    scripted.learner_sessions.connected(0.0)
    first = scripted.hellos()
    assert list(first) == [""]
    scripted.learner_sessions.introduce("pong", SPEC, 0.0)
    scripted.learner_sessions.introduce("golf", SPEC, 0.0)
    scripted.welcome(first[""])
    hellos = scripted.hellos()
    assert list(hellos) == ["pong"], "who came early is remembered if the run has the task"
    assert hellos["pong"].spec == SPEC
    assert hellos["pong"].incarnation == first[""].incarnation
    scripted.learner_sessions.introduce("tennis", TENNIS, 0.0)
    assert list(scripted.hellos()) == ["tennis"]


def test_weights_and_beats_come_over_one_session_alone() -> None:
    """However many tasks there are."""
    scripted = ScriptedLearner().open("pong", "tennis")
    due = scripted.poll(1.5)
    assert [type(item) for item in due] == [Ping]
    assert sum(isinstance(item, Get) for item in scripted.poll(10.0)) == 1
    weights = Weights(session=1, version=5, manifest_digest="d", manifest="{}")
    ((task, event),) = scripted.learner_sessions.receive(weights, [b"w"], 2.0)
    assert (task, type(event)) == ("", WeightsReceived)


def test_credit_is_the_tasks_whose_session_it_names() -> None:
    """And so is what may be sent."""
    scripted = ScriptedLearner().open("pong", "tennis")
    ((task, event),) = scripted.learner_sessions.receive(a_credit("tennis", 4), [], 0.0)
    assert (task, type(event)) == ("tennis", CreditReceived)
    assert scripted.learner_sessions.of("tennis").link.outbox.can_send(4)
    assert not scripted.learner_sessions.of("pong").link.outbox.can_send(4)


def test_one_pong_shows_every_task_what_is_missing() -> None:
    """The beat is one, the unrolls are told apart by session."""
    scripted = ScriptedLearner().open("pong", "tennis")
    for task in ("pong", "tennis"):
        scripted.learner_sessions.receive(a_credit(task, 8), [], 0.0)
        outbox = scripted.learner_sessions.of(task).link.outbox
        outbox.push(4, [b""])
        outgoing = outbox.next_outgoing()
        assert outgoing is not None
        assert outgoing.message.session == SESSIONS[task]
        outbox.sent(outgoing)
    (ping,) = scripted.poll(1.5)
    assert isinstance(ping, Ping)
    reports = tuple(
        SessionReport(session=SESSIONS[task], last_seq=last, state=0, age_ms=0)
        for task, last in (("", -1), ("pong", 0), ("tennis", -1))
    )
    scripted.learner_sessions.receive(
        Pong(sent_ms=ping.sent_ms, server_epoch=1, work_age_ms=0, sessions=reports), [], 1.6
    )
    assert scripted.learner_sessions.of("pong").link.outbox.next_outgoing() is None
    assert scripted.learner_sessions.of("tennis").link.outbox.next_outgoing() is not None


def test_a_refused_task_costs_only_itself() -> None:
    """Its environments hear the learner's words; others of the same task may be right."""
    scripted = ScriptedLearner().open("pong")
    scripted.learner_sessions.introduce("tennis", TENNIS, 0.0)
    hello = scripted.hellos()["tennis"]
    reject = Reject(nonce=hello.nonce, code="spec", retryable=False, message="other spaces", hint="mend it")
    ((task, event),) = scripted.learner_sessions.receive(reject, [], 0.0)
    assert (task, type(event)) == ("tennis", SpecificationRefused)
    problem = scripted.learner_sessions.check_env("tennis", TENNIS)
    assert problem is not None
    assert (problem.message, problem.hint) == ("other spaces", "mend it")
    assert (
        scripted.learner_sessions.check_env("tennis", replace(TENNIS, statistics=("return", "length", "score"))) is None
    )
    assert scripted.learner_sessions.check_env("pong", SPEC) is None
    assert scripted.learner_sessions.of("pong").link.welcome is not None
    other = replace(TENNIS, statistics=("return", "length", "score"))
    scripted.learner_sessions.introduce("tennis", other, 1.0)
    (again,) = scripted.hellos(1.0).values()
    assert (again.task, again.spec) == ("tennis", other)


def test_a_task_that_the_learner_has_not_any_more_is_closed() -> None:
    """It may have been started again with another file; the others stay."""
    scripted = ScriptedLearner().open("pong")
    scripted.learner_sessions.introduce("tennis", TENNIS, 0.0)
    hello = scripted.hellos()["tennis"]
    reject = Reject(nonce=hello.nonce, code="task", retryable=False, message="no such task", hint="")
    ((task, event),) = scripted.learner_sessions.receive(reject, [], 0.0)
    assert (task, type(event)) == ("tennis", Refused)
    assert [stream.task for stream in scripted.learner_sessions.all] == ["", "pong"]


@pytest.mark.parametrize(
    ("task", "spec", "told"),
    [
        ("golf", SPEC, "'golf'; this run has the tasks pong, tennis"),
        ("", SPEC, "not set; this run has the tasks pong, tennis"),
        ("pong", TENNIS, "environment id: ours 'P', theirs 'T'"),
    ],
)
def test_who_has_no_place_in_the_run_is_told_why(task: str, spec: EnvSpec, told: str) -> None:
    """As soon as the learner has said which tasks there are, and not before."""
    scripted = ScriptedLearner()
    assert scripted.learner_sessions.check_env(task, spec) is None
    problem = scripted.open().learner_sessions.check_env(task, spec)
    assert problem is not None
    assert told in problem.message


def test_a_run_without_tasks_has_no_place_for_one() -> None:
    """And takes whoever names none."""
    scripted = ScriptedLearner()
    scripted.learner_sessions.connected(0.0)
    scripted.welcome(scripted.hellos()[""], tasks=())
    problem = scripted.learner_sessions.check_env("pong", SPEC)
    assert problem is not None
    assert problem.code == "task"
    assert scripted.learner_sessions.check_env("", SPEC) is None


def test_only_the_session_that_is_challenged_greets_again() -> None:
    """And all of them when the connection was lost."""
    scripted = ScriptedLearner().open("pong", "tennis")
    scripted.learner_sessions.receive(Challenge(session=3, server_epoch=1), [], 1.0)
    assert list(scripted.hellos(1.0)) == ["tennis"]
    scripted.learner_sessions.disconnected(2.0)
    scripted.learner_sessions.connected(2.0)
    assert list(scripted.hellos(2.0)) == [""], "the tasks follow once the learner is known"


def test_the_end_of_the_run_is_told_whoever_it_is_addressed_to() -> None:
    """One farewell is enough."""
    scripted = ScriptedLearner().open("pong")
    ((_task, event),) = scripted.learner_sessions.receive(Bye(session=2, reason="run_finished"), [], 1.0)
    assert isinstance(event, RunFinished)


def open_streams(number: int) -> LearnerSessions:
    """Sessions of a run with one environment, open at so many learner ranks, with credit for 4 lanes at each."""
    sessions = LearnerSessions(name="i", incarnation=7, library_version="0", load=lambda: (("lanes", 1.0),))
    sessions.set_ranks(number, 0.0)
    for rank in range(number):
        (stream,) = sessions.at_rank(rank)
        open_stream(stream, rank)
    return sessions


def open_stream(stream: LearnerSessions, session: int) -> None:
    """Connect a stream: HELLO, WELCOME and credit for 4 lanes."""
    stream.connected(0.0)
    (hello,) = [decode(bytes(frames[0])) for frames in stream.poll(0.0)]
    assert isinstance(hello, ProducerHello)
    assert hello.stream == stream.stream
    stream.receive(producer_welcome(nonce=hello.nonce, session=100 + session), [], 0.0)
    stream.receive(credit(4, session=100 + session), [], 0.0)


def test_each_learner_rank_has_a_stream_and_the_chief_alone_is_asked_for_weights() -> None:
    """And it alone is told the load."""
    sessions = open_streams(3)
    assert [link.stream for link in sessions.of("").links] == [0, 1, 2]
    streams = [stream for rank in range(3) for stream in sessions.at_rank(rank)]
    asked = [[decode(bytes(frames[0])) for frames in stream.poll(9.0)] for stream in streams]
    assert [[type(message) for message in messages] for messages in asked] == [[Ping, Get], [Ping], [Ping]]
    assert [messages[0].load for messages in asked] == [(("lanes", 1.0),), (), ()]


def test_an_unroll_goes_to_the_rank_that_has_least_to_use_up() -> None:
    """Of those that have credit, and in turn where they are alike: none waits while another one's unrolls grow old."""
    sessions = open_streams(3)
    session = sessions.of("")
    outboxes = [link.outbox for link in session.links]

    def push(lanes: int) -> int:
        outbox = session.choose(lanes)
        assert outbox is not None
        outbox.push(lanes, [b"u"])
        return outboxes.index(outbox)

    assert [push(2) for _ in outboxes] == [0, 1, 2]
    (first,) = sessions.at_rank(0)
    first.receive(credit(20, 1, session=100), [], 1.0)
    assert push(1) == 0, "it has used its first one"
    assert [push(2) for _ in range(3)] == [0, 1, 2]
    assert [push(2) for _ in range(2)] == [0, 0], "the others have no credit left"


def test_an_unroll_waits_where_no_rank_has_credit_for_it() -> None:
    """Whatever they have to use up."""
    session = open_streams(2).of("")
    for link in session.links:
        link.outbox.push(4, [b"u"])
    assert session.choose(1) is None


def test_a_stream_without_a_rank_goes_to_another_until_all_is_acknowledged() -> None:
    """After the learner began again with fewer ranks; it gets nothing new."""
    sessions = open_streams(2)
    left = sessions.streams[1]
    left.main.outbox.push(2, [b"u"])
    left.disconnected(1.0)
    sessions.set_ranks(1, 1.0)
    assert [link.stream for link in sessions.of("").links] == [0]
    assert sessions.at_rank(0) == [sessions, left]
    assert not sessions.leaving_streams()
    assert not sessions.is_empty
    open_stream(left, 5)
    left.receive(credit(4, 1, session=105), [], 2.0)
    assert sessions.leaving_streams() == [left]
    assert sessions.is_empty
    left.disconnected(3.0)
    assert sessions.at_rank(0) == [sessions]
    assert not sessions.leaving_streams()


def test_a_task_that_comes_back_goes_on_with_its_numbers() -> None:
    """The learner remembers what it has trained on of this process, also while a life of it lacks the task."""
    scripted = ScriptedLearner().open("pong")
    scripted.learner_sessions.receive(a_credit("pong", 8), [], 0.0)
    scripted.learner_sessions.of("pong").link.outbox.push(4, [b"u"])
    scripted.learner_sessions.receive(a_credit("pong", 8, 1), [], 0.0)
    for tasks in ((TASKS[1],), TASKS):
        scripted.learner_sessions.disconnected(1.0)
        scripted.learner_sessions.connected(1.0)
        scripted.welcome(scripted.hellos(1.0)[""], tasks)
        scripted.learner_sessions.introduce("pong", SPEC, 1.0)
        hello = scripted.hellos(1.0)["pong"]
        if tasks != TASKS:
            reject = Reject(nonce=hello.nonce, code="task", retryable=False, message="no such task", hint="")
            scripted.learner_sessions.receive(reject, [], 1.0)
    assert hello.oldest_seq == 1
