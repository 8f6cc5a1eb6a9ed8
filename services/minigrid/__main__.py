"""A MiniGrid environment: `python -m seedbed.services.minigrid env.kwargs='{env="MiniGrid-Empty-5x5-v0"}'`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="seedbed.services.minigrid.env:make", kwargs={"env": "MiniGrid-Empty-5x5-v0"})))
