"""Links with keys, on real sockets: who gets in, who does not, and that the door still opens afterwards."""

import asyncio
import contextlib
import ctypes
import logging
import shutil
import socket
from pathlib import Path

import pytest
import uvloop
import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net import router, zap
from seedbed.shared.net.dealer import Dealer
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import DialKeys, KeyPair, PublicKey, bind_keys, client_file, dial_keys
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role
from seedbed.shared.net.router import Router
from tests.support.heard import Heard
from tests.support.hostile_peer import shout_over_tcp

TIMEOUT_S = 30.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + bytes(32)  # ZMTP 3.1, as a client
LOOPS = {"asyncio": None, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def made_keys(tmp_path_factory):
    """One key for each role, and a second environment's."""
    folder = tmp_path_factory.mktemp("made") / "keys"
    ring = Keyring(folder)
    ring.init()
    ring.new(Role.ENVIRONMENT, "robot")
    return folder


@pytest.fixture
def folder(made_keys, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(made_keys, tmp_path / "keys")
    return tmp_path / "keys"


class GuardedRouter(Heard):
    """An inference's router with keys, and dealers that knock, each on a context of its own as in another process."""

    def __init__(self, folder: Path, bind: str = "tcp://127.0.0.1:0", role: Role = Role.INFERENCE) -> None:
        super().__init__()
        self.folder = folder
        self.refused: list[tuple[str, str]] = []
        self.revoked: list[bytes] = []
        self._stack = contextlib.ExitStack()
        self.reactor = self._stack.enter_context(Reactor())
        self.router = Router(
            self.reactor,
            bind,
            on_message=self.message,
            keys=bind_keys(folder, role),
            on_refused=lambda reason, peer: self.note(self.refused, (reason, peer)),
            on_revoked=lambda routes: [self.note(self.revoked, route) for route in routes],
        )
        self._stack.callback(self.router.close)

    def knock(self, keys: DialKeys | None) -> tuple[Dealer, Heard]:
        """A dealer that has begun to dial."""
        reactor, heard = self._stack.enter_context(Reactor()), Heard()
        dealer = Dealer(
            reactor,
            self.router.endpoint,
            on_message=heard.message,
            on_event=heard.event,
            keys=keys,
        )
        self._stack.callback(dealer.close)
        return dealer, heard

    async def enter(self, keys: DialKeys | None, word: bytes = b"hello") -> tuple[Dealer, Heard, bytes]:
        """Connect, speak, be answered; the route."""
        dealer, heard = self.knock(keys)
        await heard.until(lambda: dealer.is_connected)
        assert dealer.send([word])
        await self.until(lambda: any(frames == [word] for _, frames in self.messages))
        route = next(route for route, frames in self.messages if frames == [word])
        assert self.router.send(route, [b"welcome"])
        await heard.until(lambda: bool(heard.messages))
        return dealer, heard, route

    def reasons(self) -> set[str]:
        """Why peers were refused so far."""
        return {reason for reason, _ in self.refused}

    def robot(self) -> DialKeys:
        """A good key."""
        return dial_keys(self.folder / "environment" / "robot", Role.ENVIRONMENT, Role.INFERENCE)

    def close(self) -> None:
        self._stack.close()


def visit(folder: Path, test, *, loop: str = "uvloop", **options) -> None:
    """Run a test on a fresh loop with a door."""

    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.closing(GuardedRouter(folder, **options)) as door:
                await test(door)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(bounded())


def stranger(role: Role, name: str, server: PublicKey) -> DialKeys:
    """A key that nobody admitted, under any name."""
    public, secret = (half.decode() for half in zmq.curve_keypair())
    return DialKeys(pair=KeyPair(role=role, name=name, public=public, secret=secret), server=server)


async def is_turned_away(door: GuardedRouter, keys: DialKeys | None, reason: str) -> Dealer:
    """Knock until refused; nothing that it says is heard."""
    dealer, heard = door.knock(keys)
    await heard.until(lambda: "handshake_failed" in heard.events)
    assert not dealer.is_connected
    assert not dealer.send([b"let me in"])
    await door.until(lambda: reason in door.reasons())
    assert door.messages == []
    return dealer


@pytest.mark.parametrize("loop", LOOPS)
def test_a_known_key_gets_in(folder, loop):
    """Messages of any size go both ways, and the router knows whose they are."""

    async def test(door):
        dealer, heard, route = await door.enter(door.robot())
        assert door.router.user_id(route) == "environment:robot"
        assert dealer.send([b"header", b"", b"x" * 1_000_000])
        await door.until(lambda: len(door.messages) == 2)
        assert door.messages[1] == (route, [b"header", b"", b"x" * 1_000_000])
        assert door.refused == []
        assert heard.events == ["connected"]

    visit(folder, test, loop=loop)


def test_a_foreign_key_is_refused_and_a_good_one_gets_in_afterwards(folder):
    """Even under a good name: the key counts. The dealer says that its key was refused."""

    async def test(door):
        dealer = await is_turned_away(door, stranger(Role.ENVIRONMENT, "robot", door.robot().server), "unknown_key")
        assert dealer.state == "refused"
        assert dealer.refusal.startswith("key refused: environment:robot")
        await door.enter(door.robot())

    visit(folder, test)


def test_no_key_is_refused(folder):
    """Loopback or not: a server with keys takes nobody without. The dealer says what may be missing."""

    async def test(door):
        dealer = await is_turned_away(door, None, "handshake")
        assert "runtime.keys" in dealer.refusal
        await door.enter(door.robot())

    visit(folder, test)


def test_a_dealer_talks_only_to_the_server_whose_key_it_has(folder):
    """Whoever stands at the address with another pair gets no word out of it."""

    async def test(door):
        good = door.robot()
        other = dial_keys(folder, Role.INFERENCE, Role.LEARNER).server
        dealer = await is_turned_away(door, DialKeys(pair=good.pair, server=other), "handshake")
        assert "is not the learner" in dealer.refusal
        await door.enter(good)

    visit(folder, test)


def test_a_dealer_with_keys_gives_nothing_to_a_server_without(folder):
    """The link is encrypted or there is none."""

    async def test(door):
        with Reactor() as plain, Reactor() as own:
            received, heard = [], Heard()
            router = Router(plain, "tcp://127.0.0.1:0", on_message=lambda route, frames: received.append(frames))
            dealer = Dealer(
                own, router.endpoint, on_message=print,
                on_event=heard.event, keys=door.robot(),
            )  # fmt: skip
            await heard.until(lambda: "handshake_failed" in heard.events)
            assert "has no keys" in dealer.refusal
            assert received == []
            dealer.close()
            router.close()

    visit(folder, test)


def test_an_environments_key_is_refused_by_the_learner_even_if_it_is_listed_there(folder):
    """The learner serves inference alone: weights and unrolls are nothing for environments."""
    pair = dial_keys(folder / "environment" / "robot", Role.ENVIRONMENT, Role.INFERENCE).pair
    shutil.copy(folder / "inference" / "clients" / client_file(pair), folder / "learner" / "clients")

    async def test(door):
        main = dial_keys(folder, Role.INFERENCE, Role.LEARNER)
        await is_turned_away(door, DialKeys(pair=pair, server=main.server), "wrong_role")
        assert any("environment:robot" in peer for _, peer in door.refused)
        await door.enter(main)

    visit(folder, test, role=Role.LEARNER)


@pytest.mark.parametrize("server", [Role.INFERENCE, Role.LEARNER])
def test_a_monitors_key_gets_in_at_both_servers(folder, server):
    """As itself: what it may say there is `reports`' matter, which looks at its role."""

    async def test(door):
        _, _, route = await door.enter(dial_keys(folder, Role.MONITOR, server))
        assert door.router.user_id(route) == "monitor:default"

    visit(folder, test, role=server)


def test_a_revoked_key_is_out_while_it_is_connected(folder):
    """Its route is told, nothing more of it is heard, it cannot come back; others do not notice."""

    async def test(door):
        other = dial_keys(folder / "environment" / "default", Role.ENVIRONMENT, Role.INFERENCE)
        dealer, _, route = await door.enter(door.robot(), b"robot")
        bystander, _, _ = await door.enter(other, b"bystander")
        keys = door.robot()
        Keyring(folder).revoke("robot")
        await door.until(lambda: bool(door.revoked))
        assert door.revoked == [route]
        assert dealer.send([b"still here?"])
        await door.until(lambda: "revoked" in door.reasons())
        assert ("revoked", "environment:robot") in door.refused
        assert bystander.send([b"business as usual"])
        await door.until(lambda: door.messages[-1][1] == [b"business as usual"])
        assert [b"still here?"] not in [frames for _, frames in door.messages]
        _, heard = door.knock(keys)
        await heard.until(lambda: heard.events == ["handshake_failed"])
        assert "unknown_key" in door.reasons()

    visit(folder, test)


def test_a_key_revoked_before_its_first_message_is_not_heard(folder):
    """The handshake was done; the message that follows is judged by the list of that moment."""

    async def test(door):
        dealer, heard = door.knock(door.robot())
        await heard.until(lambda: dealer.is_connected)
        Keyring(folder).revoke("robot")
        door.router._guard.reload()
        assert dealer.send([b"first word"])
        await door.until(lambda: "revoked" in door.reasons())
        assert door.messages == []

    visit(folder, test)


def test_a_new_key_is_let_in_without_a_restart(folder):
    """A dealer that was refused gets in by itself once its key is listed."""

    async def test(door):
        listed = folder / "inference" / "clients" / "environment-robot.pub"
        content = listed.read_bytes()
        listed.unlink()
        door.router._guard.reload()
        dealer, heard = door.knock(door.robot())
        await heard.until(lambda: "handshake_failed" in heard.events)
        listed.write_bytes(content)
        await heard.until(lambda: dealer.is_connected)
        assert dealer.refusal == ""

    visit(folder, test)


def test_a_dealer_that_was_refused_takes_the_key_that_replaces_its_own(folder):
    """Its files are read again before each dial, and while they are away it goes on and says what it misses."""

    async def test(door):
        former, own = door.robot(), folder / "environment" / "robot" / "client.key"
        Keyring(folder).revoke("robot")
        door.router._guard.reload()
        dealer, heard = door.knock(former)
        await heard.until(lambda: str(own.parent) in dealer.refusal)
        Keyring(folder).new(Role.ENVIRONMENT, "robot")
        await heard.until(lambda: dealer.is_connected)
        assert dealer.refusal == ""
        assert door.robot().pair.public != former.pair.public

    visit(folder, test)


def test_a_dealer_finds_a_server_whose_key_was_replaced(folder):
    """Once the server's new public key has come to its folder."""

    async def test(door):
        good, file = door.robot(), folder / "environment" / "robot" / "inference.pub"
        content, public = file.read_bytes(), stranger(Role.INFERENCE, "main", good.server).pair.public
        file.write_bytes(content.replace(good.server.public.encode(), public.encode()))
        dealer, heard = door.knock(door.robot())
        await heard.until(lambda: "handshake_failed" in heard.events)
        file.write_bytes(content)
        await heard.until(lambda: dealer.is_connected)

    visit(folder, test)


def test_a_file_that_is_mended_by_its_mode_alone_counts_again(folder):
    """Whoever follows the error's advice needs no restart."""
    listed = folder / "inference" / "clients" / "environment-robot.pub"

    async def test(door):
        listed.chmod(0o666)
        dealer, heard = door.knock(door.robot())
        await door.until(lambda: "unreadable_keys" in door.reasons())
        assert any(f"chmod go-w {listed}" in text for _, text in door.refused)
        listed.chmod(0o644)
        await heard.until(lambda: dealer.is_connected)
        assert dealer.refusal == ""

    visit(folder, test)


def test_a_broken_file_or_a_folder_that_is_away_shuts_nobody_else_out(folder):
    """It is told; whoever was known stays so."""

    async def test(door):
        await door.enter(door.robot())
        clients = folder / "inference" / "clients"
        (clients / "environment-broken.pub").write_text("nonsense")
        door.router._guard.reload()
        assert any(reason == "unreadable_keys" and "environment-broken.pub" in text for reason, text in door.refused)
        clients.rename(clients.with_name("away"))
        door.router._guard.reload()
        assert door.revoked == []
        await door.enter(dial_keys(folder / "environment" / "default", Role.ENVIRONMENT, Role.INFERENCE), b"later")

    visit(folder, test)


def test_the_door_opens_after_garbage_and_two_hundred_idle_connections(folder):
    """Connections that say nothing, or nothing that makes sense, cost a good key nothing but a moment."""

    async def test(door):
        host, port = door.router.endpoint.removeprefix("tcp://").rsplit(":", 1)
        with contextlib.ExitStack() as idle:
            for _ in range(200):
                idle.enter_context(socket.create_connection((host, int(port)), timeout=10))
            await asyncio.to_thread(shout_over_tcp, door.router.endpoint, 3)
            hello = b"\x04\xc8\x05HELLO"
            for noise in (b"", hello + bytes(194), hello + b"\xa5" * 194, b"\x04\x09\x08INITIATE"):
                idle.enter_context(socket.create_connection((host, int(port)), timeout=10)).sendall(GREETING + noise)
            await door.until(lambda: "handshake" in door.reasons())
            await door.enter(door.robot())
        assert [frames for _, frames in door.messages] == [[b"hello"]]

    visit(folder, test)


def test_a_router_that_has_forgotten_a_route_looks_it_up_again(folder, monkeypatch):
    """What it remembers is bounded, and nobody notices."""
    monkeypatch.setattr(router, "MAX_ROUTES", 4)

    async def test(door):
        first, _, route = await door.enter(door.robot(), b"first")
        others = [await door.enter(door.robot(), b"%d" % number) for number in range(6)]
        assert door.router.user_id(route) == ""
        assert first.send([b"still me"])
        await door.until(lambda: door.messages[-1] == (route, [b"still me"]))
        assert door.router.user_id(route) == "environment:robot"
        assert len(others) == 6

    visit(folder, test)


def test_questions_that_are_nonsense_do_not_end_the_guard(folder):
    """Anything in the process may ask at the ZAP address; noise is refused, and a good key still gets in."""

    async def test(door):
        asker = door.reactor.context.socket(zmq.DEALER)
        asker.connect(zap.ZAP_ENDPOINT)
        for frames in ([b""], [b"", b"1.0"], [b"", b"1.0", b"7", *[b"\xff" * 500] * 5], [b"x"] * 60):
            asker.send_multipart(frames)
        await door.until(lambda: len(door.refused) == 4)
        asker.close(0)
        await door.enter(door.robot())

    visit(folder, test)


def test_a_failure_of_the_guard_is_a_failure_of_the_service(folder):
    """A bug is never a door that silently stays shut, or open: the loop's exception handler hears of it."""

    async def test(door):
        failures = Heard()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.event(context["exception"]))
        door.router._guard.access = None
        _, heard = door.knock(door.robot())
        await failures.until(lambda: bool(failures.events))
        assert isinstance(failures.events[0], AttributeError)
        assert heard.events == []
        assert door.messages == []

    visit(folder, test)


def test_with_keys_any_address_may_be_bound_and_dialled(folder):
    """And an ipc link is door like any other."""

    async def test(door):
        _, heard, _ = await door.enter(door.robot())
        assert heard.events == ["connected"]

    visit(folder, test, bind="tcp://0.0.0.0:0")
    visit(folder, test, bind=f"ipc://{folder}/link")


def test_without_keys_no_other_machine_is_dialled():
    """The error says where keys come from, or which tunnel to use; names may be anyone."""

    async def test() -> None:
        with Reactor() as reactor:
            for address in ("tcp://10.0.0.1:5555", "tcp://inference:5555", "tcp://[fe80::1]:5555"):
                with pytest.raises(ConfigError, match=r"no keys.*runtime\.keys.*ssh -L"):
                    Dealer(reactor, address, on_message=print)

    asyncio.run(test())


def test_one_reactor_guards_one_server(folder):
    """The second is refused, and leaves nothing open."""

    async def test(door):
        with pytest.raises(ConfigError, match="a reactor of its own"):
            Router(door.reactor, "tcp://127.0.0.1:0", on_message=print, keys=bind_keys(folder, Role.LEARNER))
        await door.enter(door.robot())

    visit(folder, test)


def test_a_wrong_key_file_stops_a_server_at_once(folder):
    """At the start nothing is skipped: whoever made the file is there to mend it."""
    (folder / "inference" / "clients" / "environment-broken.pub").write_text("nonsense")

    async def test() -> None:
        with Reactor() as reactor, pytest.raises(ConfigError, match=r"environment-broken\.pub: not a key file"):
            Router(reactor, "tcp://127.0.0.1:0", on_message=print, keys=bind_keys(folder, Role.INFERENCE))

    asyncio.run(test())


def test_no_secret_is_logged(folder, caplog, capfd):
    """Neither when let in nor when refused."""
    caplog.set_level(logging.DEBUG)

    async def test(door):
        foreign = stranger(Role.ENVIRONMENT, "robot", door.robot().server)
        dealer = await is_turned_away(door, foreign, "unknown_key")
        said = f"{door.refused} {dealer.refusal} {caplog.text} {capfd.readouterr()}"
        for secret in (foreign.pair.secret, door.robot().pair.secret, bind_keys(folder, Role.INFERENCE).pair.secret):
            assert secret not in said

    visit(folder, test)


def test_nobody_can_guess_the_route_of_another(folder):
    """libzmq counts routes up from the C library's rand(), whose numbers are the same in every process."""
    routes = []

    async def first(door: GuardedRouter) -> None:
        _, _, route = await door.enter(door.robot())
        routes.append(route)

    for _ in range(2):
        ctypes.CDLL(None).srand(1)
        visit(folder, first)
    assert len(set(routes)) == 2


def test_a_peer_that_chooses_its_own_route_is_refused(folder):
    """Whoever knows it could take its place, and be taken for it."""

    async def test(door: GuardedRouter) -> None:
        keys = door.robot()
        with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
            peer.setsockopt(zmq.LINGER, 0)
            peer.setsockopt(zmq.ROUTING_ID, b"mine")
            peer.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public.encode())
            peer.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())
            peer.setsockopt(zmq.CURVE_SERVERKEY, keys.server.public.encode())
            peer.connect(door.router.endpoint)
            peer.send(b"hello")
            await door.until(lambda: bool(door.refused))
        assert door.refused[0] == ("routing_id", "environment:robot")
        assert door.messages == []

    visit(folder, test)
