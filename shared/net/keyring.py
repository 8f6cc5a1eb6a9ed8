"""Making, listing and revoking keys: what `seedbed keys` does to the folder that holds all roles.

Nothing is ever overwritten. Revoking removes a client's public key from the servers' folders, which they notice within
a second or two, and the pair itself where it lies in this folder.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.keys import (
    CLIENT_KEY,
    CLIENTS,
    DEFAULT_NAME,
    SERVER_KEY,
    KeyPair,
    MissingKeyError,
    PublicKey,
    check_name,
    client_file,
    read_clients,
    read_pair,
    read_public,
    shared_group,
)
from seedbed.shared.net.roles import CLIENTS_OF, SERVERS, Role

FIRST_NAME = "main"  # of the servers, and of inference at the learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key: its owner, and the servers that it opens; a server's own pair opens none."""

    key: PublicKey
    opens: tuple[Role, ...] = ()
    is_server: bool = False


class Keyring:
    """The folder of all roles' keys. Every method reads the files anew."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def init(self) -> list[Path]:
        """One key for each role: what a first deployment needs. Returns the files with secrets.

        Raises: ConfigError if any key is there already.
        """
        present = sorted(self.folder.rglob("*.key")) if self.folder.is_dir() else []
        if present:
            raise ConfigError(f"{present[0]} is there: keys are never overwritten; name another folder")
        made = self.new(Role.LEARNER, FIRST_NAME)
        made += self.new(Role.INFERENCE, FIRST_NAME)
        made += self.new(Role.ENVIRONMENT, DEFAULT_NAME)
        return made + self.new(Role.MONITOR, DEFAULT_NAME)

    def complete(self) -> list[Path]:
        """Make those of `init`'s keys that are not there, after a revocation too. Returns the files with secrets.

        Raises: ConfigError if a key cannot be read, or those that are there do not belong together.
        """
        made: list[Path] = []
        for role, name, file in (
            (Role.LEARNER, FIRST_NAME, Path(Role.LEARNER, SERVER_KEY)),
            (Role.INFERENCE, FIRST_NAME, Path(Role.INFERENCE, CLIENT_KEY)),
            (Role.ENVIRONMENT, DEFAULT_NAME, Path(Role.ENVIRONMENT, DEFAULT_NAME, CLIENT_KEY)),
            (Role.MONITOR, DEFAULT_NAME, Path(Role.MONITOR, DEFAULT_NAME, CLIENT_KEY)),
        ):
            if not (self.folder / file).exists():
                made += self.new(role, name)
            self._check_known(role, read_pair(self.folder / file), (self.folder / file).parent)
        return made

    def _check_known(self, role: Role, pair: KeyPair, own: Path) -> None:
        """Raise ConfigError unless a client holds the keys of the servers that it dials, and they hold its key."""
        for server in SERVERS:
            listed = self.folder / server / CLIENTS / client_file(pair)
            is_client = (own / f"{server}.pub").exists() and role is not server
            if is_client and (
                read_public(own / f"{server}.pub") != self._server(server)
                or not listed.exists()
                or read_public(listed).public != pair.public
            ):
                raise ConfigError(
                    f"{own} and {self.folder / server} do not belong together: one of them was made anew. "
                    f"Remove the keys of all roles, and make them again"
                )

    def new(self, role: Role, name: str) -> list[Path]:
        """Make a key. Returns the files with secrets.

        A learner gets the pair that inference knows it by; inference that, and a pair of its own for the learner;
        an environment or monitor a folder with its pair, to be taken to where it runs.

        Raises: ConfigError if it is there, or a server's key that it needs is not.
        """
        check_name(name)
        if role is Role.LEARNER:
            return [self._new_server(role, name)]
        if role is Role.INFERENCE:
            own, made = self.folder / role, []
            learner = self._server(Role.LEARNER)
            _refuse_existing(own / CLIENT_KEY)
            self._refuse_taken(role, name)
            if not (own / SERVER_KEY).exists():
                made.append(self._new_server(role, name))
            return [*made, self._new_client(role, name, own, (learner,))]
        servers = [Role.INFERENCE] if role is Role.ENVIRONMENT else [Role.INFERENCE, Role.LEARNER]
        known = tuple(self._server(server) for server in servers)
        own = self.folder / role / name
        _refuse_existing(own / CLIENT_KEY)
        self._refuse_taken(role, name)
        return [self._new_client(role, name, own, known)]

    def entries(self) -> list[Entry]:
        """Every key that a server has or admits, servers first.

        Raises: ConfigError for a file that cannot be read.
        """
        servers: list[Entry] = []
        opens: dict[PublicKey, tuple[Role, ...]] = {}
        for server in SERVERS:
            file = self.folder / server / SERVER_KEY
            if not file.exists():
                continue
            pair = read_pair(file)
            servers.append(Entry(key=_public(pair), is_server=True))
            clients, problems = read_clients(file.parent / CLIENTS)
            if problems:
                raise ConfigError("\n".join(problems))
            for key in clients.values():
                opens[key] = (*opens.get(key, ()), *([server] if key.role in CLIENTS_OF[server] else []))
        if not servers:
            raise ConfigError(f"{self.folder} holds no keys: run  seedbed keys init {self.folder}")
        return servers + [Entry(key=key, opens=names) for key, names in sorted(opens.items(), key=_by_owner)]

    def revoke(self, name: str) -> PublicKey:
        """Take a client's key from every server here.

        Args:
          name: of the key; `role:name` where several roles have it.
        Raises: ConfigError if there is none, or more than one.
        """
        entries = self.entries()
        found = [entry.key for entry in entries if not entry.is_server and name in (entry.key.name, entry.key.user_id)]
        if not found:
            known = ", ".join(entry.key.user_id for entry in entries if not entry.is_server) or "none"
            raise ConfigError(f"no client's key is named {name!r}; there are: {known}")
        if len(found) > 1:
            raise ConfigError(f"{name!r} names several: write one of {', '.join(key.user_id for key in found)}")
        key = found[0]
        for server in SERVERS:
            (self.folder / server / CLIENTS / client_file(key)).unlink(missing_ok=True)
        own = self.folder / key.role / ("" if key.role in SERVERS else key.name)
        self._remove_pair(key, own)
        return key

    def _remove_pair(self, key: PublicKey, own: Path) -> None:
        """Remove the pair of a revoked key, which opens nothing any more, so that its name is free again."""
        try:
            if read_pair(own / CLIENT_KEY).public != key.public:
                return
        except MissingKeyError:
            return
        (own / CLIENT_KEY).unlink()
        for server in SERVERS if key.role not in SERVERS else (Role.LEARNER,):
            (own / f"{server}.pub").unlink(missing_ok=True)
        if key.role not in SERVERS and not any(own.iterdir()):
            own.rmdir()

    def _server(self, role: Role) -> PublicKey:
        file = self.folder / role / SERVER_KEY
        if not file.exists():
            raise ConfigError(
                f"{file} is not there: make it first, with  seedbed keys new {role} {FIRST_NAME}, "
                f"or all with  seedbed keys init {self.folder}"
            )
        return _public(read_pair(file))

    def _refuse_taken(self, role: Role, name: str) -> None:
        """Raise ConfigError if a server admits a key of this name: the name must not come to mean another key."""
        for server in SERVERS:
            file = self.folder / server / CLIENTS / f"{role}-{name}.pub"
            if file.exists():
                raise ConfigError(
                    f"{file} is there: keys are never overwritten; choose another name, "
                    f"or first  seedbed keys revoke {role}:{name}"
                )

    def _new_server(self, role: Role, name: str) -> Path:
        own = self.folder / role
        _make_folder(own)
        _make_folder(own / CLIENTS)
        _write_pair(own / SERVER_KEY, role, name)
        return own / SERVER_KEY

    def _new_client(self, role: Role, name: str, own: Path, servers: tuple[PublicKey, ...]) -> Path:
        _make_folder(own)
        for server in servers:
            if (file := own / f"{server.role}.pub").exists():
                if read_public(file) != server:
                    raise ConfigError(f"{file} is another {server.role}'s key: remove it first")
            else:
                _write_public(file, server)
        pair = _write_pair(own / CLIENT_KEY, role, name)
        for server in servers:
            _write_public(self.folder / server.role / CLIENTS / client_file(pair), _public(pair))
        return own / CLIENT_KEY


def _by_owner(item: tuple[PublicKey, tuple[Role, ...]]) -> str:
    return item[0].user_id


def _public(pair: KeyPair) -> PublicKey:
    return PublicKey(role=pair.role, name=pair.name, public=pair.public)


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise ConfigError(f"{file} is there: keys are never overwritten; revoke it first, or choose another name")


def _make_folder(folder: Path) -> None:
    """Make a folder that only its owner, or also the shared group, may read, whatever the umask.

    A folder that exists is left as it is. Raises: ConfigError if it cannot be made.
    """
    try:
        for path in (*reversed(folder.parents), folder):
            if not path.exists():
                path.mkdir(mode=0o700)
                _share(path, 0o750)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from error


def _write_pair(file: Path, role: Role, name: str) -> KeyPair:
    public, secret = (half.decode() for half in zmq.curve_keypair())
    pair = KeyPair(role=role, name=name, public=public, secret=secret)
    lines = ["# Secret: keep it to the machine that uses it.", *_lines(pair), f'secret = "{secret}"']
    _write(file, lines, 0o600)
    return pair


def _write_public(file: Path, key: PublicKey) -> None:
    _write(file, _lines(key), 0o644)


def _lines(key: PublicKey) -> list[str]:
    """Return a public key as lines of TOML. Z85 has no quotes and no backslash, so that it needs no escapes."""
    return [f'role = "{key.role}"', f'name = "{key.name}"', f'public = "{key.public}"']


def _share(place: Path | int, mode: int) -> None:
    """Give a file or folder of ours to the group that is to read it, with this mode, if there is one and it is ours."""
    group = shared_group()
    if group is not None and group in (os.getegid(), *os.getgroups()):
        os.chown(place, -1, group)
        os.chmod(place, mode)


def _write(file: Path, lines: list[str], mode: int) -> None:
    """Write a file that does not exist yet; whoever looks at its name sees all of it or nothing.

    Raises: ConfigError if it exists or cannot be written.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as stream:
            os.fchmod(descriptor, mode)
            _share(descriptor, mode | 0o040)
            stream.write("\n".join(lines) + "\n")
            stream.flush()
            os.fsync(descriptor)
        try:
            os.link(temporary, file)  # unlike a rename this fails if the file is there
        finally:
            temporary.unlink()
    except FileExistsError as error:
        raise ConfigError(f"{file} is there: keys are never overwritten") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
