"""A deployment whose links all have keys: it trains, strangers stay out, and a revoked key is out at once."""

import shutil

import pytest

from seedbed.shared.net.keyring import Keyring
from seedbed.shared.net.keys import read_pair
from seedbed.shared.net.roles import Role
from tests.support.deployment import Deployment, at_least, living, wait_until


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """Learner, inference and an actor on CURVE, training, and the keys' folder."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys"
    Keyring(keys).init()
    with Deployment(folder, f"runtime.keys={keys}") as deployment:
        deployment.add_actor("resident")
        deployment.start()
        yield deployment, keys
    assert living(folder) == []


def actor_with(deployment, keys, name):
    """One more actor, started, with its own folder of keys."""
    actor = deployment.add_actor(name, f"runtime.keys={keys}")
    return actor.start()


def test_a_run_trains_with_every_link_encrypted(keyed):
    """Steps, unrolls, credit and weights pass; no secret stands in logs or run folder."""
    deployment, keys = keyed
    deployment.wait_trained(300)
    secrets = [read_pair(file).secret.encode() for file in keys.rglob("*.key")]
    written = [path for path in deployment.folder.rglob("*") if path.is_file() and keys not in path.parents]
    assert deployment.run_dir / "config.toml" in written
    for path in written:
        content = path.read_bytes()
        assert not [secret for secret in secrets if secret in content], path


def test_a_stranger_stays_out_and_its_log_says_why(keyed, tmp_path):
    """An actor with a key that nobody admitted; inference counts it and trains on."""
    deployment, keys = keyed
    shutil.copytree(keys, tmp_path / "keys")
    ring = Keyring(tmp_path / "keys")
    ring.new(Role.ENVIRONMENT, "stranger")  # listed in the copy alone
    stranger = actor_with(deployment, tmp_path / "keys" / "environment" / "stranger", "stranger")
    try:
        refusals = wait_until(lambda: stranger.events("handshake_failed"), "the stranger is refused")
        assert "key refused: environment:stranger" in refusals[0]["cause"]
        wait_until(lambda: at_least(deployment.inference.metric("refused_peers_total"), 1), "it is counted")
        told = wait_until(lambda: deployment.inference.events("peer_refused"), "it says so")
        assert "unknown_key" in {event["reason"] for event in told}
        deployment.wait_trained(100)
    finally:
        stranger.close()
        deployment.actors.remove(stranger)


def test_a_revoked_actor_is_told_and_ends_while_others_train_on(keyed):
    """Its sessions end without a restart of anybody else, and coming back does not help."""
    deployment, keys = keyed
    Keyring(keys).new(Role.ENVIRONMENT, "robot")
    shutil.copytree(keys / "environment" / "robot", deployment.folder / "robot")
    robot = actor_with(deployment, deployment.folder / "robot", "robot")
    try:
        wait_until(lambda: robot.events("session_welcomed"), "the robot is in")
        Keyring(keys).revoke("robot")
        assert robot.wait_ended() == 78
        assert "revoked" in robot.errors()
        assert deployment.inference.events("keys_revoked")[-1]["sessions"] == 2
        deployment.wait_lanes(12)
        robot.start()
        wait_until(lambda: robot.events("handshake_failed"), "it is refused when it comes back")
        deployment.wait_trained(100)
    finally:
        robot.close()
        deployment.actors.remove(robot)
        shutil.rmtree(deployment.folder / "robot")
