"""CURVE keys as files: one folder for each role, which a service is given and nobody else can read.

    learner/           server.key   clients/inference-main.pub
    inference/         server.key   client.key   learner.pub   clients/environment-default.pub
    environment/NAME/  client.key   inference.pub
    monitor/NAME/      client.key   inference.pub   learner.pub

A file is a small TOML table: role, name and public key, and in `.key` files the secret key, both in Z85. Whoever may
connect to a server has a file in its folder `clients`; removing the file revokes the key.
"""

import os
import re
import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.roles import CLIENTS_OF, SERVERS, Role

SERVER_KEY, CLIENT_KEY, CLIENTS = "server.key", "client.key", "clients"
DEFAULT_NAME = "default"
MAX_FILE_BYTES = 4096
GROUP_VARIABLE = "SEEDBED_KEYS_GROUP"  # whose members may read the secrets here
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_Z85_KEY = re.compile(r"[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A public key, as 40 characters of Z85, with the role and name of its owner."""

    role: Role
    name: str
    public: str

    @property
    def user_id(self) -> str:
        """`role:name`, which the server binds to the owner's connections."""
        return f"{self.role}:{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair(PublicKey):
    """A public key and its secret half, which `repr` does not show."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialKeys:
    """The keys that a dealer needs: its own pair, and the public key of the one server that it will talk to.

    `folder`: the role's own, which they were read from; None: from nowhere.
    """

    pair: KeyPair
    server: PublicKey
    folder: Path | None = None

    def reread(self) -> "DialKeys":
        """Return the keys of the same role as their files are now, which may have been replaced.

        Raises: ConfigError as `dial_keys` does.
        """
        return dial_keys(self.folder, self.pair.role, self.server.role) or self


@dataclass(frozen=True, slots=True, kw_only=True)
class BindKeys:
    """What a router needs: its pair, the folder of those who may connect, and the roles that it serves."""

    pair: KeyPair
    clients: Path
    accepts: frozenset[Role]


def dial_keys(folder: Path | None, role: Role, server: Role) -> DialKeys | None:
    """The keys of `role` for dialling a server; None without a folder.

    Args:
      folder: `runtime.keys`: the role's own folder, or the one that holds all roles.
    Raises: ConfigError naming the file, what is wrong with it, and the command that fixes it.
    """
    if folder is None:
        return None
    own = _role_folder(folder, role)
    pair, public = read_pair(own / CLIENT_KEY), read_public(own / f"{server}.pub")
    _expect(pair, role, own / CLIENT_KEY)
    _expect(public, server, own / f"{server}.pub")
    return DialKeys(pair=pair, server=public, folder=own)


def bind_keys(folder: Path | None, role: Role) -> BindKeys | None:
    """Return a server's keys and the folder of its clients' keys; None without a folder.

    Arguments and errors are those of `dial_keys`.
    """
    if folder is None:
        return None
    own = _role_folder(folder, role)
    pair = read_pair(own / SERVER_KEY)
    _expect(pair, role, own / SERVER_KEY)
    return BindKeys(pair=pair, clients=own / CLIENTS, accepts=CLIENTS_OF[role])


def read_clients(folder: Path) -> tuple[dict[str, PublicKey], list[str]]:
    """Return the keys of those who may connect, by public key, and a message for each file that was skipped.

    Raises: ConfigError if the folder cannot be read or others may write to it.
    """
    clients: dict[str, PublicKey] = {}
    problems: list[str] = []
    _refuse_writable(folder)
    try:
        names = os.listdir(folder)  # `glob` would take a folder that cannot be read for an empty one
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}") from error
    for file in sorted(folder / name for name in names if name.endswith(".pub")):
        try:
            key = read_public(file)
        except MissingKeyError:  # revoked as we looked
            continue
        except ConfigError as error:
            problems.append(str(error))
            continue
        if key.public in clients:
            problems.append(f"{file}: the same key as {clients[key.public].user_id}'s: make each owner its own")
        elif file.name != client_file(key):
            problems.append(f"{file}: holds the key of {key.user_id}: name it {client_file(key)}")
        else:
            clients[key.public] = key
    return clients, problems


def client_file(key: PublicKey) -> str:
    """Return the name of a client's file in a server's folder `clients`."""
    return f"{key.role}-{key.name}.pub"


def read_pair(file: Path) -> KeyPair:
    """Read a secret key file, which others must not be able to read.

    Raises: ConfigError naming the file; MissingKeyError, one of these, if it does not exist.
    """
    table = _read(file, is_secret=True)
    secret = str(table.get("secret", ""))
    if not _Z85_KEY.fullmatch(secret) or zmq.curve_public(secret.encode()).decode() != table["public"]:
        raise ConfigError(f"{file}: the secret key is damaged or not this public key's: make a new one")
    return KeyPair(role=Role(table["role"]), name=table["name"], public=table["public"], secret=secret)


def read_public(file: Path) -> PublicKey:
    """Read a public key file.

    Raises: ConfigError naming the file; MissingKeyError, one of these, if it does not exist.
    """
    table = _read(file, is_secret=False)
    return PublicKey(role=Role(table["role"]), name=table["name"], public=table["public"])


def check_name(name: str) -> str:
    """Return the name unchanged if a key can have it.

    Raises: ConfigError if it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a key: 1 to 64 letters, digits, dots, dashes and underscores")
    return name


class MissingKeyError(ConfigError):
    """Raised for a key file that does not exist."""


def shared_group() -> int | None:
    """Return the id of the group that may read the secrets here, for services of several users; None: only owners."""
    given = os.environ.get(GROUP_VARIABLE, "")
    return int(given) if given.isdecimal() else None


def _role_folder(folder: Path, role: Role) -> Path:
    """Return the folder that holds the key of a role.

    That is the folder itself, or the role's folder within it, or within that the folder of the only or default key.
    Raises: ConfigError if there is no such key, several to choose from, or others may write to the folder.
    """
    if not zmq.has("curve"):
        raise ConfigError("runtime.keys: the installed libzmq has no CURVE: pip install --force-reinstall pyzmq")
    if not folder.is_dir():
        raise ConfigError(f"runtime.keys: {folder} is no folder: run  seedbed keys init {folder}")
    wanted = SERVER_KEY if role in SERVERS else CLIENT_KEY
    for place in (folder, folder / role):
        if (place / wanted).is_file():
            _refuse_writable(place)
            return place
    named = sorted(path.parent for place in (folder / role, folder) for path in place.glob(f"*/{CLIENT_KEY}"))
    if role not in SERVERS and named:
        chosen = named if len(named) == 1 else [path for path in named if path.name == DEFAULT_NAME]
        if len(chosen) != 1:
            raise ConfigError(f"runtime.keys: {folder} holds several keys: choose one, as runtime.keys={named[0]}")
        _refuse_writable(chosen[0])
        return chosen[0]
    raise ConfigError(f"runtime.keys: {folder} holds no key of role {role}: run  seedbed keys init {folder}")


def _read(file: Path, *, is_secret: bool) -> dict[str, str]:
    """Return a key file's table after a check of its permissions, role, name and public key.

    Raises: ConfigError; no message shows what the file holds.
    """
    try:
        with file.open("rb") as stream:
            state = os.fstat(stream.fileno())
            mode = stat.S_IMODE(state.st_mode)
            handed = state.st_uid == 0 != os.getuid() and _is_read_only(file)  # as an orchestrator hands out secrets
            refused = 0o007 if handed else 0o037 if state.st_gid == shared_group() else 0o077
            if is_secret and mode & refused:
                raise ConfigError(f"{file} is a secret and others may read it (mode {mode:04o}): chmod 600 {file}")
            if mode & 0o022 and not _is_read_only(file):
                raise ConfigError(f"others may write to {file} (mode {mode:04o}): chmod go-w {file}")
            text = stream.read(MAX_FILE_BYTES).decode()
        table = tomllib.loads(text)
    except FileNotFoundError as error:
        raise MissingKeyError(f"{file}: no such key file: run  seedbed keys list  to see which there are") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not a key file") from error
    if not all(isinstance(table.get(key), str) for key in ("role", "name", "public")):
        raise ConfigError(f"{file}: not a key file: role, name and public must be there")
    if table["role"] not in tuple(Role) or not _NAME.fullmatch(table["name"]):
        raise ConfigError(f"{file}: role or name cannot be a key's")
    if not _Z85_KEY.fullmatch(table["public"]):
        raise ConfigError(f"{file}: the public key is damaged: 40 characters of Z85 are expected")
    if not is_secret and "secret" in table:
        raise ConfigError(f"{file}: holds a secret key where the public one is expected: make the pair anew")
    return table


def _expect(key: PublicKey, role: Role, file: Path) -> None:
    if key.role is not role:
        raise ConfigError(f"{file}: is a key of role {key.role}, not {role}")


def _refuse_writable(folder: Path) -> None:
    """Raise ConfigError if others may write to a folder and could add keys; a read-only mount is accepted."""
    try:
        mode = stat.S_IMODE(folder.stat().st_mode)
        is_writable = mode & 0o022 and not _is_read_only(folder)
    except OSError as error:
        raise ConfigError(f"{folder}: {error.strerror or error}: run  seedbed keys list") from error
    if is_writable:
        raise ConfigError(f"others may write to {folder} (mode {mode:04o}): chmod go-w {folder}")


def _is_read_only(path: Path) -> bool:
    """Whether a path is mounted read-only, whatever its mode says."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
