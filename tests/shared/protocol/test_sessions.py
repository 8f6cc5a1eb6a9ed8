"""SessionTable: each rule of the step link at inference, with numbers for time."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Bye, Ping, Reject, RequestState, Step, Welcome
from seedbed.shared.protocol.sessions import Session, SessionLimits, SessionTable, StepVerdict, group_seed
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.step_link import SPEC, hello

ROUTE, OTHER = b"route-1", b"route-2"


def table(**limits: float) -> SessionTable:
    """A table of run-a with these limits."""
    return SessionTable(77, 5, "run-a", SessionLimits(**limits))  # type: ignore[arg-type]


def opened(sessions: SessionTable, now: float = 0.0, route: bytes = ROUTE, **changes: object) -> Session:
    """The session that a HELLO opens."""
    welcome = sessions.hello(hello(**changes), route, now)
    assert isinstance(welcome, Welcome), welcome
    return sessions.sessions[welcome.session]


def refused(sessions: SessionTable, **changes: object) -> Reject:
    """The REJECT that a HELLO gets."""
    answer = sessions.hello(hello(**changes), ROUTE, 0.0)
    assert isinstance(answer, Reject)
    return answer


def stepped(sessions: SessionTable, session: Session, seq: int, now: float = 0.0, route: bytes = ROUTE) -> StepVerdict:
    """The verdict on a STEP."""
    return sessions.step(Step(session=session.id, seq=seq), route, now)


def test_first_hello_opens_a_session() -> None:
    """A WELCOME echoes the nonce and says where to begin."""
    sessions = table()
    welcome = sessions.hello(hello(nonce=9), ROUTE, 0.0)
    assert isinstance(welcome, Welcome)
    assert (welcome.nonce, welcome.resumed, welcome.next_seq) == (9, False, 0)
    assert (welcome.run_id, welcome.server_epoch, welcome.role) == ("run-a", 77, "inference")
    assert decode(encode(welcome)) == welcome


def test_hello_is_idempotent() -> None:
    """The same incarnation and group get their own session back, on the new route, with the next expected seq."""
    sessions = table()
    session = opened(sessions)
    stepped(sessions, session, 0)
    welcome = sessions.hello(hello(nonce=2), OTHER, 1.0)
    assert isinstance(welcome, Welcome)
    assert (welcome.session, welcome.resumed, welcome.next_seq) == (session.id, True, 1)
    assert session.route == OTHER
    assert sessions.num_lanes == 2


def test_other_groups_and_incarnations_get_their_own_sessions_and_seeds() -> None:
    """Identity is (incarnation, group); the actor's name is a label."""
    sessions = table()
    found = [opened(sessions, group=group, incarnation=life) for group in (0, 1) for life in (1, 2)]
    assert len({session.id for session in found}) == len({session.seed for session in found}) == 4


def test_seeds_repeat_for_the_same_run_seed_and_number_only() -> None:
    """So a check can ask for the same seed twice, and replicas play different episodes."""
    assert opened(table()).seed == opened(table()).seed == group_seed(5, 0, 1)
    assert len({group_seed(run, replica, number) for run in (5, 6) for replica in (0, 1) for number in (1, 2)}) == 8


def test_sessions_of_two_servers_have_different_names() -> None:
    """A STEP for a former server's session must not be taken for one of ours."""
    assert opened(SessionTable(1, 5, "r")).id != opened(SessionTable(2, 5, "r")).id


def test_next_seq_is_accepted_and_queued() -> None:
    """seq = last + 1 is new."""
    sessions = table()
    session = opened(sessions)
    assert stepped(sessions, session, 0, 3.0) is StepVerdict.ACCEPT
    assert (session.last_seq, session.state, session.state_since) == (0, RequestState.QUEUED, 3.0)


def test_resend_of_a_pending_step_moves_the_route_and_is_dropped() -> None:
    """seq = last and pending: the answer goes to where the resend came from."""
    sessions = table()
    session = opened(sessions)
    stepped(sessions, session, 0)
    assert stepped(sessions, session, 0, route=OTHER) is StepVerdict.PENDING
    assert session.route == OTHER
    sessions.mark(session, RequestState.HELD_NO_CREDIT, 1.0)
    assert stepped(sessions, session, 0, route=OTHER) is StepVerdict.PENDING


def test_resend_of_an_answered_step_gets_the_cached_reply() -> None:
    """seq = last and answered: the same frames again."""
    sessions = table()
    session = opened(sessions)
    stepped(sessions, session, 0)
    sessions.answer(session, [b"act"], 1.0)
    assert stepped(sessions, session, 0, 2.0) is StepVerdict.CACHED
    assert session.reply == [b"act"]
    assert session.state == RequestState.ANSWERED


def test_the_next_step_drops_the_cached_reply() -> None:
    """Memory is one reply per session, and an old one is never sent for a new step."""
    sessions = table()
    session = opened(sessions)
    stepped(sessions, session, 0)
    sessions.answer(session, [b"act"], 1.0)
    assert stepped(sessions, session, 1) is StepVerdict.ACCEPT
    assert session.reply is None


def test_older_steps_are_dropped_and_leave_the_route() -> None:
    """Lower than last: a late copy says nothing about where the group is now."""
    sessions = table()
    session = opened(sessions)
    for seq in (0, 1):
        stepped(sessions, session, seq)
        sessions.answer(session, [b"act"], 0.0)
    assert stepped(sessions, session, 0, route=OTHER) is StepVerdict.STALE
    assert session.route == ROUTE


def test_gaps_unknown_sessions_and_second_outstanding_steps_are_challenged() -> None:
    """Higher than last + 1, a session nobody has, or a new step before the answer to the last."""
    sessions = table()
    session = opened(sessions)
    assert stepped(sessions, session, 1) is StepVerdict.CHALLENGE
    assert sessions.step(Step(session=1, seq=0), ROUTE, 0.0) is StepVerdict.CHALLENGE
    assert stepped(sessions, session, 0) is StepVerdict.ACCEPT
    assert stepped(sessions, session, 1) is StepVerdict.CHALLENGE
    assert session.last_seq == 0
    challenge = sessions.challenge(session.id)
    assert (challenge.session, challenge.server_epoch) == (session.id, 77)


def test_pong_reports_the_sessions_of_this_connection() -> None:
    """Last seq, state and its age for each; others' sessions are not shown."""
    sessions = table()
    mine, other = opened(sessions), opened(sessions, route=OTHER, group=1)
    stepped(sessions, mine, 0, 1.0)
    sessions.mark(mine, RequestState.HELD_NO_WEIGHTS, 2.0)
    sessions.mark(mine, RequestState.HELD_NO_WEIGHTS, 3.0)
    pong = sessions.ping(Ping(sent_ms=123), ROUTE, 4.5, work_age_ms=7)
    assert (pong.sent_ms, pong.work_age_ms, pong.server_epoch) == (123, 7, 77)
    (report,) = pong.sessions
    assert (report.session, report.last_seq, report.age_ms) == (mine.id, 0, 2500)
    assert report.state == RequestState.HELD_NO_WEIGHTS
    assert sessions.ping(Ping(sent_ms=1), OTHER, 5.0).sessions[0].last_seq == other.last_seq == -1
    assert sessions.ping(Ping(sent_ms=1), b"nobody", 5.0).sessions == ()


def test_pings_keep_the_lease_and_silence_ends_it() -> None:
    """Connected but silent for longer than the lease: freed, and the next STEP is challenged."""
    sessions = table(lease_s=10.0)
    session = opened(sessions)
    sessions.ping(Ping(sent_ms=1), ROUTE, 9.0)
    assert sessions.expire(19.0, drained=True) == []
    assert sessions.expire(19.1, drained=True) == [session]
    assert session.is_ended
    assert sessions.num_lanes == 0
    assert sessions.routes() == []
    assert stepped(sessions, session, 0) is StepVerdict.CHALLENGE


def test_a_declared_stall_lengthens_the_lease_within_bounds() -> None:
    """max_stall_s of HELLO holds where it is longer than the lease."""
    sessions = table(lease_s=10.0, max_stall_s=60.0)
    assert opened(sessions, max_stall_s=30.0).lease_s == 30.0
    assert opened(sessions, group=1, max_stall_s=1.0).lease_s == 10.0
    assert opened(sessions, group=2, max_stall_s=9999.0).lease_s == 60.0


def test_nobody_is_judged_with_messages_unread_or_after_our_own_stall() -> None:
    """Their signs of life may lie in our socket."""
    sessions = table(lease_s=10.0)
    session = opened(sessions)
    assert sessions.expire(99.0, drained=False) == []
    assert sessions.expire(99.0, drained=True, stalled_until=99.5) == []
    assert sessions.expire(99.6, drained=True, stalled_until=99.5) == [session]


def test_closed_connection_detaches_for_three_seconds() -> None:
    """Resumable within them by HELLO; freed after."""
    sessions = table(lease_s=10.0, detach_s=3.0)
    session = opened(sessions)
    assert sessions.unroutable(ROUTE, 1.0) == [session]
    assert sessions.unroutable(ROUTE, 2.0) == []
    assert sessions.expire(4.0, drained=True) == []
    welcome = sessions.hello(hello(nonce=2), OTHER, 4.0)
    assert isinstance(welcome, Welcome)
    assert welcome.resumed
    assert sessions.expire(9.0, drained=True) == []
    sessions.unroutable(OTHER, 9.0)
    assert sessions.num_detached == 1
    assert sessions.expire(12.1, drained=True) == [session]
    assert sessions.num_detached == 0


def test_a_message_on_the_connection_takes_a_detachment_back() -> None:
    """A full send queue looks like a closed connection; a beat proves the opposite."""
    sessions = table()
    session = opened(sessions)
    sessions.unroutable(ROUTE, 1.0)
    sessions.ping(Ping(sent_ms=1), ROUTE, 2.0)
    assert session.detached_at is None
    sessions.unroutable(ROUTE, 2.0)
    assert sessions.num_detached == 1
    stepped(sessions, session, 0, 3.0)
    assert session.detached_at is None
    assert sessions.num_detached == 0


def test_bye_ends_the_named_session_or_all_of_the_connection() -> None:
    """Session 0 means every session of this connection; a session that moved elsewhere stays."""
    sessions = table()
    first, second, third = (opened(sessions, group=group) for group in range(3))
    moved = opened(sessions, group=3, route=OTHER)
    assert sessions.bye(Bye(session=first.id, reason="moved"), ROUTE, 0.0) == [first]
    assert sessions.bye(Bye(session=moved.id, reason="moved"), ROUTE, 0.0) == []
    assert sessions.bye(Bye(session=0, reason="stopped"), ROUTE, 0.0) == [second, third]
    assert list(sessions.sessions.values()) == [moved]


def test_a_group_that_left_begins_at_seq_zero() -> None:
    """After BYE the same incarnation and group get a new session: no unroll spans two."""
    sessions = table()
    session = opened(sessions)
    stepped(sessions, session, 0)
    sessions.bye(Bye(session=session.id, reason="moved"), ROUTE, 0.0)
    again = opened(sessions)
    assert again.id != session.id
    assert again.last_seq == -1


def test_draining_ends_all_and_refuses_for_now() -> None:
    """HELLO is refused retryably, so that groups try another."""
    sessions = table()
    session = opened(sessions)
    assert sessions.drain() == [session]
    assert (refused(sessions).code, refused(sessions).retryable) == ("draining", True)


def test_capacity_is_refused_for_now_with_both_figures() -> None:
    """The refusal says how many lanes are in use."""
    sessions = table(max_lanes=3)
    opened(sessions)
    refusal = refused(sessions, group=1, nonce=4)
    assert (refusal.code, refusal.retryable, refusal.nonce) == ("capacity", True, 4)
    assert "2 of 3" in refusal.message
    assert isinstance(sessions.hello(hello(), ROUTE, 0.0), Welcome), "a session that is there is no new load"


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("protocol", {"protocol_min": 99, "protocol_max": 99}),
        ("another_run", {"run_id": "run-b"}),
        ("frame_bytes", {"lanes": 1000}),
    ],
)
def test_what_can_never_work_is_refused_for_good(code: str, changes: dict[str, object]) -> None:
    """No common protocol, another run, frames over the limit."""
    refusal = refused(table(max_frame_bytes=4096), **changes)
    assert (refusal.code, refusal.retryable) == (code, False)
    assert decode(encode(refusal)) == refusal


def test_frame_refusal_names_both_figures() -> None:
    """So that the user can see which to change."""
    message = refused(table(max_frame_bytes=4096), lanes=1000).message
    assert "4096" in message
    assert "21000" in message


def test_a_group_that_changes_its_shape_is_refused() -> None:
    """One incarnation's group has one number of lanes, one mode, one task and one specification."""
    sessions = table()
    opened(sessions)
    assert refused(sessions, lanes=3).code == "group_changed"
    assert refused(sessions, mode="eval").code == "group_changed"
    assert refused(sessions, task="pong").code == "group_changed"


def test_another_run_ends_all_sessions_but_lets_their_groups_back() -> None:
    """Another run id is another policy; whoever knew the former run may come again, a stranger to both may not."""
    sessions = table()
    session = opened(sessions, run_id="run-a")
    assert sessions.change_run("run-b", 6) == [session]
    welcome = sessions.hello(hello(run_id="run-a"), ROUTE, 0.0)
    assert isinstance(welcome, Welcome)
    assert (welcome.run_id, welcome.resumed) == ("run-b", False)
    assert refused(sessions, group=1, run_id="run-c").code == "another_run"


def test_strikes_end_the_session_and_ban_nobody() -> None:
    """After the limit the session is gone; its group may say HELLO again."""
    sessions = table(max_strikes=2)
    session = opened(sessions)
    assert sessions.strike(session) is None
    assert sessions.strike(session) is session
    assert sessions.strike(session) is None
    assert opened(sessions).id != session.id


def test_capabilities_that_are_not_served_are_left_out() -> None:
    """WELCOME carries the ones accepted."""
    welcome = table().hello(hello(capabilities=("reset", "telepathy")), ROUTE, 0.0)
    assert isinstance(welcome, Welcome)
    assert welcome.capabilities == ("reset",)


def test_a_session_obeys_only_the_key_that_opened_it() -> None:
    """With keys, another owner can neither step nor resume a group, nor strike it; its own new route can."""
    owners = {ROUTE: "environment:a", OTHER: "environment:b", b"route-3": "environment:a"}
    sessions = SessionTable(77, 5, "run-a", owner=owners.__getitem__)
    session = opened(sessions)
    assert stepped(sessions, session, 0, route=OTHER) is StepVerdict.CHALLENGE
    answer = sessions.hello(hello(nonce=3), OTHER, 0.0)
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retryable) == ("group_changed", False)
    assert (session.route, session.last_seq) == (ROUTE, -1)
    assert stepped(sessions, session, 0, route=b"route-3") is StepVerdict.ACCEPT
    assert session.route == b"route-3"


def test_who_never_steps_holds_half_of_the_lanes() -> None:
    """Over one connection without keys; a step makes room, and so does an end."""
    sessions = table(max_lanes=8)
    first = opened(sessions, group=0, lanes=3)
    second = opened(sessions, group=1, lanes=1)
    assert (refused(sessions, group=2, lanes=1).code, refused(sessions, group=2, lanes=1).retryable) == (
        "capacity",
        True,
    )
    assert stepped(sessions, first, 0) is StepVerdict.ACCEPT
    opened(sessions, group=2, lanes=3)
    assert refused(sessions, group=3, lanes=1).code == "capacity"
    sessions.end(second)
    opened(sessions, group=3, lanes=1)
    opened(sessions, incarnation=9, lanes=1, route=OTHER)


def test_one_group_may_take_all_lanes() -> None:
    """Half of them is the bound of several groups."""
    assert opened(table(max_lanes=8), lanes=8).lanes == 8


def test_with_keys_all_connections_of_one_key_count_together() -> None:
    """Another key has its own half."""
    owners = {ROUTE: "environment:a", OTHER: "environment:a", b"route-3": "environment:b"}
    sessions = SessionTable(77, 5, "run-a", SessionLimits(max_lanes=8), owner=lambda route: owners[route])
    opened(sessions, group=0, lanes=4)
    answer = sessions.hello(hello(group=1, lanes=1), OTHER, 0.0)
    assert isinstance(answer, Reject)
    opened(sessions, incarnation=5, lanes=4, route=b"route-3")


def test_a_step_of_too_many_bytes_is_refused() -> None:
    """Each frame fits, all of them together do not: no message of that size would be let through."""
    leaves = {f"leaf{number:02d}": Box(-1.0, 1.0, (1 << 14,), np.float32) for number in range(40)}  # 64 KiB each
    spec = replace(SPEC, observation=space_from_gymnasium(Dict(leaves)))
    assert isinstance(table(max_frame_bytes=2 << 20).hello(hello(spec=spec, lanes=1), ROUTE, 0.0), Welcome)
    assert refused(table(max_frame_bytes=1 << 20), spec=spec, lanes=1).code == "frame_bytes"
