"""The ways of stepping many lanes: one by one, an environment's own vector form, ALE's and EnvPool's."""
