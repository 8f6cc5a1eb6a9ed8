"""serve(make_env): an author's function as an actor, and what an actor's process must not load."""

import subprocess
import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig
from tests.support import toy_envs


def test_unknown_key_is_a_configuration_error(capsys):
    """Words are checked as for any service: exit code 78, naming the key."""
    assert serve(toy_envs.CountingEnv, argv=["actor.lames=3"]) == 78
    assert "lanes" in capsys.readouterr().err


def test_environment_that_cannot_travel_is_refused_before_any_socket(capsys):
    """A configuration error of the environment ends the actor with 78 and one clear line."""

    def make():
        raise ImportError("no simulator")

    words = ["runtime.metrics_address=", "runtime.uvloop=false", "actor.lanes=1"]
    assert serve(make, name="toy", argv=words) == 78
    assert "no simulator" in capsys.readouterr().err


def test_one_setting_of_a_known_environment(capsys):
    """Neither a function's name nor an id must be repeated to set another key of [env]."""
    words = ["runtime.metrics_address=", "runtime.uvloop=false", "actor.lanes=1", "env.kwargs={gravy=1}"]
    assert serve(EnvConfig(id="CartPole-v1"), argv=words) == 78
    assert "CartPole-v1 cannot be made" in capsys.readouterr().err
    assert serve(toy_envs.CountingEnv, argv=words) == 78
    assert "CountingEnv cannot be made" in capsys.readouterr().err


def test_actor_loads_no_torch():
    """The actor's image is small: importing all of it must not import torch."""
    modules = "seedbed.actor_svc.serve, seedbed.actor_svc.backends.atari, seedbed.services.football.env"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
