"""Fleets and session tables joined by a network that loses, delays, doubles and reorders; seeded, on a virtual clock.

Every payload carries a number, so that the simulation can tell at each end whether a step is the right one:
STEP carries its group's tick, ACT the tick that it answers. What must hold is asserted where it happens.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from seedbed.actor_svc.client import GroupClient, ResetLanes, Send, StartLanes, StepLanes
from seedbed.actor_svc.fleet import AddressedAction, Fleet
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, Bye, Hello, Message, Ping, Pong, RequestState, Step
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict
from tests.support.step_link import actions, hello, number_in, rows

HELD = (RequestState.HELD_NO_CREDIT, RequestState.HELD_NO_WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What the network and the machines do, as probabilities and rates."""

    loss: float = 0.0
    double: float = 0.0
    max_delay_s: float = 0.02  # uniform from 1 ms: messages overtake each other
    cuts_per_s: float = 0.0  # a connection closes
    restarts_per_s: float = 0.0  # a server begins anew
    stalls_per_s: float = 0.0  # a server handles nothing for up to 15 s
    holds: float = 0.0  # a request is held for up to 3 s


@dataclass(kw_only=True)
class Policy:
    """What inference keeps for a session: how often its state was advanced, and by which ticks."""

    ticks: list[int] = field(default_factory=list)
    is_left: bool = False


@dataclass
class Server:
    """One address: a session table that restarts, and the routes that lead to it now."""

    table: SessionTable
    routes: dict[bytes, str] = field(default_factory=dict)
    stalled_until: float = 0.0


class Simulation:
    """One actor process with some groups against some inference services."""

    def __init__(self, seed: int, faults: Faults, *, num_groups: int = 3, num_servers: int = 2) -> None:
        self.random = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.restarts = self.cuts = self.resets = 0
        self.last_accepted = dict.fromkeys(range(num_groups), -1)
        self.ticks = dict.fromkeys(range(num_groups), -1)  # of each group's environments
        self.steps = dict.fromkeys(range(num_groups), 0)
        self.verdicts: Counter[StepVerdict] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._epochs = itertools.count(1000)
        self._names = itertools.count(1)
        nonces = itertools.count(1).__next__
        self.groups = [GroupClient(hello(group=group), nonces) for group in range(num_groups)]
        self.fleet = Fleet(self.groups, seed=seed)
        self.servers = {f"tcp://10.0.0.{number}:5555": Server(self._table()) for number in range(num_servers)}
        self.route: dict[str, bytes | None] = dict.fromkeys(self.servers)
        self._perform(self.fleet.set_addresses(list(self.servers), 0.0))
        for address in self.servers:
            self._later(self.random.random(), self._connect, address)
            self._later(self.random.random(), self._serve_beat, address)
        self._later(0.1, self._client_beat)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    @property
    def resent(self) -> int:
        """STEPs sent again."""
        return sum(group.num_resent for group in self.groups)

    # Time and chance

    def _later(self, delay_s: float, call: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._events, (self.now + delay_s, next(self._order), lambda: call(*args)))

    def _chance(self, rate_per_s: float, period_s: float) -> bool:
        return self.random.random() < rate_per_s * period_s

    def _transfer(self, deliver: Callable[..., None], *args: object) -> None:
        """Lose, double, delay."""
        copies = 0 if self.random.random() < self.faults.loss else 1 + (self.random.random() < self.faults.double)
        for _ in range(copies):
            self._later(self.random.uniform(0.001, self.faults.max_delay_s), deliver, *args)

    # Connections

    def _connect(self, address: str) -> None:
        route = f"route-{next(self._names)}".encode()
        self.route[address] = route
        self.servers[address].routes[route] = address
        self._perform(self.fleet.connected(address, self.now))

    def _cut(self, address: str) -> None:
        """The connection closes; the client notices, and dials again in a while."""
        route = self.route[address]
        if route is None:
            return
        self.cuts += 1
        self.servers[address].routes.pop(route, None)
        self.route[address] = None
        self.fleet.disconnected(address, self.now)
        self._later(self.random.choice([0.05, 1.0, 6.0]), self._connect, address)

    def _restart(self, address: str) -> None:
        """All that the server knew is gone."""
        self.restarts += 1
        self._cut(address)
        self.servers[address] = Server(self._table())

    def _table(self) -> SessionTable:
        return SessionTable(next(self._epochs), 1, "run")

    # The client's side

    def _client_beat(self) -> None:
        self._perform(self.fleet.poll(self.now))
        self._later(0.1, self._client_beat)

    def _perform(self, placed: list[AddressedAction]) -> None:
        for address, action in placed:
            if isinstance(action, Send):
                self._send_up(address, action.message, list(action.payload))
            elif isinstance(action, StepLanes):
                assert number_in(action.payload) == self.ticks[action.group], "actions for another observation"
                self.steps[action.group] += 1
                self._later(self.random.uniform(0.001, 0.05), self._finish, action.group)
            else:
                assert isinstance(action, (StartLanes, ResetLanes)), action
                self.resets += 1
                self._later(0.1, self._finish, action.group)

    def _finish(self, group: int) -> None:
        self.ticks[group] += 1
        self._perform(self.fleet.submit(group, rows(self.ticks[group]), 0, self.now))

    def _send_up(self, address: str, message: Message, payload: list[bytes]) -> None:
        route = self.route.get(address)
        if route is not None:
            self._transfer(self._arrive_up, address, route, encode(message), payload)

    def _arrive_down(self, address: str, header: bytes, payload: list[bytes]) -> None:
        self._perform(self.fleet.receive(address, decode(header), payload, self.now))

    # The server's side

    def _serve_beat(self, address: str) -> None:
        server = self.servers[address]
        if self.now >= server.stalled_until:
            server.table.expire(self.now, drained=True, stalled_until=server.stalled_until + 1.0)
            for route in server.table.routes():
                self._send_down(address, route, [encode(Pong(sent_ms=0, server_epoch=1, work_age_ms=0))])
        if self._chance(self.faults.restarts_per_s, 0.5):
            self._restart(address)
        elif self._chance(self.faults.cuts_per_s, 0.5):
            self._cut(address)
        elif self._chance(self.faults.stalls_per_s, 0.5):
            server.stalled_until = self.now + self.random.uniform(0.5, 15.0)
        self._later(0.5, self._serve_beat, address)

    def _arrive_up(self, address: str, route: bytes, header: bytes, payload: list[bytes]) -> None:
        """A late message of a closed connection may still be read, even by the server's successor."""
        server = self.servers[address]
        if self.now < server.stalled_until:
            self._later(server.stalled_until - self.now, self._arrive_up, address, route, header, payload)
            return
        table, message = server.table, decode(header)
        if isinstance(message, Hello):
            welcome = table.hello(message, route, self.now)
            self._send_down(address, route, [encode(welcome)])
        elif isinstance(message, Ping):
            self._send_down(address, route, [encode(table.ping(message, route, self.now))])
        elif isinstance(message, Bye):
            table.bye(message, route, self.now)
        elif isinstance(message, Step):
            self._step(address, server, message, route, payload)

    def _step(self, address: str, server: Server, step: Step, route: bytes, payload: list[bytes]) -> None:
        table = server.table
        verdict = table.step(step, route, self.now)
        self.verdicts[verdict] += 1
        if verdict is StepVerdict.CHALLENGE:
            self._send_down(address, route, [encode(table.challenge(step.session))])
            return
        session = table.sessions[step.session]
        if verdict is StepVerdict.CACHED:
            assert session.reply is not None
            self._send_down(address, session.route, session.reply)
        if verdict is not StepVerdict.ACCEPT:
            return
        self._accept(session, step, number_in(payload))
        is_held = self.random.random() < self.faults.holds
        if is_held:
            table.mark(session, int(self.random.choice(HELD)), self.now)
        delay_s = self.random.uniform(0.1, 3.0) if is_held else self.random.uniform(0.002, 0.05)
        self._later(delay_s, self._answer, address, server, session, step.seq, number_in(payload))

    def _accept(self, session: Session, step: Step, tick: int) -> None:
        """Advance policy state, and check that this is the next step of this session and of this group."""
        group, last = session.hello.group, self.last_accepted[session.hello.group]
        is_first = session.attached is None
        if is_first:
            session.attached = Policy()
        policy: Policy = session.attached
        assert is_first or tick == policy.ticks[-1] + 1, "a step was applied twice or out of order"
        if self.groups[group].session != session.id:
            # The step that was outstanding when the group left, read late: the last that this session will see.
            assert tick <= last + 1, "a step that was never sent"
            assert not policy.is_left, "a session went on after its group had left it"
            policy.is_left = True
        elif is_first:
            assert tick in (last, last + 1), "a new session begins with the outstanding observation"
        else:
            assert tick == last + 1, "the group's steps have a gap"
        policy.ticks.append(tick)
        self.last_accepted[group] = max(last, tick)
        assert session.last_seq == step.seq == len(session.attached.ticks) - 1, "a resend advanced policy state"

    def _answer(self, address: str, server: Server, session: Session, seq: int, tick: int) -> None:
        """The forward pass is done; it may be that session, server or route are gone by now."""
        if session.is_ended or self.servers[address] is not server:
            return
        assert session.last_seq == seq, "a second step was let in before the answer"
        header = encode(Act(session=session.id, seq=seq, policy_version=1))
        reply = [header, *actions(tick)]
        server.table.answer(session, reply, self.now)
        self._send_down(address, session.route, reply)

    def _send_down(self, address: str, route: bytes, frames: list[bytes]) -> None:
        server = self.servers[address]
        if route not in server.routes:
            server.table.unroutable(route, self.now)
            return
        self._transfer(self._arrive_down, address, frames[0], frames[1:])
