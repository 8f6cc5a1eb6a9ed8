"""A Procgen game as an actor: `python -m seedbed.services.procgen env.id=StarpilotEasy-v0 actor.upstream=tcp://127.0.0.1:5555`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="CoinrunEasy-v0", backend="envpool")))
