"""Weights for whoever asks."""

from seedbed.learner_svc.link.publish import Publisher
from seedbed.shared.protocol.messages import Get, NotModified, Weights, pack_version

V1, V2 = pack_version(1, 5), pack_version(1, 6)


def a_get(session: int = 1, have: int = 0, manifest: str = "") -> Get:
    return Get(session=session, have_version=have, have_manifest=manifest)


def a_publisher() -> Publisher:
    publisher = Publisher(hold_s=1.0)
    publisher.describe("digest", "{}")
    publisher.publish(V1, b"one")
    return publisher


def test_a_late_joiner_gets_weights_and_manifest_at_once() -> None:
    """Nothing has to happen first."""
    answer = a_publisher().get(a_get(), 0.0)
    assert answer is not None
    assert answer.frames == (b"one",)
    assert answer.message == Weights(session=1, version=V1, manifest_digest="digest", manifest="{}")


def test_a_known_manifest_is_not_repeated() -> None:
    """A slow reader with the manifest gets the newest buffer only."""
    answer = a_publisher().get(a_get(have=pack_version(1, 2), manifest="digest"), 0.0)
    assert answer is not None
    assert isinstance(answer.message, Weights)
    assert answer.message.manifest == ""


def test_a_reader_of_the_newest_is_held_until_the_next() -> None:
    """The long-poll ends with `publish`."""
    publisher = a_publisher()
    assert publisher.get(a_get(have=V1, manifest="digest"), 0.0) is None
    answers = publisher.publish(V2, b"two")
    assert [(a.message.version, a.frames) for a in answers] == [(V2, (b"two",))]
    assert publisher.expire(99.0) == []


def test_a_poll_ends_after_its_time() -> None:
    """NOT_MODIFIED after a second, once."""
    publisher = a_publisher()
    publisher.get(a_get(have=V1, manifest="digest"), 0.0)
    assert publisher.expire(0.9) == []
    assert [a.message for a in publisher.expire(1.0)] == [NotModified(session=1, version=V1)]
    assert publisher.expire(2.0) == []


def test_a_new_poll_replaces_the_old_one() -> None:
    """One outstanding GET per session."""
    publisher = a_publisher()
    publisher.get(a_get(have=V1, manifest="digest"), 0.0)
    publisher.get(a_get(have=V1, manifest="digest"), 0.9)
    assert publisher.expire(1.5) == []
    assert len(publisher.publish(V2, b"two")) == 1


def test_versions_only_rise() -> None:
    """An older version changes nothing, a lower step of a later epoch is newer."""
    publisher = a_publisher()
    assert publisher.publish(pack_version(1, 4), b"old") == []
    assert publisher.version == V1
    publisher.publish(pack_version(2, 1), b"new")
    answer = publisher.get(a_get(have=V2, manifest="digest"), 0.0)
    assert answer is not None
    assert answer.frames == (b"new",)


def test_before_the_first_weights_everyone_waits() -> None:
    """A GET at start-up is held, and answered when there is a policy."""
    publisher = Publisher()
    assert publisher.get(a_get(), 0.0) is None
    publisher.describe("digest", "{}")
    (answer,) = publisher.publish(V1, b"one")
    assert isinstance(answer.message, Weights)
    assert answer.message.manifest == "{}"


def test_a_session_that_ended_is_not_answered() -> None:
    """Its poll is forgotten."""
    publisher = a_publisher()
    publisher.get(a_get(have=V1, manifest="digest"), 0.0)
    publisher.forget(1)
    assert publisher.publish(V2, b"two") == []


def test_the_version_of_an_evaluation_is_kept_beside_newer_ones() -> None:
    """Whoever asks for exactly that gets it at once, and stays in line for newer ones; nobody else's is there."""
    publisher = a_publisher()
    publisher.keep()
    publisher.publish(V2, b"two")
    assert publisher.get(a_get(have=V2, manifest="digest"), 0.0) is None
    exact = Get(session=1, have_version=V2, have_manifest="digest", exact=V1)
    kept = publisher.get(exact, 0.0)
    assert kept is not None
    assert (kept.message.version, kept.frames) == (V1, (b"one",))
    publisher.keep()
    gone = publisher.get(exact, 0.0)
    assert gone is not None
    assert gone.message == NotModified(session=1, version=V2)
    assert len(publisher.expire(99.0)) == 1  # the poll for newer ones is held on


def test_weights_are_not_sent_again_at_once() -> None:
    """A reader that asks and does not read gets one copy a second, and every newer version."""
    publisher = a_publisher()
    first = publisher.get(a_get(), 0.0)
    assert first is not None
    assert first.is_new
    assert publisher.get(a_get(), 0.1) is None
    assert [answer.message.version for answer in publisher.publish(V2, b"two")] == [V2]
    assert publisher.get(a_get(have=V1, manifest="digest"), 0.2) is None
    again = publisher.get(a_get(), 1.5)
    assert again is not None
    assert again.frames == (b"two",)
    assert not again.is_new


def test_a_session_on_another_connection_is_answered_at_once() -> None:
    """What was sent before may have been lost."""
    publisher = a_publisher()
    publisher.get(a_get(), 0.0)
    publisher.forget(1)
    assert publisher.get(a_get(), 0.1) is not None


def test_a_reader_that_asks_for_two_versions_in_turn_is_sent_each_once() -> None:
    """Weights are what costs most to send: neither kind of question may have them repeated at once."""
    publisher = a_publisher()
    publisher.keep()
    publisher.publish(V2, b"two")
    exact = Get(session=1, have_version=V2, have_manifest="digest", exact=V1)
    sent = 0
    for _ in range(10):
        for get in (exact, a_get(have=0, manifest="digest")):
            answer = publisher.get(get, 0.0)
            sent += answer is not None and bool(answer.frames)
    assert sent == 2


def test_a_reader_that_asks_for_more_than_the_newest_has_it() -> None:
    """Its poll says so; a reader that was sent them and has not asked again may not have them yet."""
    publisher = a_publisher()
    assert not publisher.has_newest(1)
    publisher.get(a_get(have=V1, manifest="digest"), 0.0)
    assert publisher.has_newest(1)
    publisher.publish(V2, b"two")
    assert not publisher.has_newest(1)
    publisher.get(a_get(have=V2, manifest="digest"), 0.0)
    assert publisher.has_newest(1)
