"""dm_env_rpc servers: every lane is a connection with a world of its own."""
