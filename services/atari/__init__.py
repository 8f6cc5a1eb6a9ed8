"""Atari games as an actor."""
