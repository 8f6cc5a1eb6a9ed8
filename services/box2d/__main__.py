"""A Box2D task as an actor: `python -m seedbed.services.box2d env.id=BipedalWalker-v3 actor.upstream=tcp://127.0.0.1:5555`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="LunarLander-v3")))
