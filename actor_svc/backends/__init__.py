"""Backends that step many lanes: one by one, by an environment's own vector form, by ALE or by EnvPool."""
