"""Procgen's generated games as an actor."""
