"""Worlds of a dm_env_rpc server: `python -m seedbed.services.dm_env_rpc env.kwargs='{address="127.0.0.1:9000"}'`."""

import sys

from seedbed.actor_svc.serve import serve
from seedbed.shared.runtime.config import EnvConfig

if __name__ == "__main__":
    sys.exit(serve(EnvConfig(id="seedbed.services.dm_env_rpc.env:make", kwargs={"address": "127.0.0.1:9000"})))
