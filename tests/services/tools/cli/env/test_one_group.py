"""A service's one group, scripted, without sockets: what is lost is asked again, and nothing is done twice."""

from dataclasses import replace

import numpy as np
import pytest
from gymnasium import spaces

from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.life import ServiceLink, action_frames
from seedbed.services.tools.cli.env.one_group import ALONE_S, OneGroup
from seedbed.shared.protocol.codec import decode, encode
from seedbed.shared.protocol.messages import (
    Act,
    ActBits,
    Bye,
    Challenge,
    Hello,
    Ping,
    Pong,
    Reject,
    Step,
    StepBits,
    Welcome,
)
from seedbed.shared.protocol.pictures import pack_picture
from seedbed.shared.protocol.rows import Flags, act_layout, step_layout
from tests.support.specs import make_spec

SPEC = make_spec(spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(3), env_id="Scripted-v0")
HELLO = Hello(
    library_version="0", actor="scripted", incarnation=5, group=0, lanes=2, nonce=1, mode="play", spec=SPEC,
    capabilities=("reset", "render"),
)  # fmt: skip
OPTIONS = CheckOptions(mode="play", groups=1, lanes=1, seed=7, patience_s=4.0)
ROUTE = b"peer"


class Script:
    """The service's side; what it got, and the ticks that were handed on."""

    def __init__(self, hello=HELLO, *, expected=None):
        self.down, self.shown, self.now = [], [], 0.0
        link = ServiceLink(
            options=OPTIONS, expected=expected, epoch=3, send=self._take, cut=lambda: None, stop=lambda: None
        )
        self.life = OneGroup(link, show=self.shown.append)
        self.session, self.seq = 0, -1
        self.say(hello)

    def _take(self, route, frames):
        self.down.append([bytes(frame) for frame in frames])
        return True

    def say(self, message, *payload, route=ROUTE):
        """Send something; the answer's message, if there is one."""
        before = len(self.down)
        self.life.receive(route, [encode(message), *payload], self.now)
        answer = decode(self.down[-1][0]) if len(self.down) > before else None
        if isinstance(answer, Welcome):
            self.session, self.seq = answer.session, answer.next_seq - 1
        return answer

    def step(self, value, flags=0, *, picture=None, again=False):
        """Send the next STEP; the answer."""
        layout = step_layout(SPEC, 2)
        frames = layout.allocate()
        observation, _reward, flag = layout.views(frames)
        observation[...], flag[...] = value, flags
        extra = [] if picture is None else [pack_picture(picture)]
        self.seq += not again
        message = Step(session=self.session, seq=self.seq, bits=int(StepBits.RENDER) if extra else 0)
        return self.say(message, *map(bytes, frames), *extra)

    def wait(self, seconds):
        """Time passes, a few polls in a second."""
        for _ in range(int(seconds / 0.05)):
            self.now += 0.05
            self.life.poll(self.now)

    def act(self, action):
        """Answer the STEP, the same in both lanes."""
        self.life.ask(action_frames(SPEC, 2, [np.full(2, action)]))

    @property
    def acted(self):
        """Lane 0's action in the newest ACT."""
        return int(act_layout(SPEC, 2).views(self.down[-1][1:])[0][0])


@pytest.fixture
def script():
    """A service that was told to begin anew, and whose first rows have been shown."""
    made = Script()
    assert made.step(1, Flags.FIRST) is None
    made.shown.clear()
    made.life.reset(7)
    opening = decode(made.down[-1][0])
    assert (opening.bits, opening.reset_seed) == (ActBits.RESET | ActBits.PICTURE, 7)
    made.step(2, Flags.FIRST)
    assert len(made.shown) == 1
    return made


def test_a_service_is_asked_for_no_picture_that_it_cannot_draw():
    """HELLO says what it can do."""
    script = Script(replace(HELLO, capabilities=()))
    assert script.step(1, Flags.FIRST) is None
    assert len(script.shown) == 1
    script.act(2)
    assert decode(script.down[-1][0]).bits == 0


def test_keys_answer_steps_one_by_one(script):
    """A second key before the next rows does nothing; the picture is shown."""
    script.act(2)
    assert (decode(script.down[-1][0]), script.acted) == (
        Act(session=script.session, seq=1, policy_version=1, bits=int(ActBits.PICTURE)),
        2,
    )
    num_sent = len(script.down)
    script.act(1)
    assert len(script.down) == num_sent
    script.step(3, picture=np.full((2, 3, 3), 9, np.uint8))
    assert script.shown[-1].picture.shape == (2, 3, 3)
    assert script.shown[-1].tick.observation[0][0].tolist() == [3.0]


def test_a_lost_act_is_sent_again_and_done_once(script):
    """The STEP comes again: the same ACT; while the person thinks: nothing."""
    assert script.step(2, Flags.FIRST, again=True) is None
    script.act(2)
    sent = script.down[-1]
    script.step(2, Flags.FIRST, again=True)
    assert script.down[-1] == sent
    assert len(script.shown) == 1


def test_what_was_lost_with_a_session_is_asked_again(script):
    """The same rows come first in the new one; new rows are the answer."""
    for value, is_shown in ((2, False), (4, True)):
        script.act(2)
        script.say(Bye(session=script.session, reason="moved"))
        assert isinstance(script.step(9, again=True), Challenge)
        script.say(replace(HELLO, nonce=2))
        assert script.seq == -1
        num_shown = len(script.shown)
        answer = script.step(value, Flags.FIRST if value == 2 else 0)
        assert len(script.shown) == num_shown + is_shown
        if not is_shown:
            assert (answer.seq, script.acted) == (0, 2)
            script.step(3)


def test_who_does_not_belong_here_is_refused(script):
    """Another group, for as long as it asks."""
    answer = script.say(replace(HELLO, incarnation=6), route=b"other")
    assert isinstance(answer, Reject)
    assert (answer.code, answer.retryable) == ("capacity", True)


def test_a_group_of_another_mode_is_the_end():
    """It hears what to change, and so does the person."""
    script = Script(replace(HELLO, mode="train"))
    answer = decode(script.down[-1][0])
    assert (answer.code, answer.retryable) == ("mode", False)
    script.wait(1.0)
    assert script.life.is_done
    assert "start it with actor.mode=play" in script.life.problem


def test_pings_keep_it_however_long_the_person_thinks(script):
    """Silence does not; nor does a BYE after which nobody comes."""
    for _ in range(30):
        script.wait(1.0)
        assert isinstance(script.say(Ping(sent_ms=int(1000 * script.now))), Pong)
    assert not script.life.is_done
    script.wait(10.0 + ALONE_S + 1.0)
    assert "fell silent" in script.life.problem


def test_rows_that_nobody_waits_for_are_shown_with_the_next(script):
    """A service that resets in a new session breaks the rules; one key is one scene all the same."""
    script.say(Bye(session=script.session, reason="moved"))
    script.say(replace(HELLO, nonce=2))
    assert script.step(8, Flags.FIRST) is None
    assert len(script.shown) == 1
    script.act(1)
    script.step(9)
    assert [seen.tick.observation[0][0].tolist() for seen in script.shown] == [[2.0], [9.0]]


def test_what_cannot_be_read_is_the_end(script):
    """With what was wrong."""
    script.act(0)
    script.say(Step(session=script.session, seq=2), b"short")
    script.wait(0.1)
    assert "frame_size" in script.life.problem


def test_the_end_is_told_and_awaited(script):
    """BYE(run_finished); its own BYE is the end where no process is ours."""
    script.life.dismiss()
    assert decode(script.down[-1][0]) == Bye(session=0, reason="run_finished")
    script.wait(1.0)
    assert not script.life.is_done
    script.say(Bye(session=0, reason="run_finished"))
    script.wait(0.1)
    assert (script.life.is_done, script.life.problem) == (True, "")


def test_one_that_stays_is_told(script):
    """After the patience that was given."""
    script.life.dismiss()
    for _ in range(6):
        script.wait(1.0)
        script.say(Ping(sent_ms=int(1000 * script.now)))
    assert "still there" in script.life.problem
