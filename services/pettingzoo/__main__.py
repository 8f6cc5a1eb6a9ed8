"""A PettingZoo environment as an actor: `python -m services.pettingzoo env.kwargs='{env="mpe2.simple_spread_v3"}'`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="services.pettingzoo.env:make", kwargs={"env": "mpe2.simple_spread_v3"})))
