"""A dm_env_rpc server's worlds as an actor: `python -m services.dm_env_rpc env.kwargs='{address="127.0.0.1:9000"}'`."""

import sys

from actor_svc.serve import serve
from shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="services.dm_env_rpc.env:make", kwargs={"address": "127.0.0.1:9000"})))
