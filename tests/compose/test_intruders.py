"""Whoever has no good key gets nothing from the links of a deployment, and costs those who have one nothing."""

import contextlib
import socket
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from tests.support.compose_stack import Stack, inspect
from tests.support.deployment import wait_until
from tests.support.hostile_peer import golden_headers, shout_over_tcp
from tests.support.raw_dealer import raw_dealer

PORTS = {"inference": 5555, "learner": 5556}
NUM_IDLE = 200


@dataclass(frozen=True)
class Key:
    """A client's pair, as CURVE wants it."""

    public: bytes
    secret: bytes


def read_key(stack: Stack, service: str, file: str) -> dict[str, str]:
    """A key file out of a container: an intruder may have stolen as much."""
    return tomllib.loads(stack.exec(service, "cat", f"/keys/{file}"))


def address(stack: Stack, service: str) -> tuple[str, int]:
    """Where a service listens, on the containers' own network."""
    networks = inspect(stack.the(service))["NetworkSettings"]["Networks"]
    return next(iter(networks.values()))["IPAddress"], PORTS[service]


def refusals(stack: Stack, service: str) -> dict[str, float]:
    """How often a service has refused someone, by reason, as Prometheus sees it."""
    found = {}
    for family in text_string_to_metric_families(stack.fetch("/metrics")[1]):
        for sample in family.samples:
            if sample.name == "seedbed_refused_peers_total" and sample.labels["service"] == service:
                found[sample.labels["reason"]] = sample.value
    return found


@contextlib.contextmanager
def knocking(stack: Stack, service: str, key: Key | None) -> Iterator[zmq.Socket]:
    """Says everything that the protocol knows to a service; with its public key, if with any."""
    server = read_key(stack, "monitor", f"monitor/default/{service}.pub")["public"].encode()
    keys = {"curve_publickey": key.public, "curve_secretkey": key.secret, "curve_serverkey": server} if key else {}
    host, port = address(stack, service)
    with raw_dealer(f"tcp://{host}:{port}", **keys) as dealer:
        for header in golden_headers():
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([header, b""], zmq.NOBLOCK)
        yield dealer


@pytest.mark.parametrize("service", PORTS)
@pytest.mark.parametrize(("kind", "reason"), [("foreign", "unknown_key"), ("none", "handshake")])
def test_a_foreign_key_and_none_are_refused_and_counted(training, service, kind, reason):
    """By both servers; the intruder never hears a word."""
    before = refusals(training, service).get(reason, 0)
    key = Key(*zmq.curve_keypair()) if kind == "foreign" else None
    with knocking(training, service, key) as dealer:
        wait_until(lambda: refusals(training, service).get(reason, 0) > before, f"{service} counts it", 60)
        assert not dealer.poll(0)
    training.wait_trained("cartpole", 1000)


def test_an_actors_key_opens_no_door_to_weights_and_unrolls(training):
    """The learner serves inference alone, whatever a stolen key of an environment asks for."""
    stolen = read_key(training, "actor", "environment/default/client.key")
    before = refusals(training, "learner").get("unknown_key", 0)
    with knocking(training, "learner", Key(stolen["public"].encode(), stolen["secret"].encode())) as dealer:
        wait_until(lambda: refusals(training, "learner").get("unknown_key", 0) > before, "the learner counts it", 60)
        assert not dealer.poll(0)
    training.wait_trained("cartpole", 1000)


def test_garbage_and_idle_connections_keep_nobody_out(training):
    """Two hundred that say nothing and some that scream, at both servers; then an actor comes, and trains."""
    before = {service: sum(refusals(training, service).values()) for service in PORTS}
    with contextlib.ExitStack() as held:
        for service in PORTS:
            host, port = address(training, service)
            for _ in range(NUM_IDLE):
                held.enter_context(socket.create_connection((host, port), timeout=10))
            shout_over_tcp(f"tcp://{host}:{port}", 3)
        training.up("--scale", "actor=2")
        training.wait_healthy("actor")
        training.wait_trained("cartpole", 5000)
        wait_until(
            lambda: all(sum(refusals(training, service).values()) > before[service] for service in PORTS),
            "both count those who screamed", 60,
        )  # fmt: skip
