"""DeepMind Lab as an actor: `python -m seedbed.services.dmlab env.kwargs='{level="explore_goal_locations_small"}'`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="seedbed.services.dmlab.env:make", kwargs={"level": "explore_goal_locations_small"})))
