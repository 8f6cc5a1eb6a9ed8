"""A PettingZoo environment: `python -m seedbed.services.pettingzoo env.kwargs='{env="mpe2.simple_spread_v3"}'`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="seedbed.services.pettingzoo.env:make", kwargs={"env": "mpe2.simple_spread_v3"})))
