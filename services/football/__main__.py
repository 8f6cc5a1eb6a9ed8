"""Football: `python -m seedbed.services.football env.kwargs='{scenario="academy_corner"}' actor.upstream=…`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.services.football.env import make

if __name__ == "__main__":
    sys.exit(serve(make, name="seedbed.services.football.env:make"))
