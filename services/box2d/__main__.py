"""A Box2D task as an actor: `python -m services.box2d env.id=BipedalWalker-v3 actor.upstream=tcp://127.0.0.1:5555`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="LunarLander-v3")))
