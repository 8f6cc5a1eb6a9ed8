"""An OpenEnv server's sessions as an actor: `python -m seedbed.services.openenv env.kwargs='{url="http://127.0.0.1:8000"}'`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="seedbed.services.openenv.env:make", kwargs={"url": "http://127.0.0.1:8000"})))
