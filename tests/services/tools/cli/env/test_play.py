"""`seedbed play` and `seedbed env record`: keys, games, pictures; a real terminal at the end."""

import os
import pty
import re
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from rich.console import Console

from seedbed.actor_svc.envs import make_group
from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.env.game import PersonsGame, PolicysGame
from seedbed.services.tools.cli.env.keys import action_keys, describe_keys, read_keys
from seedbed.services.tools.cli.env.screen import draw_picture, shrink
from seedbed.services.tools.cli.video import MIN_VIDEO_HEIGHT, make_shown_group, play_randomly
from seedbed.shared.errors import ConfigError
from seedbed.shared.policy.config import PolicyConfig
from seedbed.shared.protocol.spaces import space_from_gymnasium
from seedbed.shared.runtime.config import EnvConfig
from tests.services.tools.cli.test_evaluate import make_run

MEMORY = EnvConfig(id="seedbed.services.memory.env:make", kwargs={"cues": 2, "min_delay": 0, "max_delay": 0})
ARROW_RIGHT = "\x1b[C"


@pytest.fixture
def group():
    """One lane of the shortest memory task: a cue, a question, the answer."""
    made = make_shown_group(MEMORY)
    yield made
    made.close()


def drawn(game):
    """The screen as text."""
    console = Console(width=80, height=30, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(game.draw(80, 30))
    return console.export_text()


def test_what_a_terminal_sends_is_read_as_keys():
    """Arrows in both of their forms; unknown sequences are left out."""
    assert list(read_keys(f"0 {ARROW_RIGHT}\x1bOA\x1b[Zq\x1b\r\x03")) == [
        "0",
        "space",
        "right",
        "up",
        "q",
        "enter",
        "q",
    ]


def test_discrete_actions_have_keys_and_a_user_may_choose_others():
    """Digits, the arrows for two or three actions, then what --keys says."""
    keys = action_keys(space_from_gymnasium(spaces.Discrete(3, start=5)), "space=6")
    assert keys == {"0": 5, "1": 6, "2": 7, "left": 5, "right": 7, "space": 6}
    assert describe_keys(keys) == "actions: 0/left → 5   1/space → 6   2/right → 7"
    assert "q" not in action_keys(space_from_gymnasium(spaces.Discrete(30)))


@pytest.mark.parametrize(
    ("space", "mapping", "said"),
    [
        (spaces.Box(-1, 1, (2,)), "", "box float32"),
        (spaces.Discrete(99), "", "at most 35 kinds"),
        (spaces.Discrete(2), "lefd=0", "did you mean 'left'"),
        (spaces.Discrete(2), "left", "no key=action"),
        (spaces.Discrete(2), "left=2", "actions are 0 to 1"),
        (spaces.Discrete(2), "q=1", "no key=action"),
    ],
)
def test_what_no_person_can_play_is_said(space, mapping, said):
    """With the space or the key that was wrong."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        action_keys(space_from_gymnasium(space, image=None), mapping)


def test_a_person_plays_step_by_step(group):
    """The answer to the cue earns 1; the next action begins another episode."""
    game = PersonsGame(group, 3)
    cue = int(group.views.observation[0][0].argmax())
    assert "first" in drawn(game)
    game.press("7")
    assert "'7' is no action here" in drawn(game)
    for _ in range(2):
        game.press(str(cue))
    text = drawn(game)
    assert "episode 1   step 2   return 1   reward 1   terminated" in text
    assert "the episode is over" in text
    game.press("0")
    assert "episode 2   step 0   return 0" in drawn(game)
    assert game.summary() == "1 episodes, returns 1; mean 1"
    game.press("q")
    assert game.is_over


def test_a_masked_action_is_refused():
    """It says so and does not step."""
    made = make_group(EnvConfig(id="tests.services.tools.cli.env.test_play:OnlySecond"), 1)
    game = PersonsGame(made, 3)
    game.press("0")
    assert game.note == "action 0 is not allowed now"
    assert made.counters().ticks == 0
    game.press("1")
    assert made.counters().ticks == 1
    made.close()


class OnlySecond(gymnasium.Env):
    """Two actions, of which one is allowed."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action):
        assert action == 1
        return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.array([0, 1], np.int8)}


def test_a_policy_plays_by_itself_until_it_is_paused(group):
    """Then it goes step by step, and may go faster."""
    game = PolicysGame(group, play_randomly(group, 1), fps=10.0)
    assert group.counters().ticks == 0
    game.pass_time()
    assert (group.counters().ticks, game.wait_s) == (1, 0.1)
    game.press("+")
    assert game.wait_s == pytest.approx(1 / 15)
    game.press("space")
    game.pass_time()
    assert (group.counters().ticks, game.wait_s) == (1, None)
    assert "paused" in drawn(game)
    game.press("right")
    assert group.counters().ticks == 2
    game.press("space")
    game.pass_time()
    assert group.counters().ticks == 3


def test_pictures_fit_the_terminal():
    """Shrunk by means over equal parts, never enlarged, two pixels to a character."""
    picture = np.zeros((40, 80, 3), np.uint8)
    picture[:, 40:] = 200
    small = shrink(picture, 10, 10)
    assert small.shape == (5, 10, 3)
    assert small[0, :, 0].tolist() == [0] * 5 + [200] * 5
    assert shrink(picture, 500, 500).shape == picture.shape
    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(draw_picture(picture, 20, 20))
    assert [len(line) for line in console.export_text().splitlines()] == [20] * 5


def test_play_without_a_terminal_says_what_to_do_instead(capsys):
    """Exit status 78."""
    assert main(["play", "seedbed.services.memory.env:make"]) == 78
    assert "seedbed env record" in capsys.readouterr().err.replace("\n", " ")


def test_play_in_a_terminal_leaves_it_as_it_was():
    """Keys arrive one by one; the summary is printed; echo is on again."""
    termios = pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    command = [sys.executable, "-m", "seedbed.services.tools.cli.app", "play", MEMORY.id]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "30"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    try:
        said = read_until(ours, "episode 1   step 0")
        os.write(ours, b"0")
        said = read_until(ours, "step 1")
        os.write(ours, b"q")
        said = read_until(ours, "no whole episode; return so far 0 after 1 steps")
        assert said
        assert process.wait(60) == 0
        assert termios.tcgetattr(theirs) == before
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def read_until(descriptor, text):
    """What came until a text did, without the terminal's codes."""
    said = ""
    while text not in said:
        said += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", os.read(descriptor, 65536).decode(errors="replace"))
    return said


def test_record_writes_whole_episodes_of_random_play(tmp_path, capsys):
    """As MP4, large enough to look at; the returns are told."""
    pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed")
    import imageio_ffmpeg

    file = tmp_path / "videos" / "memory.mp4"
    words = ["env.kwargs={cues = 2, min_delay = 0, max_delay = 0}", "--episodes", "2", "--video", str(file)]
    assert main(["env", "record", MEMORY.id, *words]) == 0
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(file))
    assert frames == 10  # cue, question, end, which stays for half a second; twice
    assert seconds == pytest.approx(frames / 4, abs=0.3), "the environment's render_fps"
    assert "10 frames of random actions; returns" in capsys.readouterr().out
    reader = imageio_ffmpeg.read_frames(str(file))
    assert next(reader)["size"][1] >= MIN_VIDEO_HEIGHT
    reader.close()


def test_record_needs_something_to_show(tmp_path, capsys):
    """An environment without pictures is named."""
    words = ["--video", str(tmp_path / "x.mp4")]
    assert main(["env", "record", "tests.services.tools.cli.env.test_in_process:make", *words]) == 1
    assert "cannot be shown" in capsys.readouterr().err


def test_an_unknown_run_is_named(tmp_path, monkeypatch, capsys):
    """As elsewhere."""
    monkeypatch.chdir(tmp_path)
    assert main(["env", "record", MEMORY.id, "--video", "x.mp4", "--run", "absent"]) == 78
    assert "no run there" in capsys.readouterr().err


def test_record_shows_a_runs_policy(tmp_path, capsys):
    """The run's own [env] holds where TARGET is the same environment."""
    env = EnvConfig(id="seedbed.services.memory.env:make", kwargs={"cues": 3, "min_delay": 0, "max_delay": 0})
    run = make_run(tmp_path / "run", env, PolicyConfig(lstm=8))
    words = ["--run", str(run), "--video", str(tmp_path / "x.mp4")]
    assert main(["env", "record", env.id, *words]) == 0
    assert "frames of the policy of run; returns" in capsys.readouterr().out
    assert main(["env", "record", env.id, "env.kwargs={cues = 2}", *words]) == 78
    assert "another specification" in capsys.readouterr().err.replace("\n", " ")
