"""Deterministic mode at inference: who joins when, who acts with whom, and in which order unrolls leave."""

from dataclasses import replace

import pytest

from seedbed.inference_svc.lockstep import AWAIT_S
from seedbed.shared.protocol.messages import Bye, Error, Ping, Reject, Welcome
from tests.support.server_driver import ServerDriver, T, hello


@pytest.fixture
def driver() -> ServerDriver:
    """A server of three training groups that has a policy, and credit for one lane."""
    driver = ServerDriver(lockstep_groups=3)
    driver.serve(lanes=1)
    return driver


def join(driver: ServerDriver) -> list[int]:
    """Let all training groups join; their sessions, in the order of their numbers."""
    for _ in range(3):
        for group in (2, 0, 1):
            driver.tell(hello(group))
    welcomes = {message.session for _, message in driver.sent if isinstance(message, Welcome)}
    return sorted(welcomes)


def pushed(driver: ServerDriver) -> list[int]:
    """Sessions of the unrolls that may leave now, in the order in which they leave."""
    sessions, outbox = [], driver.link.outbox
    while (outgoing := outbox.next_outgoing()) is not None:
        sessions.append(outgoing.message.group)
        outbox.sent(outgoing)
    return sessions


def test_groups_join_by_actor_and_number_whenever_they_come(driver: ServerDriver) -> None:
    """The first in order is the first that is welcome, once all are known."""
    names = [("b", 0), ("a", 1), ("a", 0)]
    welcome = []
    for _ in range(3):
        for actor, group in names:
            driver.tell(replace(hello(group), actor=actor, incarnation=ord(actor)))
            answer = driver.last()
            assert isinstance(answer, Welcome) or (isinstance(answer, Error) and answer.code == "starting")
            if isinstance(answer, Welcome) and (actor, group) not in welcome:
                welcome.append((actor, group))
    assert welcome == sorted(names)
    assert [session.attached.lanes.start for session in driver.server.table.sessions.values()] == [0, 2, 4]


def test_an_evaluation_group_joins_after_all_training_groups(driver: ServerDriver) -> None:
    """So its slots do not move theirs."""
    driver.tell(hello(5, mode="eval"))
    assert isinstance(driver.last(), Error)
    join(driver)
    driver.tell(hello(5, mode="eval"))
    assert isinstance(driver.last(), Welcome)


def test_nobody_joins_later(driver: ServerDriver) -> None:
    """Neither a further group, nor a new life of one that was there, nor a player: each is told why."""
    sessions = join(driver)
    driver.tell(Bye(session=sessions[0], reason="stopped"))
    for stranger in (hello(3), replace(hello(0), incarnation=8), hello(9, mode="play")):
        driver.tell(stranger)
        answer = driver.last()
        assert isinstance(answer, Reject)
        assert (answer.code, answer.retryable) == ("deterministic", False)
    driver.tell(hello(1))
    answer = driver.last()
    assert isinstance(answer, Welcome)
    assert answer.resumed


def test_a_group_too_many_names_the_setting(driver: ServerDriver) -> None:
    """Before any has joined."""
    for group in range(3, -1, -1):
        driver.tell(hello(group))
    answer = driver.last()
    assert isinstance(answer, Reject)
    assert "inference.lockstep_groups is 3" in answer.message


def test_groups_act_together_and_in_order(driver: ServerDriver) -> None:
    """No batch before the last one's rows; then one of all, in the order of their numbers."""
    sessions = join(driver)
    for seq in range(2):
        for session in (sessions[1], sessions[2]):
            driver.step(session, seq)
        assert not driver.batches
        driver.step(sessions[0], seq)
        assert [group.session.id for group in driver.answer()] == sessions


def test_unrolls_leave_one_for_each_credit_and_then_all_act(driver: ServerDriver) -> None:
    """In the order of the groups, although the last one's rows came first; acting needs credit once more."""
    sessions = join(driver)
    for seq in range(T):
        for session in sessions:
            driver.step(session, seq)
        driver.answer()
    for session in reversed(sessions):
        driver.step(session, T)
    left = pushed(driver)
    for number in (1, 2, 3):  # two lanes each: credit up to the first lane of the next
        assert left == sessions[:number]
        assert not driver.batches
        driver.grant(2 * number + 1)
        driver.server.launch(0.0)
        left += pushed(driver)
    assert [group.session.id for group in driver.answer()] == sessions


def test_a_lost_group_stops_the_others(driver: ServerDriver) -> None:
    """They would act on other batches than in a run that did not lose it."""
    sessions = join(driver)
    for session in sessions[:2]:
        driver.step(session, 0)
    driver.tell(Bye(session=sessions[0], reason="stopped"))
    driver.step(sessions[2], 0)
    assert not driver.batches


def awaited(driver: ServerDriver, now: float) -> list[str]:
    """Who keeps the others waiting at a time."""
    driver.server.beat(now, drained=True, stalled_until=0.0)
    return driver.server.awaited_groups


def test_a_group_without_new_rows_is_named_until_it_has_some(driver: ServerDriver) -> None:
    """Some seconds after all were answered, and not while a batch of them is computed."""
    sessions = join(driver)
    for session in sessions:
        driver.step(session, 0)
    assert awaited(driver, 8.0) == []
    driver.answer(now=8.0)
    for session in sessions[1:]:
        driver.step(session, 1, now=8.1)
    driver.tell(Ping(sent_ms=1), now=8.1)  # its actor lives
    assert awaited(driver, 8.0 + 0.9 * AWAIT_S) == []
    assert awaited(driver, 8.0 + AWAIT_S) == ["group 0 of a"]
    driver.step(sessions[0], 1, now=14.0)
    assert awaited(driver, 14.0) == []
    assert [group.session.id for group in driver.answer(now=14.0)] == sessions


def test_groups_that_wait_for_credit_are_not_awaited(driver: ServerDriver) -> None:
    """All have new rows, and the learner has not granted anything."""
    sessions = join(driver)
    for seq in range(T):
        for session in sessions:
            driver.step(session, seq)
        driver.answer()
    for session in sessions:
        driver.step(session, T)
    assert not driver.batches
    assert awaited(driver, AWAIT_S) == []


def test_all_groups_are_named_if_none_steps(driver: ServerDriver) -> None:
    """One actor may have all of them, and hang."""
    sessions = join(driver)
    for session in sessions:
        driver.step(session, 0)
    driver.answer()
    assert awaited(driver, AWAIT_S) == ["group 0 of a", "group 1 of a", "group 2 of a"]


def test_groups_that_do_not_come_are_counted(driver: ServerDriver) -> None:
    """Nobody knows their names; then the one whose turn it is."""
    driver.tell(hello(0))
    assert awaited(driver, AWAIT_S) == ["one that has not connected"] * 2
    for group in (1, 2):
        driver.tell(hello(group), now=10.0)
    assert awaited(driver, 10.0) == []
    assert awaited(driver, 10.0 + AWAIT_S) == ["group 0 of a"]


def test_a_group_that_was_cut_off_goes_on_and_one_that_is_gone_is_named(driver: ServerDriver) -> None:
    """Over a new connection it keeps its session; after BYE it has none."""
    sessions = join(driver)
    driver.tell(hello(0), route=b"new", now=1.0)
    answer = driver.last()
    assert isinstance(answer, Welcome)
    assert (answer.session, answer.resumed) == (sessions[0], True)
    driver.step(sessions[0], 0, now=1.0, route=b"new")
    for session in sessions[1:]:
        driver.step(session, 0, now=1.0)
    assert len(driver.answer(now=1.0)) == len(sessions)
    driver.tell(Bye(session=sessions[1], reason="stopped"), now=1.0)
    for session in (sessions[0], sessions[2]):
        driver.step(session, 1, now=1.0, route=b"new" if session == sessions[0] else b"r")
    assert awaited(driver, 1.0 + AWAIT_S) == ["group 1 of a, which is gone"]


@pytest.mark.parametrize("reason", ["run_finished", "draining"])
def test_groups_that_were_dismissed_are_not_awaited(driver: ServerDriver, reason: str) -> None:
    """The run is over, or this service is."""
    sessions = join(driver)
    driver.step(sessions[0], 0)
    assert len(awaited(driver, AWAIT_S)) == 2
    driver.server.dismiss(reason)
    assert awaited(driver, 2 * AWAIT_S) == []
