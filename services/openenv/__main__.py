"""An OpenEnv server's sessions as an actor: `python -m services.openenv env.kwargs='{url="http://127.0.0.1:8000"}'`."""

import sys

from actor_svc.serve import serve
from services.openenv.env import make

if __name__ == "__main__":
    sys.exit(serve(make, name="services.openenv.env:make"))
