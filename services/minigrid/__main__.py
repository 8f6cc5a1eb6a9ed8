"""A MiniGrid environment as an actor: `python -m services.minigrid env.kwargs='{env="MiniGrid-Empty-5x5-v0"}'`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="services.minigrid.env:make", kwargs={"env": "MiniGrid-Empty-5x5-v0"})))
