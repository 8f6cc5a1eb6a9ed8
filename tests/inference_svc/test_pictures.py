"""When an evaluation is asked for a picture, and what is kept of what comes."""

import numpy as np
import pytest

from seedbed.inference_svc.pictures import IDLE_EVERY_S, WATCHED_EVERY_S, WATCHED_S, Pictures, read_picture
from seedbed.shared.errors import RemoteWireError
from seedbed.shared.protocol.messages import Act, ActBits, Evaluation, Hello, Step, StepBits, Welcome, pack_version
from seedbed.shared.protocol.pictures import MAX_PICTURE_BYTES, pack_picture
from seedbed.shared.protocol.sessions import Session
from tests.support.server_driver import SPEC, ServerDriver, rows

FRAME = pack_picture(np.zeros((2, 3, 3), np.uint8))


def session(number=1, mode="eval", capabilities=("reset", "render")):
    hello = Hello(
        library_version="0", actor="a", incarnation=number, group=0, lanes=2, nonce=1, mode=mode, spec=SPEC,
        capabilities=capabilities,
    )  # fmt: skip
    return Session(
        id=number, number=number, hello=hello, route=b"r", seed=0, lease_s=10.0, heard_at=0.0, state_since=0.0
    )


def times_asked(pictures, until, watched=False, who=None, step_s=0.05):
    """How often a group that acts twenty times a second is asked, answering each time."""
    who, asked = who or session(), 0
    for tick in range(int(until / step_s)):
        now = 1000.0 + tick * step_s
        if watched:
            pictures.looked(now)
        if pictures.wants(who, now):
            asked += 1
            pictures.take(who, 7, FRAME, now)
    return asked


def test_pictures_come_four_times_a_second_while_somebody_watches_and_hardly_ever_else():
    """So that who comes finds one."""
    assert times_asked(Pictures(), 20.0, watched=True) == pytest.approx(20 / WATCHED_EVERY_S, abs=1)
    assert times_asked(Pictures(), 20.0) == 20 / IDLE_EVERY_S


def test_watching_ends_by_itself():
    """Some seconds after the last look."""
    pictures = Pictures()
    pictures.looked(1000.0)
    assert times_asked(pictures, WATCHED_S + 60.0) == pytest.approx(
        WATCHED_S / WATCHED_EVERY_S + 60 / IDLE_EVERY_S, abs=2
    )


@pytest.mark.parametrize("who", [session(mode="train"), session(capabilities=("reset",))])
def test_who_trains_or_cannot_draw_is_never_asked_and_not_heard(who):
    """Training is never slowed by somebody's looking."""
    pictures = Pictures()
    assert times_asked(pictures, 20.0, watched=True, who=who) == 0
    pictures.take(who, 1, FRAME, 0.0)
    assert pictures.newest is None


def test_one_group_is_shown_for_as_long_as_its_pictures_come():
    """Another is asked when they have stopped."""
    pictures, first, second = Pictures(), session(1), session(2)
    pictures.looked(0.0)
    assert pictures.wants(first, 0.0)
    pictures.take(first, 1, FRAME, 0.0)
    assert not pictures.wants(second, 0.3)
    assert pictures.wants(first, 0.3)
    assert pictures.wants(second, 1.0)


@pytest.mark.parametrize(
    "frame",
    [b"", FRAME[:-1], FRAME + b"x", b"\0" * 8, b"\xff" * 8, b"\xff" * 20, FRAME[:4] + b"\0" * 4,
     pack_picture(np.zeros((400, 400, 3), np.uint8)) + b"\0" * MAX_PICTURE_BYTES],
)  # fmt: skip
def test_a_frame_that_is_no_picture_is_refused(frame):
    """By its size, before anything is read."""
    with pytest.raises(RemoteWireError, match="picture"):
        read_picture(Step(session=1, seq=1, bits=StepBits.RENDER), [frame])
    with pytest.raises(RemoteWireError, match="announces a picture"):
        read_picture(Step(session=1, seq=1, bits=StepBits.RENDER | StepBits.STATISTICS), [frame])


def test_an_evaluation_is_asked_in_act_and_its_picture_kept():
    """With the version that plays; a picture sent again with a repeated STEP counts once."""
    driver = ServerDriver()
    driver.serve()
    driver.tell(session().hello)
    welcome = driver.last()
    assert isinstance(welcome, Welcome)
    assert welcome.capabilities == ("reset", "render")
    driver.tell(Step(session=welcome.session, seq=0), rows(0, (4, 4)))
    driver.grant(1000, Evaluation(id=1, version=pack_version(1, 5), episodes=2, seed=3, greedy=True))
    driver.server.weights_frozen(pack_version(1, 5), 0.0)
    assert driver.last().bits == ActBits.RESET
    driver.tell(Step(session=welcome.session, seq=1), rows(1, (4, 4)))
    driver.answer()
    act = driver.last()
    assert isinstance(act, Act)
    assert act.bits == ActBits.PICTURE
    step = Step(session=welcome.session, seq=2, bits=StepBits.RENDER)
    for _ in range(2):
        driver.tell(step, [*rows(2, (0, 0)), FRAME])
    newest = driver.server.pictures.newest
    assert (newest.number, newest.version, newest.frame) == (1, pack_version(1, 5), FRAME)
    driver.answer()
    assert driver.last().bits == 0  # not before its time


def test_a_broken_picture_costs_its_sender_a_strike_and_nothing_else():
    """As any other broken frame does."""
    driver = ServerDriver()
    driver.serve()
    driver.tell(session(mode="play").hello)
    number = driver.last().session
    driver.tell(Step(session=number, seq=0, bits=StepBits.RENDER), [*rows(0, (4, 4)), FRAME[:-1]])
    assert driver.counters.refused_messages == 1
    assert driver.server.pictures.newest is None
    driver.tell(Step(session=number, seq=0, bits=StepBits.RENDER), [*rows(0, (4, 4)), FRAME])
    assert driver.server.pictures.newest.number == 1
