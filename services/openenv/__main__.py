"""An OpenEnv server's sessions as an actor: `python -m services.openenv env.kwargs='{url="http://127.0.0.1:8000"}'`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="services.openenv.env:make", kwargs={"url": "http://127.0.0.1:8000"})))
