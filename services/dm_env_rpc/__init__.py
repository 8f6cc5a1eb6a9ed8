"""dm_env_rpc servers: every lane is a connection with a world of its own."""

import os

# gRPC reads this when it is imported. Its own handlers for a fork abort about one in twenty children that are forked
# beside a live channel, before these become another program: the encoder of videos, for one. No child uses a channel.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
