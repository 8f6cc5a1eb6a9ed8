"""Who may connect to a server: the answers to libzmq's questions (ZAP, RFC 27), and the list that they come from.

libzmq asks, inside the process, before any message of a new connection is read. We answer from our own reactor, not
by pyzmq's authenticators: those end for good, and silently, at the first exception, know neither roles nor revoked
keys, and read their keys once. Here a question that cannot be understood is refused like a foreign key, and a bug ends
the service as any other does.

A key that was taken off the list ends with its connection: `Router` asks `AccessList` about each new route, and the
guard tells it of every change.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.keys import BindKeys, PublicKey, read_clients
from seedbed.shared.net.reactor import Reactor
from seedbed.shared.net.roles import Role

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
USER_ID, KEY = "User-Id", "X-Seedbed-Key"  # properties of an admitted connection
ROUTING_ID = "Identity"  # property of every connection: the id that the peer chose for itself; empty if it chose none
RELOAD_S = 1.0  # how often the clients' folder is looked at
REQUEST_FRAMES = 8  # a CURVE question: route, delimiter, then these of which the last is the key

Refusal = Callable[[str, str], None]
Signature = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZapReply:
    """What is answered when libzmq asks whether a key may connect."""

    frames: Sequence[bytes]
    refusal: str = ""  # why not, a short constant for counters
    peer: str = ""  # numeric address, and whose key it is where that is known


class AccessList:
    """The keys that a server admits, and nothing about sockets. Owned by the server's loop."""

    def __init__(self, domain: str, accepts: frozenset[Role], clients: dict[str, PublicKey]) -> None:
        self._domain, self._accepts, self.clients = domain, accepts, clients

    def admits(self, user_id: str, key: str) -> bool:
        """Whether this owner may still be connected with this key."""
        known = self.clients.get(key)
        return known is not None and known.user_id == user_id and known.role in self._accepts

    def answer(self, request: Sequence[bytes]) -> ZapReply:
        """Return the answer to one of libzmq's questions whether a key may connect; never raises.

        Args:
          request: version, request id, domain, address, routing id, mechanism, key u8 [32].
        """
        if len(request) != REQUEST_FRAMES - 1 or request[0] != b"1.0":
            return _refuse(request[1] if len(request) > 1 else b"", "malformed", "")
        _version, request_id, domain, address, _routing_id, mechanism, key = request
        peer = address.decode("ascii", "replace")
        if domain != self._domain.encode():
            return _refuse(request_id, "wrong_domain", peer)
        if mechanism != b"CURVE" or len(key) != 32:
            return _refuse(request_id, "not_curve", peer)
        public = z85.encode(key).decode()
        known = self.clients.get(public)
        if known is None:
            return _refuse(request_id, "unknown_key", peer)
        if known.role not in self._accepts:
            return _refuse(request_id, "wrong_role", f"{peer} {known.user_id}")
        return ZapReply(
            frames=[b"1.0", request_id, b"200", b"", known.user_id.encode(), _property(KEY, public)],
            peer=f"{peer} {known.user_id}",
        )


class KeyGuard:
    """Answers for one server socket, follows its folder of clients, and counts who is refused. One for each reactor.

    Owned by the reactor's loop; memory: one short record for each key.
    """

    def __init__(
        self,
        reactor: Reactor,
        keys: BindKeys,
        *,
        on_refused: Refusal,
        on_changed: Callable[[], None],
    ) -> None:
        """Read the list, and begin to answer.

        Args:
          on_refused: called with a reason and who it was.
          on_changed: called after keys came or went.
        Raises: ConfigError if a key file is wrong.
        """
        self.keys = keys
        self._reactor = reactor
        self._on_refused, self._on_changed = on_refused, on_changed
        self._signature = _look(keys.clients)
        clients, problems = read_clients(keys.clients)
        if problems:
            raise ConfigError("\n".join(problems))
        self.access = AccessList(str(keys.pair.role), keys.accepts, clients)
        socket = reactor.context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(ZAP_ENDPOINT)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError("one reactor can guard one server: give the other a reactor of its own") from error
        self._channel = reactor.open(socket, self._asked)
        self._timer: asyncio.TimerHandle = reactor.loop.call_later(RELOAD_S, self._reload_again)

    def protect(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket ask this guard about every new connection. Call it before the socket is bound."""
        pair = self.keys.pair
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, str(pair.role).encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # else libzmq admits every key while nobody answers

    def reload(self) -> None:
        """Read the clients' folder if anything in it changed. Files that cannot be read admit nobody."""
        signature = _look(self.keys.clients)
        if signature == self._signature:
            return
        self._signature = signature
        try:
            clients, problems = read_clients(self.keys.clients)
        except ConfigError as error:  # all that was known stays, for a folder that is away may come back
            self._on_refused("unreadable_keys", str(error))
            return
        for problem in problems:
            self._on_refused("unreadable_keys", problem)
        if clients != self.access.clients:
            self.access.clients = clients
            self._on_changed()

    def close(self) -> None:
        """Stop answering. Call it before the guarded socket is closed. Idempotent."""
        self._timer.cancel()
        self._channel.close()

    def _asked(self, frames: list[bytes]) -> None:
        """Answer libzmq: route, delimiter, question."""
        answer = self.access.answer(frames[2:])
        self._channel.send([frames[0], b"", *answer.frames])
        if answer.refusal:
            self._on_refused(answer.refusal, answer.peer)

    def _reload_again(self) -> None:
        self._timer = self._reactor.loop.call_later(RELOAD_S, self._reload_again)
        self.reload()


def _refuse(request_id: bytes, reason: str, peer: str) -> ZapReply:
    return ZapReply(frames=[b"1.0", request_id, b"400", b"refused", b"", b""], refusal=reason, peer=peer)


def _property(name: str, value: str) -> bytes:
    """A property of ZMTP's metadata as bytes: the name and the value, each after its length."""
    return bytes([len(name)]) + name.encode() + len(value).to_bytes(4, "big") + value.encode()


def _look(folder: Path) -> Signature:
    """Return a signature of a folder, which differs after a file came, went, or changed in content or mode.

    It holds names, inodes, times of change and sizes, and is empty if the folder cannot be read.
    """
    found = []
    try:
        for path in (folder, *folder.iterdir()):
            status = path.stat()
            found.append((path.name, status.st_ino, status.st_ctime_ns, status.st_size))
    except OSError:
        return ()
    return tuple(sorted(found))
