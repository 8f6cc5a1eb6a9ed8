"""An Atari game as an actor: `python -m seedbed.services.atari env.id=ALE/Breakout-v5 actor.upstream=tcp://127.0.0.1:5555`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="ALE/Pong-v5")))
