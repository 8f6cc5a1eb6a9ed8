"""Football as an actor: `python -m services.football env.kwargs='{scenario="academy_corner"}' actor.upstream=…`."""

import sys

from actor_svc.serve import serve
from services.football.env import make

if __name__ == "__main__":
    sys.exit(serve(make, name="services.football.env:make"))
