"""Peers that break every rule, against a deployment that trains: refused, counted, and nobody else notices."""

from dataclasses import replace

import pytest

from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Reject, Step
from tests.support.deployment import wait_until
from tests.support.hostile_peer import hostile_messages, is_undecodable, shout_over_tcp
from tests.support.raw_dealer import exchange, greet, raw_dealer
from tests.system.conftest import visitors_hello

NUM_MESSAGES = 2000
MAX_GROWTH_MB = 40.0  # both send queues of a peer that reads nothing, and what the allocator keeps


@pytest.mark.parametrize("role", ["inference", "learner"])
def test_a_flood_of_hostile_messages_is_refused_and_counted(deployment, role):
    """Two thousand bad messages and raw noise: each counted, training goes on, no session lost, memory flat.

    Where they take long to refuse, as on a busy machine, the rest is not read: it is counted, or its sender hung up on.
    """
    service = deployment.inference if role == "inference" else deployment.learner
    address = deployment.inference_address if role == "inference" else deployment.learner_address
    prefix = "" if role == "inference" else "learner_"

    def counted() -> float:
        page = service.page()
        return page[f"{prefix}refused_messages_total"] + page[f"{prefix}dropped_messages_total"]

    before = counted()
    inference, resident = deployment.inference.page(), deployment.actors[0].page()
    memory_mb = service.rss_mb()
    messages = list(hostile_messages(NUM_MESSAGES, seed=3))
    expected = sum(map(is_undecodable, messages))
    assert expected > NUM_MESSAGES / 2
    with raw_dealer(address) as dealer:
        for number, frames in enumerate(messages):
            dealer.send_multipart(frames)
            if number % 500 == 0:
                shout_over_tcp(address, seed=number)
        wait_until(
            lambda: counted() >= before + expected or service.by_label("refused_peers_total").get("flood"),
            "every bad message is counted, or their sender hung up on",
        )
        deployment.wait_trained(500)
    assert service.rss_mb() < memory_mb + MAX_GROWTH_MB
    assert deployment.inference.page()["lost_groups_total"] == inference["lost_groups_total"]
    assert deployment.actors[0].page()["actor_sessions_total"] == resident["actor_sessions_total"]
    deployment.wait_lanes(12)


def test_a_peer_whose_steps_have_wrong_sizes_is_struck(deployment):
    """It is in like anyone; after a few broken STEPs its session ends and its slot is free."""
    hello = visitors_hello(deployment)
    with raw_dealer(deployment.inference_address) as dealer:
        welcome = greet(dealer, hello)
        deployment.wait_lanes(13)
        for size in (0, 1, 10, 10_000, 1_000_000):
            dealer.send_multipart([encode(Step(session=welcome.session, seq=0, bits=0)), bytes(size)])
        deployment.wait_lanes(12)
    deployment.wait_trained(200)


def test_environments_that_do_not_fit_are_told_so(deployment):
    """A HELLO with another environment is rejected for good, by name, and changes nothing."""
    hello = visitors_hello(deployment)
    stranger = replace(hello, spec=replace(hello.spec, env_id="Other-v0"))
    with raw_dealer(deployment.inference_address) as dealer:
        answer = exchange(dealer, encode(stranger))
    assert isinstance(answer, Reject)
    assert not answer.retryable
    assert "Other-v0" in answer.message
    deployment.wait_lanes(12)
