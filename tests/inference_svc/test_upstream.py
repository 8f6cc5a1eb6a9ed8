"""Inference's side of the learner link, driven by messages and numbers for time."""

from dataclasses import replace
from itertools import pairwise

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.upstream import (
    GET_DEADLINE_S,
    LearnerLink,
    Refused,
    RunFinished,
    SpecificationRefused,
    WeightsReceived,
    Welcomed,
)
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Get,
    Message,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    Weights,
    pack_version,
)
from tests.support.specs import make_spec
from tests.support.unroll_link import producer_welcome

SPEC = make_spec(gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3))


def sent(link: LearnerLink, now: float) -> list[Message]:
    return [decode(bytes(frames[0])) for frames in link.poll(now)]


def hello_of(link: LearnerLink, now: float) -> ProducerHello:
    (message,) = sent(link, now)
    assert isinstance(message, ProducerHello)
    return message


def welcome_to(hello: ProducerHello, *, digest: str = "d", session: int = 1, epoch: int = 1) -> ProducerWelcome:
    return producer_welcome(nonce=hello.nonce, session=session, epoch=epoch, spec_digest=digest)


@pytest.fixture
def link() -> LearnerLink:
    made = LearnerLink(name="i", incarnation=7, library_version="0", load=lambda: (("lanes", 3.0),))
    made.connected(0.0)
    return made


def opened(link: LearnerLink, now: float = 0.0) -> ProducerWelcome:
    welcome = welcome_to(hello_of(link, now))
    assert link.receive(welcome, [], now) == [Welcomed(welcome)]
    return welcome


def test_nothing_is_sent_without_a_connection() -> None:
    """A message to a socket that is not connected would be lost: HELLO waits for the connection."""
    made = LearnerLink(name="i", incarnation=7, library_version="0", load=lambda: ())
    assert made.poll(5.0) == []
    made.connected(5.0)
    assert len(made.poll(5.0)) == 1


def test_hello_is_repeated_ever_more_slowly_until_a_welcome(link: LearnerLink) -> None:
    """A lost HELLO or WELCOME costs a moment: asked again after up to 0.2 s, 0.4 s, … at most 2 s apart."""
    times = [step / 100 for step in range(1000) if link.poll(step / 100)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(longest / 2 - 0.02 < gap < longest + 0.02 for gap, longest in zip(gaps, (0.2, 0.4, 0.8), strict=False))
    assert max(gaps) < 2.02


def test_the_answer_to_an_older_hello_opens_nothing(link: LearnerLink) -> None:
    """Only the newest nonce counts."""
    first = hello_of(link, 0.0)
    second = hello_of(link, 0.5)
    assert link.receive(welcome_to(first), [], 0.6) == []
    assert link.receive(welcome_to(second), [], 0.6) != []


@pytest.mark.parametrize("when", ["before hello", "between hello and welcome", "after welcome"])
def test_a_learner_without_policy_always_learns_the_specification(link: LearnerLink, when: str) -> None:
    """Whenever the first environments come, the learner hears of them: else nothing would ever start."""
    if when == "before hello":
        link.introduce(SPEC, 0.0)
    hello = hello_of(link, 0.0)
    if when == "between hello and welcome":
        link.introduce(SPEC, 0.1)
    link.receive(welcome_to(hello, digest=""), [], 0.2)
    if when == "after welcome":
        link.introduce(SPEC, 0.3)
    told = hello if when == "before hello" else hello_of(link, 0.4)
    assert told.spec == SPEC


def test_a_specification_that_was_told_is_not_told_again(link: LearnerLink) -> None:
    """The learner may take its time to build the policy: the session stays."""
    link.introduce(SPEC, 0.0)
    link.receive(welcome_to(hello_of(link, 0.0), digest=""), [], 0.1)
    assert link.welcome is not None
    assert not any(isinstance(message, ProducerHello) for message in sent(link, 0.2))


def test_a_silent_learner_is_greeted_again_after_its_lease(link: LearnerLink) -> None:
    """No message for a whole lease ends the session on this side."""
    opened(link)
    assert not any(isinstance(message, ProducerHello) for message in sent(link, 9.9))
    assert any(isinstance(message, ProducerHello) for message in sent(link, 10.1))


def test_only_a_challenge_of_the_present_session_counts(link: LearnerLink) -> None:
    """A late one that names a former session changes nothing."""
    opened(link)
    link.receive(Challenge(session=99, server_epoch=1), [], 1.0)
    assert link.welcome is not None
    link.receive(Challenge(session=1, server_epoch=2), [], 1.0)
    assert link.welcome is None


def test_one_get_is_outstanding_and_is_repeated_after_its_deadline(link: LearnerLink) -> None:
    """The poll's answer brings the next GET; without one it comes again after five seconds."""
    opened(link)
    assert sum(isinstance(message, Get) for message in sent(link, 0.0)) == 1
    link.receive(Pong(sent_ms=0, server_epoch=1, work_age_ms=0), [], 4.0)
    assert not any(isinstance(message, Get) for message in sent(link, GET_DEADLINE_S - 0.1))
    assert any(isinstance(message, Get) for message in sent(link, GET_DEADLINE_S + 0.1))
    link.receive(NotModified(session=1, version=0), [], 5.2)
    assert any(isinstance(message, Get) for message in sent(link, 5.2))


def weights(version: int, *, manifest: str = "{}") -> Weights:
    return Weights(session=1, version=version, manifest_digest="m", manifest=manifest)


def test_an_old_learner_rolls_nobody_back(link: LearnerLink) -> None:
    """Versions are ordered (epoch, step): a lower step under a higher epoch is newer, the reverse is dropped."""
    opened(link)
    assert isinstance(link.receive(weights(pack_version(1, 9)), [b"w"], 0.1)[0], WeightsReceived)
    assert link.receive(weights(pack_version(1, 8)), [b"w"], 0.2) == []
    assert isinstance(link.receive(weights(pack_version(2, 3)), [b"w"], 0.3)[0], WeightsReceived)
    assert link.receive(weights(pack_version(1, 10)), [b"w"], 0.4) == []


def test_weights_without_a_known_manifest_are_asked_for_again_with_it(link: LearnerLink) -> None:
    """A buffer whose manifest never came cannot be read: the next GET says that none is at hand."""
    opened(link)
    assert link.receive(weights(5, manifest=""), [b"w"], 0.1) == []
    gets = [message for message in sent(link, 0.1) if isinstance(message, Get)]
    assert gets[0].have_manifest == ""


def test_another_run_forgets_what_belongs_to_the_former(link: LearnerLink) -> None:
    """Another run id is another policy: versions start again, kept unrolls are dropped and counted."""
    opened(link)
    link.receive(weights(pack_version(3, 1)), [b"w"], 0.1)
    link.outbox.push(4, [b"rows"])
    link.receive(Challenge(session=1, server_epoch=2), [], 0.2)
    other = replace(welcome_to(hello_of(link, 0.3)), run_id="another")
    assert link.receive(other, [], 0.3) == []
    assert (link.have_version, link.discarded_lanes, link.outbox.is_empty) == (0, 4, True)
    fresh = replace(welcome_to(hello_of(link, 0.3)), run_id="another")
    assert link.receive(fresh, [], 0.4) == [Welcomed(fresh)]


def test_the_end_of_the_run_and_refusals_are_told(link: LearnerLink) -> None:
    """BYE(run_finished) ends, BYE(draining) dials on, REJECT says whether asking again may help."""
    opened(link)
    assert link.receive(Bye(session=1, reason="draining"), [], 1.0) == []
    assert link.welcome is None
    hello = hello_of(link, 1.5)
    reject = Reject(nonce=hello.nonce, code="spec", retryable=False, message="other spaces", hint="mend it")
    assert link.receive(reject, [], 1.6) == [Refused("spec", "other spaces", "mend it", False)]
    assert link.receive(Bye(session=0, reason="run_finished"), [], 1.7) == [RunFinished()]


def test_a_refused_specification_is_its_environments_mistake(link: LearnerLink) -> None:
    """HELLO is said again without it, at once; it is not told again to this learner, but may be to the next one."""
    link.receive(welcome_to(hello_of(link, 0.0), digest=""), [], 0.0)
    link.introduce(SPEC, 1.0)
    hello = hello_of(link, 1.0)
    assert hello.spec == SPEC
    reject = Reject(nonce=hello.nonce, code="spec", retryable=False, message="setting x: ours 1, theirs 2", hint="")
    assert link.receive(reject, [], 1.1) == [SpecificationRefused(SPEC, reject.message)]
    again = hello_of(link, 1.1)
    assert again.spec is None
    welcome = welcome_to(again, digest="")
    assert link.receive(welcome, [], 1.2) == [Welcomed(welcome)]
    link.introduce(SPEC, 1.3)
    assert link.spec is None
    assert link.refused == {SPEC: reject}
    link.disconnected(2.0)
    link.connected(3.0)
    link.introduce(SPEC, 3.0)
    assert hello_of(link, 3.0).spec == SPEC


def test_specifications_that_are_refused_are_forgotten_in_the_end(link: LearnerLink) -> None:
    """A peer that tells one after the other costs a bounded memory."""
    for number in range(100):
        link.introduce(replace(SPEC, env_id=f"env-{number}"), number)
        hello = hello_of(link, number)
        link.receive(Reject(nonce=hello.nonce, code="spec", retryable=False, message="no", hint=""), [], number)
    assert len(link.refused) == 64
    assert replace(SPEC, env_id="env-99") in link.refused


def test_a_beat_carries_the_load(link: LearnerLink) -> None:
    """PING goes out once a beat with the figures of the load."""
    opened(link)
    pings = [message for step in range(30) for message in sent(link, step / 10) if isinstance(message, Ping)]
    assert len(pings) == 3
    assert pings[0].load == (("lanes", 3.0),)
