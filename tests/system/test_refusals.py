"""Environments that a run cannot take, over real sockets: each is told what is wrong, and nobody else notices."""

from dataclasses import replace

import gymnasium
import msgpack
import numpy as np
import pytest

from seedbed.services.tools.cli.scrape import read_status
from seedbed.shared.protocol.codec import encode
from seedbed.shared.protocol.messages import Act, Challenge, Error, Hello, Reject, Step, Welcome
from seedbed.shared.protocol.rows import Flags, step_layout
from seedbed.shared.protocol.spaces import space_from_gymnasium
from tests.support.deployment import Deployment, wait_until
from tests.support.raw_dealer import exchange, greet, raw_dealer
from tests.system.conftest import visitors_hello

Box = gymnasium.spaces.Box
DTYPE_OF_HELLO = b"\x96\x01\x09"  # the observation's array: six parts, Box, float32


def rows(hello: Hello, value: float, lanes: int = 1) -> list[bytes]:
    """STEP's payload with one value everywhere in its observations, all lanes `first`."""
    layout = step_layout(hello.spec, lanes)
    frames = layout.allocate()
    observation, _, flags = layout.views(frames)
    observation[...], flags[...] = value, Flags.FIRST
    return [bytes(frame) for frame in frames]


@pytest.mark.parametrize(
    ("observation", "said"),
    [
        (Box(-1, 1, (5,), np.float32), ("box float32[4]", "box float32[5]")),
        (Box(-1, 1, (4,), np.float64), ("box float32[4]", "box float64[4]")),
        (gymnasium.spaces.Dict(eye=Box(0, 1, (4,), np.float32)), ("box float32[4]", "absent")),
    ],
)
def test_another_space_is_refused_by_leaf_with_both_forms(deployment, observation, said):
    """Shape, dtype or a leaf that is not there: REJECT says both sides and what to do."""
    before = deployment.inference.by_label("hellos_refused_total").get("spec", 0)
    hello = visitors_hello(deployment)
    with raw_dealer(deployment.inference_address) as dealer:
        answer = exchange(
            dealer, encode(replace(hello, spec=replace(hello.spec, observation=space_from_gymnasium(observation))))
        )
    assert isinstance(answer, Reject)
    assert not answer.retryable
    assert all(part in answer.message for part in (*said, "observation space")), answer.message
    assert "[env]" in answer.hint
    assert deployment.inference.by_label("hellos_refused_total")["spec"] == before + 1
    deployment.wait_lanes(12)


def test_another_version_is_refused_before_anything_else(deployment):
    """Even with other spaces the version is what is told, with what is served and the remedy."""
    hello = visitors_hello(deployment)
    future = replace(hello, protocol_min=9, protocol_max=11, spec=replace(hello.spec, env_id="Other-v0"))
    with raw_dealer(deployment.inference_address) as dealer:
        answer = exchange(dealer, encode(future))
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retryable) == ("protocol", False)
    assert "9..11 requested, 1..1 served" in answer.message
    assert "one version" in answer.hint


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda header: header.replace(DTYPE_OF_HELLO, DTYPE_OF_HELLO[:-1] + b"\x2a"), "dtype"),
        (lambda header: msgpack.packb([*msgpack.unpackb(header)[:8], 0, *msgpack.unpackb(header)[9:]]), "Hello.lanes"),
        (lambda header: header[:-1], "MessagePack"),
    ],
    ids=["no such dtype", "no lanes", "cut short"],
)
def test_a_hello_that_cannot_be_read_is_answered(deployment, spoil, said):
    """Whoever writes a client learns at once which field is wrong."""
    header = encode(visitors_hello(deployment))
    assert spoil(header) != header
    with raw_dealer(deployment.inference_address) as dealer:
        answer = exchange(dealer, spoil(header))
    assert isinstance(answer, Error)
    assert (answer.scope, answer.session) == ("connection", 0)
    assert said in answer.message
    assert "protocol.md" in answer.hint


def test_nan_is_refused_with_the_leaf_and_costs_the_session_if_it_goes_on(deployment):
    """Each such STEP is answered; after five the session is over and its lane free."""
    hello = visitors_hello(deployment)
    before = deployment.inference.by_label("groups_ended_total").get("broken_messages", 0)
    with raw_dealer(deployment.inference_address) as dealer:
        welcome = greet(dealer, hello)
        deployment.wait_lanes(13)
        step = encode(Step(session=welcome.session, seq=0, bits=0))
        answers = [exchange(dealer, step, *rows(hello, np.nan)) for _ in range(5)]
        assert all(isinstance(answer, Error) and answer.session == welcome.session for answer in answers)
        assert "box float32[4]" in answers[0].message
        assert "rebuild" in answers[0].hint
        assert answers[0].retryable
        assert "the session is over" in answers[-1].message
        deployment.wait_lanes(12)
        assert deployment.inference.by_label("groups_ended_total")["broken_messages"] == before + 1
        assert isinstance(greet(dealer, replace(hello, nonce=6)), Welcome), "it may say HELLO again"
    deployment.wait_lanes(12)


def test_another_number_of_lanes_than_hello_said_is_refused(deployment):
    """In a STEP by the sizes of its frames, in a second HELLO by both numbers."""
    hello = visitors_hello(deployment)
    with raw_dealer(deployment.inference_address) as dealer:
        welcome = greet(dealer, hello)
        two = rows(hello, 0.0, lanes=2)
        answer = exchange(dealer, encode(Step(session=welcome.session, seq=0, bits=0)), *two)
        assert isinstance(answer, Error)
        assert f"{len(two[0])}] bytes, expected [{len(rows(hello, 0.0)[0])}" in answer.message
        assert "lanes" in answer.hint
        answer = exchange(dealer, encode(replace(hello, lanes=2, nonce=6)))
        assert isinstance(answer, Reject)
        assert "lanes 1 before, and with 2 now" in answer.message
        assert answer.hint
    deployment.wait_lanes(12)


def test_silence_after_hello_frees_the_lanes_and_is_told_to_whoever_wakes_up(deployment):
    """Without a PING the lease ends, counted as silent; the STEP that comes at last is challenged."""
    hello = visitors_hello(deployment)
    silent = deployment.inference.by_label("groups_ended_total").get("silent", 0)
    with raw_dealer(deployment.inference_address) as dealer:
        welcome = greet(dealer, replace(hello, max_stall_s=0.1))
        deployment.wait_lanes(13)
        deployment.wait_lanes(12)
        assert deployment.inference.by_label("groups_ended_total")["silent"] == silent + 1
        answer = exchange(dealer, encode(Step(session=welcome.session, seq=0, bits=0)), *rows(hello, 0.0))
        assert isinstance(answer, Challenge)
        assert answer.session == welcome.session


def test_observations_out_of_bounds_are_counted_and_served(deployment):
    """What environments do by default: nothing breaks, and the figure shows it."""
    hello = visitors_hello(deployment)
    before = deployment.inference.metric("out_of_bounds_total")
    with raw_dealer(deployment.inference_address) as dealer:
        welcome = greet(dealer, hello)
        answer = exchange(dealer, encode(Step(session=welcome.session, seq=0, bits=0)), *rows(hello, 1e3))
        assert isinstance(answer, Act)
    assert deployment.inference.metric("out_of_bounds_total") == before + 1
    deployment.wait_lanes(12)


def test_observations_out_of_bounds_are_refused_where_that_is_asked_for(deployment):
    """A replica that rejects: ERROR names leaf, value and bounds; the session is over for good, the replica lives."""
    strict = deployment.add_inference("strict", deployment.learner_address)
    strict.words.append("inference.out_of_bounds=reject")
    try:
        strict.start().wait_ready()
        address = read_status(strict.status_file)["endpoint"]
        wait_until(lambda: strict.metric("policy_step") > 0, "the replica has weights")
        hello = visitors_hello(deployment)
        with raw_dealer(address) as dealer:
            welcome = greet(dealer, hello)
            answer = exchange(dealer, encode(Step(session=welcome.session, seq=0, bits=0)), *rows(hello, 1e3))
        assert isinstance(answer, Error)
        assert (answer.code, answer.session, answer.retryable) == ("bounds", welcome.session, False)
        assert "element 0: 1000.0 is outside [-4.8" in answer.message
        assert "inference.out_of_bounds" in answer.hint
        assert strict.by_label("groups_ended_total") == {"out_of_bounds": 1}
        assert strict.metric("lanes") == 0
        assert strict.is_running
    finally:
        strict.close()


def test_two_services_with_different_spaces_for_one_policy(tmp_path):
    """The second one ends with 78 and says leaf, both shapes and the remedy; the first one trains on."""
    with Deployment(tmp_path, env=("env.id=sized",)) as deployment:
        first = deployment.add_service("first", "tests.support.sized_service")
        first.words[:0] = ["4", "float32"]
        deployment.start()
        deployment.wait_trained(200)
        others = {"larger": ["6", "float32"], "wider": ["4", "float64"]}
        for name, arguments in others.items():
            other = deployment.add_service(name, "tests.support.sized_service")
            other.words[:0] = arguments
            assert other.start().wait_ended() == 78
            said = other.errors()
            assert f"leaf 'place': ours box float32[4], theirs box {arguments[1]}[{arguments[0]}]" in said
            assert "start another run" in said
        deployment.wait_trained(200)
        assert first.is_running
        assert deployment.inference.metric("lanes") == 12


def test_a_first_environment_with_other_settings_is_refused_and_inference_goes_on(tmp_path):
    """It comes before there is a policy: it ends with 78 naming the setting and both values; the right one trains."""
    with Deployment(tmp_path) as deployment:
        deployment.learner.start().wait_ready()
        deployment.inference.start().wait_ready()
        wrong = deployment.add_actor("wrong", "env.max_episode_steps=7").start()
        assert wrong.wait_ended() == 78
        assert "setting max_episode_steps: null in the run's [env], 7 in" in wrong.errors()
        deployment.actors.remove(wrong)
        deployment.add_actor("right")
        deployment.start()
        deployment.wait_trained(200)
        assert deployment.inference.by_label("hellos_refused_total")["spec"] >= 1
        assert deployment.inference.events("environment_refused")
        assert len(deployment.inference.events("service_ready")) == 1, "inference has had one life"
