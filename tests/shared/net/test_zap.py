"""The list of those who may connect: what it answers to libzmq, and how it follows its folder."""

import random

import pytest
import zmq
from zmq.utils import z85

from seedbed.shared.net.keys import PublicKey
from seedbed.shared.net.roles import Role
from seedbed.shared.net.zap import AccessList


def make_key(role: Role, name: str) -> PublicKey:
    """A fresh public key."""
    return PublicKey(role=role, name=name, public=zmq.curve_keypair()[0].decode())


ROBOT, MAIN = make_key(Role.ENVIRONMENT, "robot"), make_key(Role.INFERENCE, "main")


@pytest.fixture
def access():
    """Inference's, with one key of the right role and one of another."""
    return AccessList("inference", frozenset({Role.ENVIRONMENT}), {key.public: key for key in (ROBOT, MAIN)})


def question(**changes: bytes) -> list[bytes]:
    """What libzmq asks of the robot, with changes."""
    frames = {
        "version": b"1.0",
        "request_id": b"1",
        "domain": b"inference",
        "address": b"10.0.0.7",
        "routing_id": b"",
        "mechanism": b"CURVE",
        "key": z85.decode(ROBOT.public),
    }
    return list((frames | changes).values())


def test_a_known_key_of_the_right_role_is_let_in_under_its_name(access):
    """The answer carries role and name, for the connection's life."""
    answer = access.answer(question())
    assert list(answer.frames[:5]) == [b"1.0", b"1", b"200", b"", b"environment:robot"]
    assert ROBOT.public.encode() in answer.frames[5]
    assert answer.refusal == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"key": z85.decode(make_key(Role.ENVIRONMENT, "robot").public)}, "unknown_key"),
        ({"key": z85.decode(MAIN.public)}, "wrong_role"),
        ({"domain": b"learner"}, "wrong_domain"),
        ({"domain": b""}, "wrong_domain"),
        ({"mechanism": b"NULL"}, "not_curve"),
        ({"mechanism": b"PLAIN"}, "not_curve"),
        ({"key": b"short"}, "not_curve"),
        ({"version": b"2.0"}, "malformed"),
    ],
)
def test_everything_else_is_refused_for_its_reason(access, changes, reason):
    """With the same answer for all, so that a stranger learns nothing from it."""
    answer = access.answer(question(**changes))
    assert answer.refusal == reason
    assert list(answer.frames) == [b"1.0", b"1", b"400", b"refused", b"", b""]


def test_no_question_makes_it_fail(access):
    """Noise of any number of frames gets a refusal that libzmq understands."""
    rng = random.Random(7)
    for _ in range(2000):
        frames = [rng.randbytes(rng.choice([0, 1, 3, 32, 500])) for _ in range(rng.randint(0, 10))]
        answer = access.answer(frames)
        assert answer.frames[2] == b"400"
        assert answer.refusal
        assert len(answer.frames) == 6


def test_an_owner_is_admitted_with_the_key_that_the_list_has_now(access):
    """A name that stands for a new key does not admit connections made with the old one."""
    assert access.admits("environment:robot", ROBOT.public)
    assert not access.admits("environment:other", ROBOT.public)
    assert not access.admits("inference:main", MAIN.public)
    assert not access.admits("", "")
    renewed = make_key(Role.ENVIRONMENT, "robot")
    access.clients = {renewed.public: renewed}
    assert not access.admits("environment:robot", ROBOT.public)
    assert access.admits("environment:robot", renewed.public)
