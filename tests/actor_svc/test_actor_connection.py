"""ConnectionClient and Fleet: beats, whose message is whose, and where groups are placed."""

from dataclasses import replace

import pytest

from seedbed.actor_svc.client import Actions, Finished, GroupClient, Send, StartLanes, StepLanes
from seedbed.actor_svc.connection import ConnectionClient
from seedbed.actor_svc.fleet import AddressedAction, Fleet
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Error,
    Hello,
    Message,
    Ping,
    Pong,
    Reject,
    SessionReport,
    Step,
)
from seedbed.shared.protocol.sessions import SessionLimits, SessionTable
from tests.support.step_link import actions, counter, hello, rows

A, B = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"


def sent(acted: Actions) -> list[Message]:
    """The messages among the actions."""
    return [action.message for action in acted if isinstance(action, Send)]


def greeted(num_groups: int = 2) -> tuple[ConnectionClient, SessionTable]:
    """A connection whose groups all have sessions and have submitted their first rows at second 1."""
    table, connection = SessionTable(7, 1, "run"), ConnectionClient(A, 0.0)
    for group in range(num_groups):
        (asked,) = sent(connection.add(GroupClient(hello(group=group), counter(100 * group + 1)), 0.0))
        assert isinstance(asked, Hello)
        connection.is_connected = True
        (begin,) = connection.receive(table.hello(asked, b"r", 0.0), (), 0.0)
        assert isinstance(begin, StartLanes)
        assert begin.group == group
        connection.groups[group].submit(rows(0), 0, 1.0)
    return connection, table


def test_messages_reach_the_group_they_are_for() -> None:
    """By session or nonce; what fits none is dropped."""
    connection, _ = greeted()
    second = connection.groups[1]
    act = Act(session=second.session, seq=0, policy_version=1)
    assert connection.receive(act, actions(3), 2.0) == (StepLanes(1, actions(3), 1),)
    assert connection.receive(Act(session=99, seq=0, policy_version=1), actions(3), 2.0) == ()
    (again,) = connection.receive(Challenge(session=second.session, server_epoch=8), (), 2.0)
    assert again.group == 1
    assert connection.receive(Challenge(session=0, server_epoch=8), (), 2.0) == ()


def test_a_bye_for_session_zero_is_for_all() -> None:
    """The whole connection is meant."""
    connection, _ = greeted()
    ended = connection.receive(Bye(session=0, reason="run_finished"), (), 2.0)
    assert ended == (Finished(0, "run_finished"), Finished(1, "run_finished"))


def test_a_beat_goes_out_each_second_while_connected() -> None:
    """One PING for all groups of the connection, with the load figures."""
    connection, _ = greeted()
    times = [tick / 10 for tick in range(20, 50) if sent(connection.poll(tick / 10, (("steps_s", 5.0),)))]
    assert times == [2.0, 3.0, 4.0]
    (ping,) = sent(connection.poll(9.0, (("steps_s", 5.0),)))
    assert ping == Ping(sent_ms=9000, load=(("steps_s", 5.0),))
    connection.disconnected(10.0)
    assert connection.poll(11.0) == ()


def test_a_pong_repairs_what_was_lost() -> None:
    """Each group compares its line with what it sent; the STEPs of both were lost here."""
    connection, table = greeted()
    (ping,) = sent(connection.poll(2.0))
    assert isinstance(ping, Ping)
    again = sent(connection.receive(table.ping(ping, b"r", 2.1), (), 2.2))
    assert [type(message) for message in again] == [Step, Step]


def test_pongs_that_answer_no_ping_are_ignored() -> None:
    """Inference probes with them for closed connections; they list no sessions."""
    connection, _ = greeted()
    connection.poll(2.0)
    for sent_ms in (0, 5000):
        assert connection.receive(Pong(sent_ms=sent_ms, server_epoch=7, work_age_ms=0), (), 2.1) == ()
    assert connection.num_unrequested == 2
    assert connection.heard_at == 2.1


def test_a_service_that_would_turn_groups_away_says_so_with_its_beat() -> None:
    """It is no good place while it says so; groups that are in stay, and it is one again when it stops saying so."""
    connection, _ = greeted(1)
    connection.connected(1.0)
    assert connection.is_lasting(7.0)
    connection.poll(7.0)
    assert connection.receive(Pong(sent_ms=7000, server_epoch=7, work_age_ms=0, turns_away=True), (), 7.1) == ()
    assert not connection.is_usable(8.0)
    assert connection.is_usable(9.2)
    assert not connection.is_lasting(9.2)
    assert connection.is_lasting(15.0)


def test_a_service_with_a_long_lease_may_be_silent_for_as_long() -> None:
    """It beats less often; WELCOME says how long a session lives."""
    table, connection = SessionTable(7, 1, "run", SessionLimits(lease_s=60.0, beat_s=15.0)), ConnectionClient(A, 0.0)
    connection.connected(0.0)
    (asked,) = sent(connection.add(GroupClient(hello(), counter()), 0.0))
    assert isinstance(asked, Hello)
    connection.receive(table.hello(asked, b"r", 0.0), (), 0.0)
    assert not connection.is_lost(59.0)
    assert connection.is_lost(61.0)


def test_ghost_sessions_are_let_go() -> None:
    """A late HELLO of ours may have opened one that nobody uses; our beats would keep it for ever."""
    connection, _ = greeted(1)
    connection.poll(2.0)
    lines = (
        SessionReport(session=connection.groups[0].session, last_seq=0, state=1, age_ms=0),
        SessionReport(session=1234, last_seq=-1, state=0, age_ms=0),
    )
    answer = connection.receive(Pong(sent_ms=2000, server_epoch=7, work_age_ms=0, sessions=lines), (), 2.1)
    assert sent(answer) == [Bye(session=1234, reason="moved")]


def test_pings_from_above_are_answered() -> None:
    """Liveness works both ways."""
    connection, _ = greeted()
    (pong,) = sent(connection.receive(Ping(sent_ms=5), (), 2.0))
    assert pong == Pong(sent_ms=5, server_epoch=0, work_age_ms=0)


def test_complaints_say_which_wait_it_is() -> None:
    """Never connected, closed, silent, or refused."""
    connection = ConnectionClient(A, 0.0)
    assert "never connected" in connection.complaint(5.0)
    connection.add(GroupClient(hello(), counter()), 5.0)
    connection.connected(6.0)
    assert connection.complaint(6.5) == ""
    connection.receive(Reject(nonce=2, code="capacity", retryable=True, message="full"), (), 7.0)
    assert "capacity: full" in connection.complaint(7.0)
    assert "no heartbeat" in connection.complaint(17.0)
    connection.disconnected(20.0)
    assert "closed for 4 s" in connection.complaint(24.0)
    connection.refused("key refused: environment:robot")
    assert "key refused: environment:robot" in connection.complaint(25.0)
    connection.connected(26.0)
    assert "key refused" not in connection.complaint(26.5)


def address_of(fleet: Fleet, group: int) -> str | None:
    """Where a group is placed."""
    places = [at for at, connection in fleet.connections.items() if any(x.group == group for x in connection.groups)]
    return places[0] if places else None


class FleetDriver:
    """A fleet with two addresses; `lives` says which of them answer, each with a SessionTable."""

    def __init__(self, num_groups: int = 2) -> None:
        nonces = counter()
        self.groups = [GroupClient(hello(group=group), nonces) for group in range(num_groups)]
        self.fleet = Fleet(self.groups)
        self.tables = {A: SessionTable(1, 1, "run"), B: SessionTable(2, 1, "run")}
        self.lives = {A, B}
        self.starting: set[str] = set()  # have no weights yet
        self.full: set[str] = set()  # have no room for further groups
        self.perform(self.fleet.set_addresses([A, B], 0.0), 0.0)
        self.now = 0.0

    def connect(self, address: str, now: float) -> None:
        self.perform(self.fleet.connected(address, now), now)

    def perform(self, placed: list[AddressedAction], now: float) -> None:
        """Deliver what was sent at once, and let environments finish at once, one tick."""
        for address, action in placed:
            if isinstance(action, StartLanes):
                self.perform(self.fleet.submit(action.group, rows(0), 0, now), now)
            elif isinstance(action, StepLanes):
                group = self.groups[action.group]
                self.perform(self.fleet.submit(action.group, rows(group.seq + 1), 0, now), now)
            elif isinstance(action, Send) and address in self.lives and self.is_connected(address):
                table, message = self.tables[address], action.message
                if isinstance(message, Hello) and address in self.starting:
                    error = Error(
                        code="starting", scope="connection", session=0, nonce=message.nonce, retryable=True,
                        message="no weights yet",
                    )  # fmt: skip
                    self.perform(self.fleet.receive(address, error, (), now), now)
                elif isinstance(message, Hello):
                    self.perform(self.fleet.receive(address, table.hello(message, b"r", now), (), now), now)
                elif isinstance(message, Ping):
                    pong = replace(table.ping(message, b"r", now), turns_away=address in self.full)
                    self.perform(self.fleet.receive(address, pong, (), now), now)
                elif isinstance(message, Step):
                    table.step(message, b"r", now)
                elif isinstance(message, Bye):
                    table.bye(message, b"r", now)

    def is_connected(self, address: str) -> bool:
        return address in self.fleet.connections and self.fleet.connections[address].is_connected

    def act(self, *, bits: int = 0) -> None:
        """Answer what is outstanding in every group."""
        for group in self.groups:
            address = address_of(self.fleet, group.group)
            assert address is not None
            act = Act(session=group.session, seq=group.seq, policy_version=1, bits=bits)
            self.tables[address].answer(self.tables[address].sessions[group.session], [], self.now)
            self.perform(self.fleet.receive(address, act, actions(group.seq), self.now), self.now)

    def run_until(self, end: float) -> None:
        while self.now < end:
            self.now = round(self.now + 0.1, 3)
            self.perform(self.fleet.poll(self.now), self.now)

    def places(self) -> list[str | None]:
        return [address_of(self.fleet, group.group) for group in self.groups]


def test_groups_are_spread_over_the_addresses() -> None:
    """One group each; actors with a single group begin with different addresses."""
    driver = FleetDriver()
    assert sorted(map(str, driver.places())) == [A, B]
    firsts = []
    for seed in range(40):
        other = Fleet([GroupClient(hello(), counter())], seed=seed)
        other.set_addresses([A, B], 0.0)
        firsts.append(address_of(other, 0))
    assert 10 <= firsts.count(A) <= 30


def test_groups_leave_an_address_that_never_answers() -> None:
    """After three seconds, once another is there."""
    driver = FleetDriver()
    driver.connect(A, 0.0)
    driver.run_until(2.5)
    assert driver.places() == [A, B]
    driver.run_until(4.0)
    assert driver.places() == [A, A]
    assert len(driver.tables[A].sessions) == 2


def test_leaving_ends_every_session_also_of_a_hello_that_is_under_way() -> None:
    """Its WELCOME would come too late to be read; without a BYE inference would miss the group as lost."""
    driver = FleetDriver(num_groups=4)
    for address in (A, B):
        driver.connect(address, 0.0)
    newcomer = GroupClient(hello(group=4), counter())
    driver.fleet.groups[4] = newcomer
    placed = driver.fleet.poll(0.1)
    assert [type(action.message) for _, action in placed if isinstance(action, Send)] == [Hello, Ping, Ping]
    (address, greeting), *_ = placed
    assert isinstance(greeting, Send)
    assert isinstance(greeting.message, Hello)
    driver.tables[address].hello(greeting.message, b"r", 0.1)
    assert sum(len(table.sessions) for table in driver.tables.values()) == 5
    driver.perform(driver.fleet.leave("stopped"), 0.2)
    assert not any(table.sessions for table in driver.tables.values())
    assert driver.fleet.leave("stopped") == []


def test_a_short_disconnection_moves_nobody() -> None:
    """The session is resumable for three seconds."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.fleet.disconnected(B, driver.now)
    driver.run_until(3.5)
    driver.connect(B, driver.now)
    driver.run_until(8.0)
    assert driver.places() == [A, B]
    assert driver.fleet.num_moves == 0


def test_groups_fail_over_when_a_connection_stays_closed_and_spread_again_later() -> None:
    """Their outstanding rows go to the other service; when the lost one has been back for a while one group returns.

    Between two unrolls and not before.
    """
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.fleet.disconnected(B, driver.now)
    driver.run_until(5.0)
    assert driver.places() == [A, A]
    assert [session.last_seq for session in driver.tables[A].sessions.values()] == [0, 0]
    driver.connect(B, driver.now)
    driver.run_until(9.0)
    assert driver.places() == [A, A]
    driver.run_until(11.0)
    driver.act()
    assert driver.places() == [A, A]
    driver.act(bits=ActBits.BOUNDARY)
    assert sorted(str(place) for place in driver.places()) == [A, B]
    driver.act(bits=ActBits.BOUNDARY)
    driver.run_until(20.0)
    driver.act(bits=ActBits.BOUNDARY)
    assert driver.fleet.num_moves == 2


def test_groups_leave_a_full_service_for_a_new_one() -> None:
    """It turns further groups away with every beat, and has more than its share."""
    driver = FleetDriver(num_groups=4)
    driver.connect(A, 0.0)
    driver.run_until(5.0)
    assert driver.places() == [A] * 4
    driver.full = {A}
    driver.connect(B, driver.now)
    driver.run_until(20.0)
    for _ in range(8):
        driver.act(bits=ActBits.BOUNDARY)
        driver.run_until(driver.now + 10.0)
    assert sorted(map(str, driver.places())) == [A, A, B, B]
    assert driver.fleet.num_moves == 2 + 2


def test_groups_fail_over_from_a_service_that_is_connected_but_silent() -> None:
    """Ten seconds without a PONG."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.lives.discard(B)
    driver.run_until(10.0)
    assert driver.places() == [A, B]
    driver.run_until(12.5)
    assert driver.places() == [A, A]


def test_our_own_stall_is_not_their_silence() -> None:
    """After standing still ourselves, nobody is judged for a second: the PONGs lie in our socket."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.now = 60.0
    driver.run_until(60.1)
    assert driver.places() == [A, B]
    driver.run_until(65.0)
    assert driver.fleet.num_moves == 0


def test_groups_leave_a_draining_service_at_once() -> None:
    """BYE(draining) moves them with the next poll, and none comes back for a while."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.tables[B].drain()
    driver.perform(driver.fleet.receive(B, Bye(session=0, reason="draining"), (), 1.0), 1.0)
    driver.run_until(1.1)
    assert driver.places() == [A, A]


def test_groups_prefer_a_service_that_has_weights() -> None:
    """One that has none yet is left at once, and gets its share when it has had time."""
    driver = FleetDriver()
    driver.starting = {B}
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(0.2)
    assert driver.places() == [A, A]
    driver.run_until(2.0)
    assert driver.fleet.num_moves == 1
    driver.starting.clear()
    driver.run_until(9.0)
    driver.act(bits=ActBits.BOUNDARY)
    assert sorted(map(str, driver.places())) == [A, B]
    driver.run_until(15.0)
    assert driver.fleet.num_moves == 2


def test_where_nobody_has_weights_groups_wait() -> None:
    """They go on asking all services, and are in as soon as one has them."""
    driver = FleetDriver()
    driver.starting = {A, B}
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(30.0)
    assert "starting" in driver.fleet.complaints(30.0)[0]
    driver.starting.discard(A)
    driver.run_until(36.0)
    assert driver.places() == [A, A]


def test_a_refusal_is_waited_for_where_there_is_no_other() -> None:
    """Draining and nobody else: dial on, and come back to the successor."""
    driver = FleetDriver(1)
    driver.fleet.set_addresses([A], 0.0)
    driver.connect(A, 0.0)
    driver.tables[A].drain()
    driver.perform(driver.fleet.receive(A, Bye(session=0, reason="draining"), (), 1.0), 1.0)
    driver.run_until(5.0)
    assert "draining" in driver.fleet.complaints(5.0)[0]
    driver.tables[A] = SessionTable(3, 1, "run")
    driver.run_until(8.0)
    assert [session.last_seq for session in driver.tables[A].sessions.values()] == [0]
    assert driver.fleet.complaints(8.0) == []


def test_an_address_that_is_gone_is_dropped_with_its_lease() -> None:
    """Not while it still works."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    driver.run_until(1.0)
    driver.perform(driver.fleet.set_addresses([A], 1.0), 1.0)
    assert driver.places() == [A, B]
    driver.fleet.disconnected(B, 1.0)
    driver.run_until(6.0)
    assert set(driver.fleet.connections) == {A}
    assert driver.places() == [A, A]


def test_leaving_says_bye_for_every_session() -> None:
    """So that their slots are free at once."""
    driver = FleetDriver()
    for address in (A, B):
        driver.connect(address, 0.0)
    placed = driver.fleet.leave("stopped")
    driver.perform(placed, 1.0)
    assert len(placed) == 2
    assert not driver.tables[A].sessions
    assert not driver.tables[B].sessions


@pytest.mark.parametrize("address", [A, "tcp://127.0.0.1:9"])
def test_events_of_closed_connections_do_nothing(address: str) -> None:
    """An address that was dropped may still have events under way."""
    fleet = Fleet([GroupClient(hello(), counter())])
    assert fleet.connected(address, 0.0) == []
    fleet.disconnected(address, 0.0)
    assert fleet.receive(address, Bye(session=0, reason="draining"), (), 0.0) == []
