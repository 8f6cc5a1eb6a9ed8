"""Doom scenarios as an actor."""
