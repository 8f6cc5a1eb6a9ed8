"""Keys as files: never overwritten, never readable by others, found by role; errors have the command that mends."""

import os
import stat

import pytest
import zmq

from seedbed.shared.errors import ConfigError
from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import bind_keys, dial_keys, read_clients, read_pair
from seedbed.shared.net.roles import Role


@pytest.fixture
def folder(tmp_path):
    """One key for each role."""
    Keyring(tmp_path / "keys").init()
    return tmp_path / "keys"


def modes(folder):
    """Permissions of every file and folder, by path within."""
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_secrets_are_readable_by_their_owner_alone_whatever_the_umask(tmp_path, umask):
    """Secret files have mode 0600 and folders 0700."""
    former = os.umask(umask)
    try:
        made = Keyring(tmp_path / "keys").init()
    finally:
        os.umask(former)
    assert {stat.S_IMODE(file.stat().st_mode) for file in made} == {0o600}
    assert set(made) == set((tmp_path / "keys").rglob("*.key"))
    found = modes(tmp_path / "keys")
    assert {found[name] for name in found if (tmp_path / "keys" / name).is_dir()} == {0o700}
    assert not list((tmp_path / "keys").rglob(".*"))


def test_init_makes_what_each_role_needs(folder):
    """Both links can be opened from either the common folder or the role's own."""
    for place in (folder, folder / "environment", folder / "environment" / "default"):
        environment = dial_keys(place, Role.ENVIRONMENT, Role.INFERENCE)
        assert environment.pair.user_id == "environment:default"
        assert environment.server.public == read_pair(folder / "inference" / "server.key").public
    for place in (folder, folder / "inference"):
        upstream = dial_keys(place, Role.INFERENCE, Role.LEARNER)
        assert upstream.pair.user_id == "inference:main"
        assert bind_keys(place, Role.INFERENCE).pair.public == environment.server.public
        assert upstream.pair.public != environment.server.public
    clients, problems = read_clients(bind_keys(folder, Role.INFERENCE).clients)
    assert {key.user_id for key in clients.values()} == {"environment:default", "monitor:default"}
    assert problems == []
    assert dial_keys(None, Role.ENVIRONMENT, Role.INFERENCE) is None
    assert bind_keys(None, Role.LEARNER) is None


def test_nothing_is_overwritten(folder):
    """Making a key that is there changes no file and says so."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    ring = Keyring(folder)
    with pytest.raises(ConfigError, match="never overwritten"):
        ring.init()
    for role, name in ((Role.LEARNER, "other"), (Role.INFERENCE, "other"), (Role.ENVIRONMENT, "default")):
        with pytest.raises(ConfigError, match="never overwritten"):
            ring.new(role, name)
    (folder / "environment" / "default" / "client.key").unlink()  # taken to another machine: the name is still in use
    with pytest.raises(ConfigError, match="keys revoke environment:default"):
        ring.new(Role.ENVIRONMENT, "default")
    assert all(path.read_bytes() == content for path, content in before.items() if path.exists())


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", ".x", "x" * 65, "ä", "a/b"])
def test_a_name_cannot_leave_its_folder(folder, name):
    """Names are plain words."""
    with pytest.raises(ConfigError, match="no name for a key"):
        Keyring(folder).new(Role.ENVIRONMENT, name)


def test_a_client_needs_its_server_first(tmp_path):
    """The error names the command that makes the server's key."""
    with pytest.raises(ConfigError, match="seedbed keys new inference main"):
        Keyring(tmp_path).new(Role.ENVIRONMENT, "robot")
    with pytest.raises(ConfigError, match="seedbed keys new learner main"):
        Keyring(tmp_path).new(Role.INFERENCE, "main")


def test_a_secret_that_others_may_read_is_refused(folder):
    """The error has the line that mends it, and no key."""
    file = folder / "inference" / "server.key"
    secret = read_pair(file).secret
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=rf"0640\): chmod 600 {file}") as caught:
        bind_keys(folder, Role.INFERENCE)
    assert secret not in str(caught.value)


@pytest.mark.parametrize(("mode", "is_read"), [(0o440, True), (0o400, True), (0o444, False)])
def test_a_secret_that_an_orchestrator_hands_out_may_be_its_groups(folder, monkeypatch, mode, is_read):
    """Root's, for this process's group, where nobody can write: as Kubernetes mounts secrets for a pod."""
    file = folder / "inference" / "server.key"
    file.chmod(mode)
    monkeypatch.setattr("os.getuid", lambda: 1000)
    real = os.fstat
    monkeypatch.setattr("os.fstat", lambda place: os.stat_result((*real(place)[:4], 0, *real(place)[5:])))
    monkeypatch.setattr("seedbed.shared.net.keys._is_read_only", lambda _: True)
    if is_read:
        assert bind_keys(folder, Role.INFERENCE)
    else:
        with pytest.raises(ConfigError, match="others may read it"):
            bind_keys(folder, Role.INFERENCE)


def test_a_deployments_group_may_read_its_keys_where_that_is_asked_for(tmp_path, monkeypatch):
    """Its services run as several users; without the variable, or for another group, the same files are refused."""
    group = os.getegid()
    monkeypatch.setenv("SEEDBED_KEYS_GROUP", str(group))
    Keyring(tmp_path / "keys").init()
    secret, clients = (tmp_path / "keys" / "learner" / name for name in ("server.key", "clients"))
    seen = [(stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) for path in (secret, clients)]
    assert seen == [(0o640, group), (0o750, group)]
    assert bind_keys(tmp_path / "keys", Role.LEARNER)
    for other in ("", str(group + 1)):
        monkeypatch.setenv("SEEDBED_KEYS_GROUP", other)
        with pytest.raises(ConfigError, match="others may read it"):
            bind_keys(tmp_path / "keys", Role.LEARNER)


def test_a_folder_that_others_may_write_to_is_refused(folder):
    """Else they could add keys of their own."""
    for place in (folder / "learner" / "clients", folder / "environment" / "default"):
        place.chmod(0o777)
    with pytest.raises(ConfigError, match=r"chmod go-w .*clients"):
        read_clients(bind_keys(folder, Role.LEARNER).clients)
    with pytest.raises(ConfigError, match=r"chmod go-w .*default"):
        dial_keys(folder, Role.ENVIRONMENT, Role.INFERENCE)


def test_a_folder_that_cannot_be_read_is_no_empty_one(folder, monkeypatch):
    """Else everybody would count as revoked."""
    clients = bind_keys(folder, Role.LEARNER).clients

    def is_refused(_path):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr(os, "listdir", is_refused)
    with pytest.raises(ConfigError, match="Permission denied"):
        read_clients(clients)


def test_a_public_file_that_others_may_write_to_admits_nobody(folder):
    """Else they could put their own key under a trusted name; likewise one key under two names is a mistake."""
    clients = folder / "inference" / "clients"
    default = clients / "environment-default.pub"
    (clients / "environment-twin.pub").write_text(default.read_text().replace('"default"', '"twin"'))
    (clients / "monitor-default.pub").chmod(0o666)
    found, problems = read_clients(clients)
    assert {key.user_id for key in found.values()} == {"environment:default"}
    assert "same key as environment:default's" in problems[0]
    assert f"chmod go-w {clients / 'monitor-default.pub'}" in problems[1]


def test_a_libzmq_without_curve_is_found_before_anything_is_bound(folder, monkeypatch):
    """The error says what to install."""
    monkeypatch.setattr(zmq, "has", lambda capability: capability != "curve")
    with pytest.raises(ConfigError, match=r"no CURVE: pip install"):
        bind_keys(folder, Role.LEARNER)


def test_no_text_of_a_pair_shows_its_secret(folder):
    """Neither repr nor str, so no log line or traceback that prints it."""
    keys = dial_keys(folder, Role.ENVIRONMENT, Role.INFERENCE)
    assert keys.pair.secret not in f"{keys} {keys!r} {keys.pair}"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a key file"),
        (b"\xff\xfe", "not a key file"),
        (b'role = "environment"', "not a key file"),
        (b'role = "king"\nname = "x"\npublic = "' + b"a" * 40 + b'"', "role or name"),
        (b'role = "environment"\nname = "x"\npublic = "short"', "damaged"),
        (b'role = "environment"\nname = "x"\npublic = "' + b"a" * 40 + b'"\nsecret = "y"', "secret key"),
        (b'role = "environment"\nname = "y"\npublic = "' + b"a" * 40 + b'"', "name it environment-y.pub"),
    ],
)
def test_a_broken_public_file_is_skipped_and_named(folder, content, complaint):
    """The others count on."""
    clients = folder / "inference" / "clients"
    (clients / "environment-x.pub").write_bytes(content)
    found, problems = read_clients(clients)
    assert "environment:default" in {key.user_id for key in found.values()}
    assert len(problems) == 1
    assert "environment-x.pub" in problems[0]
    assert complaint in problems[0]


def test_a_pair_whose_halves_do_not_belong_together_is_refused(folder):
    """A damaged secret is found before it is used, and not shown."""
    file = folder / "environment" / "default" / "client.key"
    pair, other = read_pair(file), zmq.curve_keypair()[1].decode()
    file.write_text(file.read_text().replace(pair.secret, other))
    with pytest.raises(ConfigError, match="damaged") as caught:
        read_pair(file)
    assert other not in str(caught.value)


def test_a_key_of_another_role_is_not_taken(folder):
    """Nor a folder without the role's key, nor one that is not there."""
    with pytest.raises(ConfigError, match="role monitor, not environment"):
        dial_keys(folder / "monitor" / "default", Role.ENVIRONMENT, Role.INFERENCE)
    with pytest.raises(ConfigError, match="no key of role learner: run  seedbed keys init"):
        bind_keys(folder / "environment", Role.LEARNER)
    with pytest.raises(ConfigError, match="is no folder"):
        bind_keys(folder / "nowhere", Role.LEARNER)


def test_several_keys_of_a_role_are_told_apart_by_folder(folder):
    """The one named default is taken, else the choice is the user's."""
    ring = Keyring(folder)
    ring.new(Role.ENVIRONMENT, "robot")
    ring.new(Role.ENVIRONMENT, "arm")
    assert dial_keys(folder, Role.ENVIRONMENT, Role.INFERENCE).pair.name == "default"
    assert dial_keys(folder / "environment" / "arm", Role.ENVIRONMENT, Role.INFERENCE).pair.name == "arm"
    ring.revoke("environment:default")
    with pytest.raises(ConfigError, match=r"several keys: choose one, as runtime\.keys=.*arm"):
        dial_keys(folder, Role.ENVIRONMENT, Role.INFERENCE)


def test_a_revoked_key_is_gone_and_its_name_is_free(folder):
    """Its public file leaves the servers' folders, and a new key of that name is another one."""
    ring = Keyring(folder)
    ring.new(Role.ENVIRONMENT, "robot")
    former = read_pair(folder / "environment" / "robot" / "client.key").public
    assert ring.revoke("robot").public == former
    assert not (folder / "environment" / "robot").exists()
    assert former not in read_clients(folder / "inference" / "clients")[0]
    ring.new(Role.ENVIRONMENT, "robot")
    assert read_pair(folder / "environment" / "robot" / "client.key").public != former


def test_revoking_asks_for_one_key(folder):
    """An unknown name lists what there is; one of several roles is to be written in full; servers have none."""
    ring = Keyring(folder)
    with pytest.raises(ConfigError, match=r"'nobody'; there are: .*inference:main"):
        ring.revoke("nobody")
    with pytest.raises(ConfigError, match="environment:default, monitor:default"):
        ring.revoke("default")
    assert ring.revoke("main").user_id == "inference:main"
    assert not (folder / "inference" / "client.key").exists()
    assert bind_keys(folder, Role.INFERENCE)
    ring.new(Role.INFERENCE, "second")
    assert dial_keys(folder, Role.INFERENCE, Role.LEARNER).pair.name == "second"


def test_the_list_says_who_may_connect_where(folder):
    """Servers first; a monitor's key opens both, to look."""
    entries = [(entry.key.user_id, entry.is_server, entry.opens) for entry in Keyring(folder).entries()]
    assert sorted(entries[:2]) == [("inference:main", True, ()), ("learner:main", True, ())]
    assert entries[2:] == [
        ("environment:default", False, (Role.INFERENCE,)),
        ("inference:main", False, (Role.LEARNER,)),
        ("monitor:default", False, (Role.INFERENCE, Role.LEARNER)),
    ]


def test_an_empty_folder_is_no_keyring(tmp_path):
    """The error says how to fill it."""
    with pytest.raises(ConfigError, match="seedbed keys init"):
        Keyring(tmp_path).entries()
