"""A person who plays a service: real processes over real sockets, played by keys that a script presses."""

import subprocess
import sys
from contextlib import contextmanager

import psutil
import pytest

from seedbed.services.tools.cli.app import main
from seedbed.services.tools.cli.env.game import PersonsGame
from seedbed.services.tools.cli.env.in_process import CheckOptions
from seedbed.services.tools.cli.env.link import SILENT, Notes
from seedbed.services.tools.cli.env.remote_backend import group_of
from seedbed.services.tools.cli.env.target import Listen, as_service, find_target
from seedbed.services.tools.cli.env.visit import Visit
from seedbed.shared.errors import EnvError
from seedbed.shared.protocol.rows import Flags
from seedbed.shared.runtime.config import EnvConfig
from tests.support.deployment import wait_until

OPTIONS = CheckOptions(mode="play", groups=1, lanes=1, seed=3)
MEMORY = EnvConfig(id="seedbed.services.memory.env:make", kwargs={"cues": 2, "min_delay": 0, "max_delay": 0})
ACTOR = f"""
import sys
from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig
sys.exit(serve(EnvConfig(id={MEMORY.id!r}, kwargs={MEMORY.kwargs!r})))
"""
FRAGILE = """
import sys
import gymnasium
import numpy as np
from seedbed.actor_svc.serve import serve

class Fragile(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            sys.stderr.write("the glass is broken\\n")
            sys.stderr.flush()
            __import__("os")._exit(7)
        return np.zeros(1, np.float32), 0.0, False, False, {}

sys.exit(serve(Fragile, name="Fragile-v0"))
"""


def write_service(folder, program, env_id="seedbed.services.memory.env:make"):
    """A folder with a service of one file."""
    (folder / "actor.py").write_text(program)
    (folder / "service.toml").write_text(
        f'name = "mine"\ndescription = "for a test"\ncommand = ["python", "actor.py"]\nenv_id = "{env_id}"\n'
    )
    return find_target(str(folder))


@contextmanager
def played(target, *, options=OPTIONS, words=(), notes=SILENT):
    """A person's game with a service, until the end of the block."""
    with Visit(target, options, words, notes) as visit:
        yield PersonsGame(group_of(visit), options.seed, check=visit.check)


def cue_of(scene):
    """The key of what must be answered in the end."""
    return str(scene.observation[0][0].argmax())


def process_in(folder):
    """The one child of ours that runs in a folder: other tests may have left some of theirs running for the next."""
    (found,) = [child for child in psutil.Process().children() if child.cwd() == str(folder.resolve())]
    return found


def test_a_python_service_is_played_from_its_folder(tmp_path):
    """Every scene has a picture, the first one too; the answer to the cue earns 1; the service leaves in order."""
    with played(write_service(tmp_path, ACTOR)) as game:
        service = process_in(tmp_path)
        assert game.scene.flags == Flags.FIRST
        assert game.scene.picture is not None
        cue = cue_of(game.scene)
        for _ in range(5):
            game.press(cue)
            assert game.scene.picture is not None
        assert game.returns[0] == 1.0
        assert process_in(tmp_path) == service
    assert not service.is_running()


def test_the_same_seed_plays_the_same_episodes():
    """That of the command line, not one that was derived from it."""
    seen = []
    for seed in (3, 3, 4):
        options = CheckOptions(mode="play", groups=1, lanes=1, seed=seed)
        with played(as_service(EnvConfig(id="CartPole-v1")), options=options) as game:
            first = game.scene.observation[0].tolist()
            game.press("1")
            seen.append([first, game.scene.observation[0].tolist()])
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_agents_of_one_world_play_together():
    """The person is lane 0; the others act at random."""
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
    world = EnvConfig(id="seedbed.services.pettingzoo.env:make", kwargs={"env": "tests.support.arena:Arena"})
    with played(as_service(world)) as game:
        game.press("0")
        assert (game.note, game.scene.spec.env_id) == ("", world.id)


def test_a_service_that_dies_is_told_with_its_last_words(tmp_path):
    """In the middle of a step."""
    service = write_service(tmp_path, FRAGILE, "Fragile-v0")
    play(service, lambda game: game.press("0"))
    with pytest.raises(EnvError, match="exit status 7: the glass is broken"):
        play(service, lambda game: game.press("1"))


def test_a_service_that_is_killed_is_missed_without_a_key(tmp_path):
    """While the person thinks."""

    def kill(game):
        process_in(tmp_path).kill()
        wait_until(game.pass_time, "it is missed")

    with pytest.raises(EnvError, match="signal 9"):
        play(write_service(tmp_path, FRAGILE, "Fragile-v0"), kill)


def test_a_service_that_never_comes_is_told(tmp_path):
    """One that refuses its settings, with its reason; one that is silent, after a while."""
    refuses = 'import sys\nsys.exit("actor is too old")\n'
    with pytest.raises(EnvError, match="exit status 1 before HELLO: actor is too old"):
        play(write_service(tmp_path, refuses))
    hurried = CheckOptions(mode="play", groups=1, lanes=1, patience_s=0.1)
    with pytest.raises(EnvError, match="no HELLO within"):
        play(write_service(tmp_path, "import signal\nsignal.pause()\n"), options=hurried)


def test_a_service_in_another_mode_is_refused(tmp_path):
    """With what to change; it ends by itself."""
    service = write_service(tmp_path, ACTOR)
    with pytest.raises(EnvError, match=r"mode 'train': start it with actor\.mode=play"):
        play(service, words=["actor.mode=train"])


def play(target, *acts, options=OPTIONS, words=()):
    """Begin a game, do these things, and end it."""
    with played(target, options=options, words=words) as game:
        for act in acts:
            act(game)


def test_a_service_that_somebody_else_starts_is_played(tmp_path):
    """It is awaited at an address, and left with BYE."""
    service = write_service(tmp_path, ACTOR)
    processes = []

    def start(address):
        words = [f"actor.upstream={address}", "actor.mode=play"]
        processes.append(subprocess.Popen([sys.executable, "actor.py", *words], cwd=service.folder))

    with played(Listen("tcp://127.0.0.1:0"), notes=Notes(listening=start)) as game:
        game.press(cue_of(game.scene))
        assert game.scene.flags == 0
    assert processes[0].wait(30) == 0


def test_record_names_what_it_cannot_step(tmp_path, capsys):
    """A service in another language is played, not recorded."""
    write_service(tmp_path, ACTOR, "Elsewhere-v1")
    assert main(["env", "record", str(tmp_path), "--video", str(tmp_path / "x.mp4")]) == 78
    assert "Elsewhere-v1 is none that Python can make" in capsys.readouterr().err.replace("\n", " ")
