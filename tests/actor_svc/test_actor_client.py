"""GroupClient: each rule of the step link at the actor, with numbers for time."""

import pytest

from seedbed.actor_svc.client import (
    Actions,
    ClientPhase,
    Fatal,
    Finished,
    GroupClient,
    ResetLanes,
    Send,
    StartLanes,
    StepLanes,
    Turn,
)
from seedbed.shared.errors import LocalWireError, RemoteWireError
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Error,
    Hello,
    Reject,
    RequestState,
    SessionReport,
    Step,
    Welcome,
)
from tests.support.step_link import actions, counter, hello, number_in, rows


def client(*, reset_when_lost: bool = False) -> GroupClient:
    """A group that has not started."""
    return GroupClient(hello(), counter(), reset_when_lost=reset_when_lost)


def welcome(nonce: int = 1, session: int = 5, next_seq: int = 0, **changes: object) -> Welcome:
    """Session 5 of run-a, unless changed."""
    fields = {
        "server_epoch": 77, "protocol": 1, "run_id": "run-a", "beat_s": 1.0, "lease_s": 10.0, "seed": 42,
        "resumed": next_seq > 0,
    }  # fmt: skip
    return Welcome(nonce=nonce, session=session, next_seq=next_seq, **(fields | changes))  # type: ignore[arg-type]


def sent(acted: Actions) -> list[object]:
    """The messages among the actions."""
    return [action.message for action in acted if isinstance(action, Send)]


def sent_hello(acted: Actions) -> Hello:
    """The one HELLO that was sent."""
    (message,) = sent(acted)
    assert isinstance(message, Hello)
    return message


def act(seq: int, session: int = 5, **changes: int) -> Act:
    """An answer."""
    return Act(session=session, seq=seq, policy_version=3, **changes)


def active(*, reset_when_lost: bool = False) -> GroupClient:
    """A group in session 5 whose first rows, number 0, are outstanding since second 1."""
    group = client(reset_when_lost=reset_when_lost)
    group.start(0.0)
    assert group.receive(welcome(), (), 0.5) == (StartLanes(0, 42, fresh=True),)
    assert sent(group.submit(rows(0), 0, 1.0)) == [Step(session=5, seq=0)]
    return group


def report(last_seq: int, state: RequestState, session: int = 5) -> SessionReport:
    """A line of a PONG."""
    return SessionReport(session=session, last_seq=last_seq, state=int(state), age_ms=0)


def test_a_tick_goes_up_and_its_actions_come_down() -> None:
    """STEP, ACT, STEP: seq rises by one with each."""
    group = active()
    assert group.receive(act(0), actions(7), 2.0) == (StepLanes(0, actions(7), 3),)
    assert sent(group.submit(rows(1), 1, 3.0)) == [Step(session=5, seq=1, bits=1)]


def test_rows_out_of_turn_are_our_own_error() -> None:
    """One STEP is outstanding."""
    group = active()
    with pytest.raises(LocalWireError):
        group.submit(rows(1), 0, 2.0)


@pytest.mark.parametrize("late", [act(1), act(0, session=6)])
def test_acts_for_another_seq_or_session_are_ignored(late: Act) -> None:
    """Nothing is performed that does not answer the outstanding STEP."""
    group = active()
    assert group.receive(late, actions(7), 2.0) == ()
    assert group.num_ignored == 1


def test_a_doubled_act_is_performed_once() -> None:
    """The second copy finds the turn with the environments."""
    group = active()
    group.receive(act(0), actions(7), 2.0)
    assert group.receive(act(0), actions(7), 2.0) == ()


def test_an_act_of_the_wrong_size_is_refused_and_the_turn_stays() -> None:
    """The good copy may still come."""
    group = active()
    with pytest.raises(RemoteWireError):
        group.receive(act(0), [b"short"], 2.0)
    assert group.receive(act(0), actions(7), 2.0) == (StepLanes(0, actions(7), 3),)


def test_reset_bit_begins_fresh_episodes() -> None:
    """Inference may ask for a reset in place of actions; the first rows are the next seq."""
    group = active()
    asked = act(0, bits=int(ActBits.RESET), reset_seed=9)
    assert group.receive(asked, (), 2.0) == (ResetLanes(0, 9),)
    assert sent(group.submit(rows(1), 0, 3.0)) == [Step(session=5, seq=1)]
    asked = act(1, bits=int(ActBits.RESET | ActBits.PICTURE), reset_seed=9)
    assert group.receive(asked, (), 4.0) == (ResetLanes(0, 9, wants_picture=True),)


def test_a_missing_act_alone_triggers_nothing() -> None:
    """Inference may be holding it: time passes, nothing is sent."""
    group = active()
    assert all(group.poll(second) == () for second in range(1, 1000))


@pytest.mark.parametrize(
    "state",
    [
        RequestState.QUEUED,
        RequestState.HELD_NO_CREDIT,
        RequestState.HELD_NO_WEIGHTS,
        RequestState.HELD_NO_EVALUATION,
    ],
)
def test_a_step_that_is_known_above_is_not_sent_again(state: RequestState) -> None:
    """Queued and held are reasons to wait."""
    assert active().report(report(0, state), 2.0, 2.1) == ()


@pytest.mark.parametrize("line", [report(-1, RequestState.UNKNOWN), report(0, RequestState.ANSWERED)])
def test_a_step_that_was_lost_or_whose_act_was_lost_is_sent_again(line: SessionReport) -> None:
    """PONG shows a lower seq, or `answered` without the ACT; the same seq and the same rows go again, once."""
    group = active()
    (again,) = group.report(line, 2.0, 2.1)
    assert isinstance(again, Send)
    assert again.message == Step(session=5, seq=0)
    assert number_in(again.payload) == 0
    assert group.report(line, 2.0, 2.2) == (), "this PONG was asked for before the resend"
    assert len(group.report(line, 3.0, 3.1)) == 1


def test_pongs_asked_for_before_the_step_say_nothing_about_it() -> None:
    """Their server could not have had it."""
    assert active().report(report(-1, RequestState.UNKNOWN), 1.0, 1.1) == ()


def test_a_session_missing_from_a_pong_is_lost() -> None:
    """As if challenged; not if the PING is older than the session."""
    group = active()
    assert group.report(None, 0.5, 0.6) == ()
    assert sent_hello(group.report(None, 2.0, 2.1)).nonce == 2


def test_challenge_counts_for_the_current_session_only() -> None:
    """One that names another session is late."""
    group = active()
    assert group.receive(Challenge(session=4, server_epoch=78), (), 2.0) == ()
    assert sent_hello(group.receive(Challenge(session=5, server_epoch=78), (), 2.0)).nonce == 2
    assert group.receive(Challenge(session=5, server_epoch=78), (), 2.0) == (), "already asking"


def test_the_outstanding_observation_is_sent_again_in_a_new_session() -> None:
    """As its first seq; the environments are not reset."""
    group = active()
    group.receive(act(0), actions(7), 2.0)
    group.submit(rows(1), 0, 3.0)
    group.receive(Challenge(session=5, server_epoch=78), (), 3.5)
    (again,) = group.receive(welcome(2, session=6), (), 4.0)
    assert isinstance(again, Send)
    assert again.message == Step(session=6, seq=0)
    assert number_in(again.payload) == 1
    assert group.receive(act(1, session=5), actions(8), 4.5) == (), "the former session's answer comes too late"
    assert group.receive(act(0, session=6), actions(9), 5.0) == (StepLanes(0, actions(9), 3),)


def test_rows_that_come_while_the_session_is_lost_begin_the_next() -> None:
    """The environments were busy: their rows wait for the WELCOME."""
    group = active()
    group.receive(act(0), actions(7), 2.0)
    group.receive(Challenge(session=5, server_epoch=78), (), 2.5)
    assert group.submit(rows(1), 0, 3.0) == ()
    assert sent(group.receive(welcome(2, session=6), (), 4.0)) == [Step(session=6, seq=0)]


def test_a_session_lost_while_the_environments_are_busy_costs_nothing() -> None:
    """They go on; the next rows are seq 0 there."""
    group = active()
    group.receive(act(0), actions(7), 2.0)
    group.receive(Challenge(session=5, server_epoch=78), (), 2.5)
    assert group.receive(welcome(2, session=6), (), 3.0) == ()
    assert sent(group.submit(rows(1), 0, 4.0)) == [Step(session=6, seq=0)]


@pytest.mark.parametrize("next_seq", [0, 1])
def test_after_a_reconnect_the_outstanding_step_is_sent_again(next_seq: int) -> None:
    """In the resumed session under its old seq, whether it had arrived (for its ACT) or not."""
    group = active()
    assert sent_hello(group.connection_reset(2.0)).nonce == 2
    assert sent(group.receive(welcome(2, next_seq=next_seq), (), 2.5)) == [Step(session=5, seq=0)]
    assert group.num_sessions == 1


def test_an_act_that_arrives_while_resuming_is_performed() -> None:
    """It answers the outstanding STEP, whatever the phase; the WELCOME then finds nothing to resend."""
    group = active()
    group.connection_reset(2.0)
    assert group.receive(act(0), actions(7), 2.2) == (StepLanes(0, actions(7), 3),)
    assert group.receive(welcome(2, next_seq=1), (), 2.5) == ()
    assert sent(group.submit(rows(1), 0, 3.0)) == [Step(session=5, seq=1)]


def test_a_resumed_session_that_disagrees_is_left() -> None:
    """If the server expects a seq that we cannot give, BYE and a new session."""
    group = active()
    group.connection_reset(2.0)
    bye, again = sent(group.receive(welcome(2, next_seq=9), (), 2.5))
    assert bye == Bye(session=5, reason="moved")
    assert isinstance(again, Hello)


def test_a_session_left_before_is_not_entered_again() -> None:
    """A group that moved away and back, its BYE lost, must not continue the old unroll."""
    group = active()
    group.leave("moved")
    group.start(2.0)
    bye, again = sent(group.receive(welcome(2, next_seq=1), (), 2.5))
    assert bye == Bye(session=5, reason="moved")
    assert isinstance(again, Hello)
    assert sent(group.receive(welcome(3, session=6), (), 3.0)) == [Step(session=6, seq=0)]


def test_welcomes_with_another_nonce_are_ignored() -> None:
    """They answer an earlier HELLO."""
    group = active()
    group.connection_reset(2.0)
    assert group.receive(welcome(1, session=9), (), 2.5) == ()
    assert group.session == 5


def test_unanswered_hellos_are_repeated_ever_more_slowly() -> None:
    """After 0.2, 0.4, 0.8, 1.6, 2, 2 … seconds, with the same nonce."""
    group = client()
    group.start(0.0)
    times = [tick / 64 for tick in range(1, 640) if group.poll(tick / 64)]
    assert times == pytest.approx([0.2, 0.6, 1.4, 3.0, 5.0, 7.0, 9.0], abs=0.15)


@pytest.mark.parametrize(
    "answer",
    [
        Error(code="starting", scope="connection", session=0, nonce=1, retryable=True, message="no weights"),
        Reject(nonce=1, code="capacity", retryable=True, message="full"),
    ],
)
def test_refusals_that_may_pass_are_waited_for(answer: Error | Reject) -> None:
    """In process, however long; then the WELCOME is taken."""
    group = client()
    group.start(0.0)
    for second in range(1, 100):
        assert group.receive(answer, (), float(second)) == ()
        assert len(sent(group.poll(second + 2.0))) == 1
    assert answer.code in group.refusal
    assert group.receive(welcome(1), (), 200.0) == (StartLanes(0, 42, fresh=True),)
    assert group.refusal == ""


def test_refusals_for_good_are_fatal() -> None:
    """The error says code, cause and remedy, and exits 78."""
    group = client()
    group.start(0.0)
    answer = Reject(nonce=1, code="spec", retryable=False, message="leaf a/0 differs", hint="change it")
    (end,) = group.receive(answer, (), 1.0)
    assert isinstance(end, Fatal)
    assert end.error.exit_code == 78
    assert all(part in str(end.error) for part in ("spec", "leaf a/0 differs", "change it"))
    assert group.phase is ClientPhase.DONE
    assert group.poll(99.0) == ()


def test_a_refusal_for_another_hello_is_ignored() -> None:
    """Its nonce says so."""
    group = active()
    assert group.receive(Reject(nonce=1, code="spec", retryable=False, message="late"), (), 1.0) == ()


def test_an_error_for_this_session_can_be_fatal() -> None:
    """It names the session instead of a nonce."""
    group = active()
    error = Error(code="bad", scope="session", session=5, retryable=False, message="no")
    assert isinstance(group.receive(error, (), 2.0)[0], Fatal)


@pytest.mark.parametrize("changes", [{"role": "learner"}, {"protocol": 9}])
def test_a_wrong_peer_is_fatal(changes: dict[str, object]) -> None:
    """A learner behind the address, or a protocol nobody asked for."""
    group = client()
    group.start(0.0)
    assert isinstance(group.receive(welcome(**changes), (), 1.0)[0], Fatal)


def test_a_finished_run_ends_the_group() -> None:
    """BYE(run_finished), to the session or to all."""
    for session in (0, 5):
        assert active().receive(Bye(session=session, reason="run_finished"), (), 2.0) == (Finished(0, "run_finished"),)


def test_a_draining_service_is_asked_again_in_a_moment() -> None:
    """BYE(draining) never ends an actor: dial on; the observation goes to whoever answers."""
    group = active()
    assert group.receive(Bye(session=5, reason="draining"), (), 2.0) == ()
    assert group.poll(2.1) == ()
    nonce = sent_hello(group.poll(2.3)).nonce
    assert sent(group.receive(welcome(nonce, session=8), (), 3.0)) == [Step(session=8, seq=0)]


def test_the_run_id_is_carried_once_known() -> None:
    """So that an inference service of another run can refuse."""
    group = client()
    assert sent_hello(group.start(0.0)).run_id == ""
    group.receive(welcome(), (), 0.5)
    assert sent_hello(group.connection_reset(1.0)).run_id == "run-a"


@pytest.mark.parametrize("has_bye", [False, True])
def test_another_run_begins_fresh_episodes(has_bye: bool) -> None:
    """Another run is another policy; after BYE(another_run) the former id is not named."""
    group = active()
    if has_bye:
        group.receive(Bye(session=5, reason="another_run"), (), 2.0)
        asked = sent_hello(group.poll(3.0))
        assert asked.run_id == ""
    else:
        asked = sent_hello(group.receive(Challenge(session=5, server_epoch=77), (), 2.0))
    answer = welcome(asked.nonce, session=6, run_id="run-b", seed=43)
    assert group.receive(answer, (), 4.0) == (StartLanes(0, 43, fresh=False),)
    assert sent(group.submit(rows(0), 0, 5.0)) == [Step(session=6, seq=0)]


def test_reset_when_lost_begins_fresh_episodes() -> None:
    """An option for policies with memory; rows of the interrupted tick are dropped."""
    group = active(reset_when_lost=True)
    group.receive(act(0), actions(7), 2.0)
    group.receive(Challenge(session=5, server_epoch=78), (), 2.5)
    assert group.receive(welcome(2, session=6, seed=43), (), 3.0) == ()
    assert group.submit(rows(1), 0, 3.5) == (StartLanes(0, 43, fresh=False),)
    assert sent(group.submit(rows(2), 0, 4.0)) == [Step(session=6, seq=0)]


def test_leaving_says_bye_and_keeps_the_turn() -> None:
    """The group may be placed elsewhere: its outstanding rows go there first."""
    group = active()
    assert sent(group.leave("moved")) == [Bye(session=5, reason="moved")]
    assert group.turn is Turn.INFERENCE
    assert group.leave("moved") == ()
    assert group.connection_reset(2.0) == ()
    nonce = sent_hello(group.start(2.0)).nonce
    assert sent(group.receive(welcome(nonce, session=1), (), 3.0)) == [Step(session=1, seq=0)]
