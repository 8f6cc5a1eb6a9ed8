"""Environments of OpenEnv servers: every lane is a session of its own."""
