"""Inference's side of the learner link, driven by messages and numbers for time."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from seedbed.inference_svc.learner_events import (
    Refused,
    RunFinished,
    RunReplaced,
    SpecificationRefused,
    WeightsReceived,
    Welcomed,
)
from seedbed.inference_svc.upstream import GET_DEADLINE_S, LearnerLink
from seedbed.shared.protocol.codec import decode
from seedbed.shared.protocol.messages import (
    Bye,
    Challenge,
    Error,
    Get,
    Message,
    NotModified,
    Ping,
    Pong,
    ProducerHello,
    ProducerWelcome,
    Reject,
    TaskEnv,
    Unroll,
    Weights,
    pack_version,
)
from seedbed.shared.protocol.outbox import Frame
from seedbed.shared.protocol.segment import OpenedSegment, Segment
from tests.support.specs import make_spec
from tests.support.unroll_link import credit, producer_welcome

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


def test_only_the_first_answer_to_a_hello_counts(link: LearnerLink) -> None:
    """A second one is of a learner that died since: it expects unrolls that the first one had applied, and are gone."""
    hello = hello_of(link, 0.0)
    link.outbox.push(1, [b"u"])
    assert link.receive(replace(welcome_to(hello), next_seq=1), [], 0.1) != []
    assert link.receive(welcome_to(hello, session=9, epoch=2), [], 0.2) == []
    assert (link.outbox.session, link.outbox.oldest_seq) == (1, 1)


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


def test_a_session_that_the_learner_has_ended_is_begun_again(link: LearnerLink) -> None:
    """A PONG lists all sessions of the connection. One to a PING from before the session says nothing of it."""
    opened(link, 1.0)
    link.poll(2.0)
    link.receive(Pong(sent_ms=900, server_epoch=1, work_age_ms=0), [], 2.1)
    assert link.welcome is not None
    link.receive(Pong(sent_ms=2000, server_epoch=1, work_age_ms=0), [], 2.1)
    assert isinstance(sent(link, 2.2)[0], ProducerHello)


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
    """Another run id is another policy: this is told at once, versions start again, kept unrolls are dropped."""
    opened(link)
    link.receive(weights(pack_version(3, 1)), [b"w"], 0.1)
    link.outbox.push(4, [b"rows"])
    link.receive(Challenge(session=1, server_epoch=2), [], 0.2)
    other = replace(welcome_to(hello_of(link, 0.3)), run_id="another")
    assert link.receive(other, [], 0.3) == [RunReplaced("another")]
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


# Shared memory


def a_link(folder: Path, num_bytes: int = 4096, stream: int = 0) -> LearnerLink:
    """A link that offers segments in a folder."""
    made = LearnerLink(
        name="i", incarnation=7, library_version="0", load=lambda: (), stream=stream,
        make_segment=lambda: Segment(num_bytes, folder),
    )  # fmt: skip
    made.connected(0.0)
    return made


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def open_sharing(link: LearnerLink, folder: Path, **changes: Any) -> OpenedSegment:
    """The learner's end of a segment that it has opened and proved to have."""
    hello = hello_of(link, 0.0)
    reader = OpenedSegment.open(hello.segment, hello.segment_bytes, folder)
    assert reader is not None
    link.receive(replace(welcome_to(hello), segment_secret=reader.secret, **changes), [], 0.0)
    link.outbox.credit(credit(100))
    return reader


def send_unroll(link: LearnerLink) -> tuple[Unroll, tuple[Frame, ...]]:
    outgoing = link.outbox.next_outgoing()
    assert outgoing is not None
    assert isinstance(outgoing.message, Unroll)
    link.outbox.sent(outgoing)
    return outgoing.message, outgoing.frames


def test_unrolls_go_through_a_segment_that_the_learner_has_open(shm_folder: Path) -> None:
    """The header says where, and nothing follows it; a place is used again once CREDIT frees it."""
    link = a_link(shm_folder)
    reader = open_sharing(link, shm_folder)
    assert (names(shm_folder), link.describe_way()) == ([], {"unrolls_by": "shared_memory"})
    for _ in range(3):
        link.outbox.push(1, [b"u" * 2000])
    first, frames = send_unroll(link)
    assert (frames, reader.read(first.offset, first.length)) == ((), b"u" * 2000)
    assert send_unroll(link)[0].segment == reader.id
    link.receive(credit(100, received_through=1), [], 0.0)
    third, _ = send_unroll(link)
    assert (third.seq, third.offset) == (2, 0)
    assert link.outbox.shared_unrolls == 3
    assert link.outbox.unacked_lanes == 3, "they are kept until they are acknowledged"
    link.close()
    reader.close()


def get_of(link: LearnerLink, now: float) -> Get:
    """The GET that is due."""
    (get,) = [message for message in map(decode, (frames[0] for frames in link.poll(now))) if isinstance(message, Get)]
    return get


@pytest.mark.parametrize("tasks", [(), (TaskEnv(name="pong", env_id="P"),)])
def test_weights_come_through_the_segment_once_their_size_is_known(
    shm_folder: Path, tasks: tuple[TaskEnv, ...]
) -> None:
    """The first ones by the socket; those that were written over while they were read are asked for again."""
    link = a_link(shm_folder, num_bytes=1 << 16)
    opened = open_sharing(link, shm_folder, tasks=tasks)
    assert get_of(link, 0.0).segment == 0
    assert link.receive(weights(pack_version(1, 1)), [b"one"], 0.1)
    for number, data in ((2, b"two"), (3, b"tri")):
        get = get_of(link, 0.1)
        assert get.segment == opened.id
        opened.request_weights(get.segment, get.offset, get.length)
        assert opened.put_weights(pack_version(1, number), data)
        answer = replace(weights(pack_version(1, number)), segment=opened.id)
        (received,) = link.receive(answer, [], 0.2)
        assert isinstance(received, WeightsReceived)
        assert received.buffer == data
    assert link.shared_weights == 2
    assert link.receive(replace(weights(pack_version(1, 4)), segment=opened.id), [], 0.3) == []
    assert get_of(link, 0.3).have_version == pack_version(1, 3)
    link.close()
    opened.close()


def test_an_unroll_that_finds_no_place_goes_over_the_socket(shm_folder: Path) -> None:
    """It is not a reason to wait, and the next one may find a place."""
    link = a_link(shm_folder)
    reader = open_sharing(link, shm_folder)
    for size in (3000, 3000, 5000, 100):
        link.outbox.push(1, [bytes(size)])
    sent_by_segment = [send_unroll(link)[0].segment != 0 for _ in range(4)]
    assert sent_by_segment == [True, False, False, True]
    link.close()
    reader.close()


@pytest.mark.parametrize("proof", [0, 1])
def test_without_the_secret_unrolls_go_over_the_socket(shm_folder: Path, proof: int) -> None:
    """A learner elsewhere cannot know it; the log says why, and nothing stays in the folder."""
    link = a_link(shm_folder)
    hello = hello_of(link, 0.0)
    assert names(shm_folder) == [f"seedbed-{hello.segment:016x}"]
    link.receive(replace(welcome_to(hello), segment_secret=proof), [], 0.0)
    link.outbox.credit(credit(100))
    link.outbox.push(1, [b"u"])
    unroll, frames = send_unroll(link)
    assert (unroll.segment, frames) == (0, (b"u",))
    assert names(shm_folder) == []
    assert link.describe_way()["unrolls_by"] == "socket"


def test_without_room_no_segment_is_offered_and_the_log_says_so(shm_folder: Path) -> None:
    """As in a container with a small /dev/shm."""
    link = a_link(shm_folder / "missing")
    hello = hello_of(link, 0.0)
    assert hello.segment == 0
    link.receive(welcome_to(hello), [], 0.0)
    assert link.describe_way()["unrolls_by"] == "socket"
    assert str(shm_folder / "missing") in link.describe_way()["because"]


def test_what_a_lost_learner_had_not_applied_is_sent_again_through_a_new_segment(shm_folder: Path) -> None:
    """To the next one: places of the former are void, and an unroll names the new ones."""
    link = a_link(shm_folder)
    former = open_sharing(link, shm_folder)
    for number in range(2):
        link.outbox.push(1, [b"%d" % number * 100])
    assert [send_unroll(link)[0].segment for _ in range(2)] == [former.id] * 2
    link.disconnected(1.0)
    assert link.outbox.next_outgoing() is None
    link.connected(2.0)
    hello = hello_of(link, 2.0)
    reader = OpenedSegment.open(hello.segment, hello.segment_bytes, shm_folder)
    assert reader is not None
    welcome = replace(welcome_to(hello, session=9, epoch=2), next_seq=1, segment_secret=reader.secret)
    link.receive(welcome, [], 2.0)
    link.outbox.credit(credit(100, acked=1, session=9, epoch=2))
    again, _ = send_unroll(link)
    assert (again.seq, again.segment) == (1, reader.id)
    assert reader.id != former.id
    assert reader.read(again.offset, again.length) == b"1" * 100
    assert link.outbox.next_outgoing() is None
    for end in (link, former, reader):
        end.close()


def test_unrolls_that_were_lost_are_sent_again_from_where_they_lie(shm_folder: Path) -> None:
    """A PONG shows that they are missing."""
    link = a_link(shm_folder)
    reader = open_sharing(link, shm_folder)
    link.outbox.push(1, [b"u" * 3000])
    before = send_unroll(link)
    link.outbox.pinged(5)
    link.outbox.pong(5, 0)
    assert send_unroll(link) == before
    link.close()
    reader.close()


def test_a_learner_that_cannot_read_the_segment_gets_unrolls_over_the_socket(shm_folder: Path) -> None:
    """What it has not received is sent again whole."""
    link = a_link(shm_folder)
    reader = open_sharing(link, shm_folder)
    link.outbox.push(1, [b"u" * 3000])
    send_unroll(link)
    error = Error(code="segment", scope="session", session=1, retryable=True, message="m")
    (event,) = link.receive(error, [], 0.0)
    assert isinstance(event, Refused)
    link.outbox.pinged(5)
    link.outbox.pong(5, 0)
    assert send_unroll(link)[1] == (b"u" * 3000,)
    assert link.describe_way() == {"unrolls_by": "socket", "because": "m"}
    link.disconnected(1.0)
    link.connected(2.0)
    assert hello_of(link, 2.0).segment == 0
    reader.close()


def test_no_name_stays_while_nobody_answers(shm_folder: Path) -> None:
    """One file, however often HELLO is repeated; none after a refusal, a lost connection or the end."""
    link = a_link(shm_folder)
    first, second = hello_of(link, 0.0), hello_of(link, 0.5)
    assert first.segment == second.segment
    assert len(names(shm_folder)) == 1
    link.receive(Reject(nonce=second.nonce, code="capacity", retryable=True, message=""), [], 0.6)
    assert names(shm_folder) == []
    hello_of(link, 10.0)
    assert len(names(shm_folder)) == 1
    link.disconnected(10.0)
    assert names(shm_folder) == []
    link.connected(20.0)
    hello_of(link, 20.0)
    link.close()
    assert names(shm_folder) == []


def test_the_session_that_carries_nothing_large_has_no_segment(shm_folder: Path) -> None:
    """That of a further learner rank, in a run with tasks; it offers one only until it knows."""
    link = a_link(shm_folder, stream=1)
    hello = hello_of(link, 0.0)
    reader = OpenedSegment.open(hello.segment, hello.segment_bytes, shm_folder)
    assert reader is not None
    tasks = (TaskEnv(name="pong", env_id="P"),)
    link.receive(replace(welcome_to(hello), segment_secret=reader.secret, tasks=tasks), [], 0.0)
    assert link.outbox.segment is None
    assert link.describe_way() == {}
    link.disconnected(1.0)
    link.connected(2.0)
    assert hello_of(link, 2.0).segment == 0
    reader.close()
