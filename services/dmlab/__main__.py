"""DeepMind Lab as an actor: `python -m services.dmlab env.kwargs='{level="explore_goal_locations_small"}'`."""

import sys

from actor_svc.serve import serve
from services.dmlab.env import make

if __name__ == "__main__":
    sys.exit(serve(make, name="services.dmlab.env:make"))
