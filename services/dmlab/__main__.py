"""DeepMind Lab as an actor: `python -m services.dmlab env.kwargs='{level="explore_goal_locations_small"}'`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="services.dmlab.env:make", kwargs={"level": "explore_goal_locations_small"})))
