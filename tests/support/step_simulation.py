"""Fleets and session tables joined by a simulated network, and machines that restart and stall.

Every payload carries a number, so that the simulation can tell at each end whether a step is the right one:
STEP carries its group's tick, ACT the tick that it answers. What must hold is asserted where it happens.
"""

import itertools
from collections import Counter
from dataclasses import dataclass, field

from seedbed.actor_svc.client import GroupClient, ResetLanes, Send, StartLanes, StepLanes
from seedbed.actor_svc.fleet import AddressedAction, Fleet
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import Act, Bye, Hello, Message, Ping, Pong, RequestState, Step
from seedbed.shared.protocol.sessions import Session, SessionTable, StepVerdict
from tests.support.simulated_network import NetworkFaults, SimulatedNetwork
from tests.support.step_link import actions, hello, number_in, rows

HELD = (RequestState.HELD_NO_CREDIT, RequestState.HELD_NO_WEIGHTS)


@dataclass(frozen=True, kw_only=True)
class StepFaults(NetworkFaults):
    """What the network and the machines do, as probabilities and rates."""

    reorder: float = 1.0
    min_delay_s: float = 0.001
    max_delay_s: float = 0.02
    cuts_per_s: float = 0.0  # a connection closes
    restarts_per_s: float = 0.0  # a server begins anew
    stalls_per_s: float = 0.0  # a server handles nothing for up to 15 s
    holds: float = 0.0  # a request is held for up to 3 s


@dataclass(kw_only=True)
class AppliedSteps:
    """What inference keeps for a session: how often its state was advanced, and by which ticks."""

    ticks: list[int] = field(default_factory=list)
    is_left: bool = False


@dataclass
class SimulatedServer:
    """One address: a session table that restarts, and the routes that lead to it now."""

    table: SessionTable
    routes: dict[bytes, str] = field(default_factory=dict)
    stalled_until: float = 0.0


class StepSimulation:
    """One actor process with some groups against some inference services."""

    def __init__(self, seed: int, faults: StepFaults, *, num_groups: int = 3, num_servers: int = 2) -> None:
        self.faults = faults
        self.network = SimulatedNetwork(seed, faults)
        self.random = self.network.random
        self.restarts = self.cuts = self.resets = 0
        self.last_accepted = dict.fromkeys(range(num_groups), -1)
        self.ticks = dict.fromkeys(range(num_groups), -1)  # of each group's environments
        self.steps = dict.fromkeys(range(num_groups), 0)
        self.verdicts: Counter[StepVerdict] = Counter()
        self._epochs = itertools.count(1000)
        self._names = itertools.count(1)
        nonces = itertools.count(1).__next__
        self.groups = [GroupClient(hello(group=group), nonces) for group in range(num_groups)]
        self.fleet = Fleet(self.groups, seed=seed)
        self.servers = {f"tcp://10.0.0.{number}:5555": SimulatedServer(self._table()) for number in range(num_servers)}
        self.route: dict[str, bytes | None] = dict.fromkeys(self.servers)
        self._perform(self.fleet.set_addresses(list(self.servers), 0.0))
        for address in self.servers:
            self.network.later(self.random.random(), self._connect, address)
            self.network.later(self.random.random(), self._serve_beat, address)
        self.network.later(0.1, self._client_beat)

    def calm(self) -> None:
        """The faults are over."""
        self.faults = self.network.faults = StepFaults()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.network.run(seconds)

    @property
    def resent(self) -> int:
        """STEPs sent again."""
        return sum(group.num_resent for group in self.groups)

    @property
    def _now(self) -> float:
        return self.network.now

    def _chance(self, rate_per_s: float, period_s: float) -> bool:
        return self.random.random() < rate_per_s * period_s

    # Connections

    def _connect(self, address: str) -> None:
        route = f"route-{next(self._names)}".encode()
        self.route[address] = route
        self.servers[address].routes[route] = address
        self._perform(self.fleet.connected(address, self._now))

    def _cut(self, address: str) -> None:
        """The connection closes; the client notices, and dials again in a while."""
        route = self.route[address]
        if route is None:
            return
        self.cuts += 1
        self.servers[address].routes.pop(route, None)
        self.route[address] = None
        self.fleet.disconnected(address, self._now)
        self.network.later(self.random.choice([0.05, 1.0, 6.0]), self._connect, address)

    def _restart(self, address: str) -> None:
        """All that the server knew is gone."""
        self.restarts += 1
        self._cut(address)
        self.servers[address] = SimulatedServer(self._table())

    def _table(self) -> SessionTable:
        return SessionTable(next(self._epochs), 1, "run")

    # The client's side

    def _client_beat(self) -> None:
        self._perform(self.fleet.poll(self._now))
        self.network.later(0.1, self._client_beat)

    def _perform(self, placed: list[AddressedAction]) -> None:
        for address, action in placed:
            if isinstance(action, Send):
                self._send_up(address, action.message, list(action.payload))
            elif isinstance(action, StepLanes):
                assert number_in(action.payload) == self.ticks[action.group], "actions for another observation"
                self.steps[action.group] += 1
                self.network.later(self.random.uniform(0.001, 0.05), self._finish, action.group)
            else:
                assert isinstance(action, (StartLanes, ResetLanes)), action
                self.resets += 1
                self.network.later(0.1, self._finish, action.group)

    def _finish(self, group: int) -> None:
        self.ticks[group] += 1
        self._perform(self.fleet.submit(group, rows(self.ticks[group]), 0, self._now))

    def _send_up(self, address: str, message: Message, payload: list[bytes]) -> None:
        route = self.route.get(address)
        if route is not None:
            self.network.send((route, "up"), self._arrive_up, address, route, encode(message), payload)

    def _arrive_down(self, address: str, header: bytes, payload: list[bytes]) -> None:
        self._perform(self.fleet.receive(address, decode(header), payload, self._now))

    # The server's side

    def _serve_beat(self, address: str) -> None:
        server = self.servers[address]
        if self._now >= server.stalled_until:
            server.table.expire(self._now, drained=True, stalled_until=server.stalled_until + 1.0)
            for route in server.table.routes():
                self._send_down(address, route, [encode(Pong(sent_ms=0, server_epoch=1, work_age_ms=0))])
        if self._chance(self.faults.restarts_per_s, 0.5):
            self._restart(address)
        elif self._chance(self.faults.cuts_per_s, 0.5):
            self._cut(address)
        elif self._chance(self.faults.stalls_per_s, 0.5):
            server.stalled_until = self._now + self.random.uniform(0.5, 15.0)
        self.network.later(0.5, self._serve_beat, address)

    def _arrive_up(self, address: str, route: bytes, header: bytes, payload: list[bytes]) -> None:
        """A late message of a closed connection may still be read, even by the server's successor."""
        server = self.servers[address]
        if self._now < server.stalled_until:
            self.network.later(server.stalled_until - self._now, self._arrive_up, address, route, header, payload)
            return
        table, message = server.table, decode(header)
        if isinstance(message, Hello):
            welcome = table.hello(message, route, self._now)
            self._send_down(address, route, [encode(welcome)])
        elif isinstance(message, Ping):
            self._send_down(address, route, [encode(table.ping(message, route, self._now))])
        elif isinstance(message, Bye):
            table.bye(message, route, self._now)
        elif isinstance(message, Step):
            self._step(address, server, message, route, payload)

    def _step(self, address: str, server: SimulatedServer, step: Step, route: bytes, payload: list[bytes]) -> None:
        table = server.table
        verdict = table.step(step, route, self._now)
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
            table.mark(session, int(self.random.choice(HELD)), self._now)
        delay_s = self.random.uniform(0.1, 3.0) if is_held else self.random.uniform(0.002, 0.05)
        self.network.later(delay_s, self._answer, address, server, session, step.seq, number_in(payload))

    def _accept(self, session: Session, step: Step, tick: int) -> None:
        """Advance policy state, and check that this is the next step of this session and of this group."""
        group, last = session.hello.group, self.last_accepted[session.hello.group]
        is_first = session.attached is None
        if is_first:
            session.attached = AppliedSteps()
        policy: AppliedSteps = session.attached
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

    def _answer(self, address: str, server: SimulatedServer, session: Session, seq: int, tick: int) -> None:
        """The forward pass is done; it may be that session, server or route are gone by now."""
        if session.is_ended or self.servers[address] is not server:
            return
        assert session.last_seq == seq, "a second step was let in before the answer"
        header = encode(Act(session=session.id, seq=seq, policy_version=1))
        reply = [header, *actions(tick)]
        server.table.answer(session, reply, self._now)
        self._send_down(address, session.route, reply)

    def _send_down(self, address: str, route: bytes, frames: list[bytes]) -> None:
        server = self.servers[address]
        if route not in server.routes:
            server.table.unroutable(route, self._now)
            return
        self.network.send((route, "down"), self._arrive_down, address, frames[0], frames[1:])
